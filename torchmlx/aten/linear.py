"""Linear maps: the product with a weight matrix [N, K]."""

from __future__ import annotations

import mlx.core as mx

from ..core.op import op
from ..kernels.gemv import linear as product
from ..kernels.matmul import matmul
from ._calling import collapse, is_float, torch_name, wide

# torch's C++ type names, as its matmul spells them.
_C_NAMES = {
    "Float": "float", "Double": "double", "Half": "c10::Half", "BFloat16": "c10::BFloat16",
    "Long": "long", "Int": "int", "Short": "short", "Char": "signed char", "Byte": "unsigned char",
    "Bool": "bool", "ComplexFloat": "c10::complex<float>",
}  # fmt: skip


def c_name(x: mx.array) -> str:
    """The dtype as torch's matmul spells it in errors."""
    return _C_NAMES.get(torch_name(x), torch_name(x))


@op(at=("F",))
def linear(input, weight, bias=None):
    """input [..., K] @ weight [N, K].T + bias [N]; accumulated in float32.

    torch.nn.functional.linear.
    """
    if weight.ndim == 1:
        return linear_vector(input, weight, bias)
    _check(input, weight, bias)
    if 0 in (*input.shape, *weight.shape):
        empty = mx.zeros((*input.shape[:-1], weight.shape[0]), input.dtype)
        return empty if bias is None else empty + bias
    if bias is not None and bias.shape != (weight.shape[0],):
        return product(input, weight, None) + bias
    if is_float(input) and input.dtype != mx.complex64:
        return product(input, weight, bias)
    if input.dtype == mx.complex64:
        result = input @ weight.T
    else:  # MLX's matmul takes no integers
        result = collapse(mx.sum, input[..., None, :] * weight, -1).astype(input.dtype)
    return result if bias is None else result + bias


def linear_vector(input, weight, bias):
    """A weight of shape [K] gives [...]: the dot products."""
    _check(input, weight[None], bias)
    result = collapse(mx.sum, wide(input) * wide(weight), -1)
    return (result if bias is None else result + wide(bias)).astype(input.dtype)


def _check(input, weight, bias) -> None:
    if weight.ndim != 2:
        raise RuntimeError("linear(): weight must have at most 2 dimensions")
    if input.ndim == 0:
        raise RuntimeError(
            f"both arguments to linear need to be at least 1D, but they are 0D and {weight.ndim}D"
        )
    n, k = weight.shape
    if input.shape[-1] != k:
        rows = input.size // input.shape[-1] if input.shape[-1] else 0
        if input.ndim == 1:
            raise RuntimeError(f"size mismatch, got input ({n}), mat ({n}x{k}), vec ({input.size})")
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({rows}x{input.shape[-1]} and {k}x{n})"
        )
    for other in (weight, bias):
        if other is not None and other.dtype != input.dtype:
            raise RuntimeError(
                f"mat1 and mat2 must have the same dtype, but got {torch_name(input)} and "
                f"{torch_name(other)}"
            )


@op(at=("torch", "F"))
def bilinear(input1, input2, weight, bias=None):
    """out[..., o] = sum over i, j of input1[..., i] weight[o, i, j] input2[..., j] + bias[o].

    torch.bilinear.
    """
    if input1.shape[:-1] != input2.shape[:-1]:
        raise RuntimeError(
            f"bilinear(): input batch dimensions do not match: got {list(input1.shape)} and "
            f"{list(input2.shape)}"
        )
    for i, (x, n) in enumerate(((input1, weight.shape[1]), (input2, weight.shape[2])), 1):
        if x.shape[-1] != n:
            raise RuntimeError(
                f"bilinear(): input{i} size does not match weight size: got {x.shape[-1]} but "
                f"expected {n}"
            )
    outputs, k, n = weight.shape
    lead = input1.shape[:-1]
    a, b, w = wide(input1).reshape(-1, k), wide(input2).reshape(-1, n), wide(weight)
    left = matmul(a, w.transpose(1, 0, 2).reshape(k, outputs * n))  # [rows, outputs * n]
    result = collapse(mx.sum, left.reshape(-1, outputs, n) * b[:, None], -1).reshape(*lead, outputs)
    return (result if bias is None else result + wide(bias)).astype(input1.dtype)
