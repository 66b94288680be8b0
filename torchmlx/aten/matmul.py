"""Products of matrices and vectors. Half precision is accumulated in float32 and rounded once."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ..core import dtype as dtypes
from ..core.op import composite, op
from ..kernels.grouped_matmul import grouped_matmul
from ..kernels.matmul import matmul as kernel
from ._calling import collapse, host, is_float, torch_name, wide

# at::ScalarType's C++ names, as the matrix products' messages spell them.
_CPP = {
    "float32": "float", "float64": "double", "float16": "c10::Half", "bfloat16": "c10::BFloat16",
    "int64": "int64_t", "int32": "int", "int16": "short", "int8": "signed char",
    "uint8": "unsigned char", "bool": "bool", "complex64": "c10::complex<float>",
}  # fmt: skip


def _same_dtype(a: mx.array, b: mx.array) -> None:
    if a.dtype != b.dtype:
        first, second = (dtypes.from_mx(x.dtype).name for x in (a, b))
        raise RuntimeError(
            f"expected m1 and m2 to have the same dtype, but got: {_CPP.get(first, first)} != "
            f"{_CPP.get(second, second)}"
        )


def product(a: mx.array, b: mx.array) -> mx.array:
    """a @ b of one dtype; integers exactly, which MLX cannot."""
    if is_float(a):
        return kernel(a, b)
    if a.dtype == mx.bool_:
        raise NotImplementedError("\"addmm_impl_cpu_\" not implemented for 'Bool'")
    return mx.array(np.asarray(np.matmul(host(a), host(b)))).astype(a.dtype)


def _x(shape) -> str:
    return "x".join(map(str, shape))


@op(at=("torch", "Tensor", "linalg"))
def matmul(input, other):
    """Matrix product with broadcast batch dimensions; vectors as in torch. torch.matmul."""
    if input.ndim == 0 or other.ndim == 0:
        raise RuntimeError(
            "both arguments to matmul need to be at least 1D, but they are "
            f"{input.ndim}D and {other.ndim}D"
        )
    _same_dtype(input, other)
    inner = other.shape[-2] if other.ndim > 1 else other.shape[0]
    if input.shape[-1] != inner:
        raise RuntimeError(_mismatch(input, other))
    return product(input, other)


def _mismatch(a: mx.array, b: mx.array) -> str:
    if b.ndim == 1:
        if a.ndim == 1:
            return (
                "inconsistent tensor size, expected tensor "
                f"[{a.shape[0]}] and src [{b.shape[0]}] to have the same number of elements, "
                "but got "
                f"{a.shape[0]} and {b.shape[0]} elements respectively"
            )
        if a.ndim == 2:
            return (
                f"size mismatch, got input ({a.shape[0]}), mat ({_x(a.shape)}), vec ({b.shape[0]})"
            )
    if a.ndim > 2 and b.ndim > 2:
        rows = (int(np.prod(a.shape[:-2])), a.shape[-1])
        got = (int(np.prod(b.shape[:-2])), b.shape[-2])
        return (
            f"Expected size for first two dimensions of batch2 tensor to be: [{rows[0]}, "
            f"{rows[1]}] but "
            f"got: [{got[0]}, {got[1]}]."
        )
    left = a.shape if a.ndim == 2 else (int(np.prod(a.shape[:-1])), a.shape[-1])
    return f"mat1 and mat2 shapes cannot be multiplied ({_x(left)} and {_x(b.shape)})"


def _check_mm(a: mx.array, b: mx.array, names=("mat1", "mat2")) -> None:
    for x, name in ((a, names[0]), (b, names[1])):
        if x.ndim != 2:
            raise RuntimeError(f"{name} must be a matrix, got {x.ndim}-D tensor")
    if a.shape[1] != b.shape[0]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({_x(a.shape)} and {_x(b.shape)})"
        )
    _same_dtype(a, b)


@op(aliases=("spmm",))
def mm(input, mat2):
    """Product of two matrices. torch.mm."""
    if input.ndim != 2:
        raise RuntimeError("self must be a matrix")
    if mat2.ndim != 2:
        raise RuntimeError("mat2 must be a matrix")
    _check_mm(input, mat2)
    return product(input, mat2)


def _check_bmm(a: mx.array, b: mx.array) -> None:
    if a.ndim != 3:
        raise RuntimeError("batch1 must be a 3D tensor")
    if b.ndim != 3:
        raise RuntimeError("batch2 must be a 3D tensor")
    if a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise RuntimeError(
            "Expected size for first two dimensions of batch2 tensor to be: "
            f"[{a.shape[0]}, {a.shape[2]}] but got: [{b.shape[0]}, {b.shape[1]}]."
        )
    _same_dtype(a, b)


@op()
def bmm(input, mat2):
    """Products of two batches of matrices, [b, n, m] @ [b, m, p]. torch.bmm."""
    _check_bmm(input, mat2)
    return product(input, mat2)


@op()
def mv(input, vec):
    """Matrix times vector. torch.mv."""
    if input.ndim != 2 or vec.ndim != 1:
        raise RuntimeError(f"vector + matrix @ vector expected, got 1, {input.ndim}, {vec.ndim}")
    if input.shape[1] != vec.shape[0]:
        raise RuntimeError(_mismatch(input, vec))
    _same_dtype(input, vec)
    return product(input, vec)


def _check_dot(name: str, a: mx.array, b: mx.array) -> None:
    if a.ndim != 1 or b.ndim != 1:
        raise RuntimeError(f"1D tensors expected, but got {a.ndim}D and {b.ndim}D tensors")
    if a.dtype != b.dtype:
        raise RuntimeError(
            f"{name} : expected both vectors to have same dtype, but found {torch_name(a)} and "
            f"{torch_name(b)}"
        )
    if a.shape != b.shape:
        raise RuntimeError(_mismatch(a, b))


@op()
def dot(input, tensor):
    """Inner product of two vectors. torch.dot."""
    _check_dot("dot", input, tensor)
    return product(input, tensor)


@op(at=("torch", "Tensor"))
def vdot(input, other):
    """Inner product of two vectors, the first conjugated. torch.vdot."""
    _check_dot("vdot", input, other)
    return product(mx.conj(input) if input.dtype == mx.complex64 else input, other)


@composite()
def inner(input, other):
    """Products summed over the last dimensions. torch.inner."""
    if input.ndim == 0 or other.ndim == 0:
        return input * other
    if input.shape[-1] != other.shape[-1]:
        raise RuntimeError(
            "inner() the last dimension must match on both input tensors but got shapes "
            f"{list(input.shape)} and {list(other.shape)}"
        )
    return tensordot(input, other, ([-1], [-1]))


@op(promote="input vec2", aliases=("ger",))
def outer(input, vec2):
    """[n] and [m] to [n, m]: all products. torch.outer."""
    for x, name in ((input, "self"), (vec2, "vec2")):
        if x.ndim != 1:
            raise RuntimeError(f"outer: Expected 1-D argument {name}, but got {x.ndim}-D")
    return mx.expand_dims(input, 1) * mx.expand_dims(vec2, 0)


def _scaled_sum(input, mat, beta, alpha):
    """beta * input + alpha * mat, in float32 for half precision; beta 0 does not read the input."""
    mat = mat if alpha == 1 else mat * mx.array(alpha, mat.dtype)
    if beta == 0:
        return mat
    shaped = mx.broadcast_to(wide(input), mat.shape)
    return mat + (shaped if beta == 1 else shaped * mx.array(beta, shaped.dtype))


def _expand(input: mx.array, shape, what: str) -> None:
    own = input.shape
    fits = len(own) <= len(shape) and all(
        n in (1, m) for n, m in zip(own[::-1], shape[::-1], strict=False)
    )
    if not fits:
        raise RuntimeError(
            f"The expanded size of the tensor ({shape[-1]}) must match the existing size "
            f"({own[-1] if own else 1}) at non-singleton dimension {len(shape) - 1}.  Target "
            "sizes: "
            f"{list(shape)}.  Tensor sizes: {list(own)}"
        )


@op(inplace=True, pointwise=False)
def addmm(input, mat1, mat2, *, beta=1, alpha=1):
    """beta * input + alpha * (mat1 @ mat2). torch.addmm."""
    _check_mm(mat1, mat2)
    _expand(input, (mat1.shape[0], mat2.shape[1]), "addmm")
    result = _scaled_sum(input, product(wide(mat1), wide(mat2)), beta, alpha)
    return result.astype(mat1.dtype)


@op(inplace=True, pointwise=False)
def addmv(input, mat, vec, *, beta=1, alpha=1):
    """beta * input + alpha * (mat @ vec). torch.addmv."""
    if mat.ndim != 2 or vec.ndim != 1 or input.ndim > 1:
        raise RuntimeError(
            f"vector + matrix @ vector expected, got {input.ndim}, {mat.ndim}, {vec.ndim}"
        )
    if mat.shape[1] != vec.shape[0]:
        raise RuntimeError(_mismatch(mat, vec))
    return _scaled_sum(input, product(wide(mat), wide(vec)), beta, alpha).astype(mat.dtype)


@op(inplace=True, pointwise=False)
def addr(input, vec1, vec2, *, beta=1, alpha=1):
    """beta * input + alpha * outer(vec1, vec2). torch.addr."""
    both = mx.expand_dims(wide(vec1), 1) * mx.expand_dims(wide(vec2), 0)
    return _scaled_sum(input, both, beta, alpha).astype(input.dtype)


@op(inplace=True, pointwise=False)
def baddbmm(input, batch1, batch2, *, beta=1, alpha=1):
    """beta * input + alpha * (batch1 @ batch2), for each pair of matrices. torch.baddbmm."""
    _check_bmm(batch1, batch2)
    _expand(input, (batch1.shape[0], batch1.shape[1], batch2.shape[2]), "baddbmm")
    result = _scaled_sum(input, product(wide(batch1), wide(batch2)), beta, alpha)
    return result.astype(batch1.dtype)


@op(inplace=True, pointwise=False)
def addbmm(input, batch1, batch2, *, beta=1, alpha=1):
    """beta * input + alpha * the sum of batch1 @ batch2. torch.addbmm."""
    _check_bmm(batch1, batch2)
    summed = collapse(mx.sum, product(wide(batch1), wide(batch2)), 0)
    return _scaled_sum(input, summed, beta, alpha).astype(batch1.dtype)


@composite(at=("torch", "linalg"), aliases=("chain_matmul",))
def multi_dot(*matrices):
    """The product of several matrices, associated from the left. torch.linalg.multi_dot."""
    if len(matrices) == 1 and isinstance(matrices[0], (list, tuple)):
        matrices = matrices[0]
    result = matrices[0]
    for m in matrices[1:]:
        result = result @ m
    return result


@composite(at=("torch",))
def tensordot(a, b, dims=2):
    """Products summed over dims of a and dims of b (or the last and first `dims`).

    torch.tensordot.
    """
    if isinstance(dims, int):
        if dims < 0:
            raise RuntimeError(f"tensordot expects dims >= 0, but got dims={dims}")
        dims = (list(range(a.ndim - dims, a.ndim)), list(range(dims)))
    da, db = ([d.tolist() if hasattr(d, "tolist") else d for d in side] for side in dims)
    da, db = [d % a.ndim for d in da], [d % b.ndim for d in db]
    for i, j in zip(da, db, strict=True):
        if a.shape[i] == 1 != b.shape[j]:  # torch broadcasts: the other side is summed first
            b = b.sum(j, keepdim=True)
        elif b.shape[j] == 1 != a.shape[i]:
            a = a.sum(i, keepdim=True)
        if a.shape[i] != b.shape[j]:
            raise RuntimeError(
                "contracted dimensions need to match, but first has size "
                f"{a.shape[i]} in dim {i} and second has size {b.shape[j]} in dim {j}"
            )
    rest_a = [d for d in range(a.ndim) if d not in da]
    rest_b = [d for d in range(b.ndim) if d not in db]
    n = int(np.prod([a.shape[d] for d in da]))
    left = a.permute(*rest_a, *da).reshape(int(np.prod([a.shape[d] for d in rest_a])), n)
    right = b.permute(*db, *rest_b).reshape(n, int(np.prod([b.shape[d] for d in rest_b])))
    shape = [a.shape[d] for d in rest_a] + [b.shape[d] for d in rest_b]
    return (left @ right).reshape(shape)


@composite()
def kron(input, other):
    """The Kronecker product. torch.kron."""
    n = max(input.ndim, other.ndim)
    a = input.reshape((1,) * (n - input.ndim) + tuple(input.shape))
    b = other.reshape((1,) * (n - other.ndim) + tuple(other.shape))
    spread = [s for d in range(n) for s in (a.shape[d], 1)]
    repeated = [s for d in range(n) for s in (1, b.shape[d])]
    product_ = a.reshape(spread) * b.reshape(repeated)
    return product_.reshape([a.shape[d] * b.shape[d] for d in range(n)])


@op(at=("F",))
def grouped_mm(mat_a, mat_b, *, offs=None, bias=None, out_dtype=None):
    """One matrix product a group: jagged rows, columns or inner dimension, or a plain bmm.

    A [M, K] or [G, M, K], B [K, N] or [G, K, N] in float32, bfloat16 or float16; offs int32 [G],
    the cumulative ends, read on the device. Rows and columns past offs[-1] are zero.
    torch.nn.functional.grouped_mm.
    """
    return _grouped(mat_a, mat_b, offs, bias, out_dtype)


@op(at=("torch",))
def _grouped_mm(self, mat2, offs=None, bias=None, out_dtype=None):
    """torch.nn.functional.grouped_mm under its first name. torch._grouped_mm."""
    return _grouped(self, mat2, offs, bias, out_dtype)


def _grouped(mat_a, mat_b, offs, bias, out_dtype) -> mx.array:
    _check_grouped(mat_a, mat_b, offs, bias, out_dtype)
    return grouped_matmul(mat_a, mat_b, offs)


def _check_grouped(a, b, offs, bias, out_dtype) -> None:
    if a.dtype not in (mx.float32, mx.bfloat16, mx.float16):
        raise RuntimeError(
            f"Expected mat_a to be Float32, BFloat16 or Float16 matrix, got {torch_name(a)}"
        )
    if a.dtype != b.dtype:
        raise RuntimeError(
            f"Expected mat_a and mat_b to have the same dtype, got {torch_name(a)} and "
            f"{torch_name(b)}"
        )
    if a.ndim not in (2, 3) or b.ndim not in (2, 3):
        raise RuntimeError("mat_a and mat_b have to be 2 or 3 dimensional")
    if a.shape[-1] != b.shape[-2]:
        raise RuntimeError("contraction dimension of mat_a and mat_b must match")
    if (offs is None) != (a.ndim == 3 and b.ndim == 3):
        raise RuntimeError(
            "Have to provide offsets if there is a 2d matrix, or no offset if both are 3d"
        )
    if bias is not None:
        raise RuntimeError("Bias not supported yet")
    if out_dtype is not None and out_dtype.mx != a.dtype:
        raise RuntimeError("Grouped gemm output dtype must match `mat_a` dtype")
    if offs is None:
        if a.shape[0] != b.shape[0]:
            raise RuntimeError("batched dimension has to match")
        return
    if offs.ndim != 1 or offs.dtype != mx.int32:
        raise RuntimeError("Offsets have to be int32" if offs.ndim == 1 else "offs has to be 1D")
    groups = a.shape[0] if a.ndim == 3 else b.shape[0] if b.ndim == 3 else offs.shape[0]
    if groups != offs.shape[0]:
        raise RuntimeError("matrix batch sizes have to match")
