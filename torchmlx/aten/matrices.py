"""Powers, exponentials and products of matrices and vectors."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ..core.layout import wrap_dim
from ..core.op import composite, op
from ._calling import numpy_names
from .lapack import check, namespace
from .linalg import inverse_of
from .matmul import product
from .shape import cat


@op("matrix_power", at=("torch", "Tensor", "linalg"))
def matrix_power(input, n):
    """The n-th power of square matrices; negative n: of the inverse. torch.linalg.matrix_power."""
    if input.ndim < 2 or input.shape[-1] != input.shape[-2]:
        raise RuntimeError(
            "linalg.matrix_power: A must be batches of square matrices, but they are "
            f"{input.shape[-2] if input.ndim > 1 else 1} by {input.shape[-1]} matrices"
        )
    if n < 0:
        check("inv", input)
    if n == 0:
        eye = mx.eye(input.shape[-1], dtype=mx.float32).astype(input.dtype)
        return mx.broadcast_to(eye, input.shape)
    base, result = (inverse_of(input) if n < 0 else input), None
    n = abs(n)
    while n:
        if n & 1:
            result = base if result is None else product(result, base)
        n >>= 1
        base = product(base, base) if n else base
    return result


@op("matrix_exp", at=("torch", "Tensor", "linalg"))
def matrix_exp(input):
    """The exponential of square matrices: Taylor to order 18, scaled and squared.

    torch.matrix_exp.
    """
    half = input.dtype in (mx.float16, mx.bfloat16)
    x = input.astype(mx.float32) if half else input
    check("matrix_exp", x)
    return _exponential(x).astype(input.dtype) if input.size else input


def _exponential(input: mx.array) -> mx.array:
    size = float(mx.max(mx.sum(mx.abs(mx.stop_gradient(input)), axis=-1)).item())
    reach = 1.0 if input.dtype == mx.float64 else 3.0  # the norm up to which order 18 is exact
    finite = np.isfinite(size) and size > 0
    halvings = max(0, int(np.ceil(np.log2(size / reach)))) if finite else 0
    x = input * mx.array(2.0**-halvings, input.dtype)
    eye = mx.broadcast_to(mx.eye(x.shape[-1], dtype=mx.float32).astype(x.dtype), x.shape)
    result = eye
    for k in range(18, 0, -1):
        result = eye + product(x, result) * mx.array(1.0 / k, x.dtype)
    for _ in range(halvings):
        result = product(result, result)
    return result


@composite("linalg.cross", at=namespace)
def linalg_cross(input, other, *, dim=-1):
    """The cross product along a dimension of size 3. torch.linalg.cross."""
    return _cross(input, other, dim)


@composite("cross")
@numpy_names
def cross(input, other, dim=None):
    """The cross product along dim, by default the first of size 3. torch.cross."""
    if dim is None:
        found = [d for d, n in enumerate(input.shape) if n == 3]
        if not found:
            raise RuntimeError("linalg.cross: no dimension of size 3 in input")
        dim = found[0]
    return _cross(input, other, dim)


def _cross(a, b, dim):
    from .shape import broadcast_tensors

    if a.ndim != b.ndim:
        raise RuntimeError("linalg.cross: inputs must have the same number of dimensions.")
    d = wrap_dim(dim, a.ndim)
    if a.shape[d] != 3 or b.shape[d] != 3:
        raise RuntimeError(
            f"linalg.cross: inputs dimension {dim} must have length 3. Got {a.shape[d]} and "
            f"{b.shape[d]}"
        )
    a, b = broadcast_tensors(a, b)
    return a.roll(-1, d) * b.roll(-2, d) - a.roll(-2, d) * b.roll(-1, d)


@composite("linalg.vecdot", at=namespace)
def vecdot(x, y, *, dim=-1):
    """Inner products along dim, the first argument conjugated. torch.linalg.vecdot."""
    if not x.dtype.is_floating_point and not x.dtype.is_complex:
        raise RuntimeError(
            "linalg.vecdot: Expected a floating point or complex tensor as input. Got "
            f"{x.dtype.torch_name}"
        )
    return ((x.conj() if x.dtype.is_complex else x) * y).sum(dim)


@composite("linalg.diagonal", at=namespace)
def linalg_diagonal(A, *, offset=0, dim1=-2, dim2=-1):
    """The diagonals of the last two dimensions. torch.linalg.diagonal."""
    return A.diagonal(offset, dim1, dim2)


@composite("linalg.vander", at=namespace)
def linalg_vander(x, *, N=None):
    """Powers 0 to N - 1 (by default as many as elements) of x [..., n] -> [..., n, N].

    torch.linalg.vander.
    """
    x = x if x.ndim else x.unsqueeze(0)
    count = x.shape[-1] if N is None else N
    if count <= 1:
        raise RuntimeError("N must be greater than 1.")
    ones = x.new_ones(*x.shape, 1)
    powers = x.unsqueeze(-1).expand(*x.shape, count - 1).cumprod(-1)
    return cat((ones.to(powers.dtype), powers), -1)
