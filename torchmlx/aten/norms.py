"""Norms of vectors and matrices, distances, covariance."""

from __future__ import annotations

import math

import mlx.core as mx

from ..core.layout import wrap_dims
from ..core.op import TABLE, composite, op
from ..core.tensor import Tensor
from ._calling import (
    cast,
    collapse,
    is_float,
    numpy_names,
    reduced_axes,
    torch_name,
    wide,
)
from .lapack import check
from .linalg import inverse_of
from .reduce import check_norm_dtype, total, vector_norm, vector_norm_of
from .spectral import singular_values


def _real(x: mx.array):
    return mx.float32 if x.dtype == mx.complex64 else x.dtype


def _end(x: mx.array, axis: int, largest: bool) -> mx.array:
    """The largest (0 of nothing) or smallest along an axis, which is kept."""
    if x.shape[axis] == 0:
        if not largest:
            raise IndexError(f"amin(): Expected reduction dim {axis} to have non-zero size.")
        axis %= x.ndim
        return mx.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype)
    return collapse(mx.max if largest else mx.min, x, axis, True)


def _matrix_norm_of(x: mx.array, ord, dims, keepdim: bool) -> mx.array:
    """A matrix norm over two dims: by rows, by columns, or of the singular values."""
    rows, columns = dims
    if ord in (1, -1, math.inf, -math.inf):
        inner, outer = (rows, columns) if abs(ord) == 1 else (columns, rows)
        sums = total(mx.abs(wide(x)), (inner,), True)
        result = _end(sums, outer, ord > 0)
    elif ord in (2, -2, "nuc"):
        if x.dtype in (mx.float16, mx.bfloat16):
            raise RuntimeError(
                "linalg.matrix_norm: Low precision dtypes not supported for this order"
            )
        values = singular_values(_last(x, dims))
        if ord == "nuc":
            result = total(values, (values.ndim - 1,))
        else:
            result = mx.squeeze(_end(values, -1, ord > 0), -1)
        result = mx.expand_dims(result, tuple(sorted((rows, columns))))
    else:
        raise RuntimeError(f"linalg.matrix_norm: Order {ord} not supported.")
    return result if keepdim else mx.squeeze(result, (rows, columns))


def _last(x: mx.array, dims) -> mx.array:
    order = [d for d in range(x.ndim) if d not in dims]
    return mx.transpose(x, [*order, *dims])


@op("linalg.matrix_norm", at=("linalg",))
@numpy_names
def matrix_norm(A, ord="fro", dim=(-2, -1), keepdim=False, *, dtype=None):
    """A norm of matrices: "fro", "nuc", inf, -inf, 1, -1, 2, -2. torch.linalg.matrix_norm."""
    check_norm_dtype("linalg.matrix_norm", A, dtype)
    return _matrix_norm(A, ord, dim, keepdim, dtype)


def _matrix_norm(x: mx.array, ord, dim, keepdim: bool, dtype) -> mx.array:
    x = cast(x, dtype)
    if x.ndim < 2:
        raise RuntimeError(
            "linalg.matrix_norm: The input tensor A must have at least 2 dimensions."
        )
    dims = wrap_dims(dim, x.ndim)
    if len(dims) != 2:
        raise RuntimeError(
            f"linalg.matrix_norm: dim must be a 2-tuple. Got {' '.join(map(str, dims))}"
        )
    if ord == "fro":
        return vector_norm_of(x, 2, dims, keepdim).astype(_real(x))
    return _matrix_norm_of(x, ord, dims, keepdim).astype(_real(x))


@op("linalg.norm", at=("linalg",))
@numpy_names
def linalg_norm(A, ord=None, dim=None, keepdim=False, *, dtype=None):
    """A vector norm (one dim, or none and no ord) or a matrix norm (two dims).

    torch.linalg.norm.
    """
    check_norm_dtype("linalg.norm", A, dtype)
    if ord is None:
        return vector_norm_of(cast(A, dtype), 2, dim, keepdim).astype(_real(cast(A, dtype)))
    if dim is None and A.ndim not in (1, 2):
        raise RuntimeError(
            "linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got "
            f"{A.ndim}D."
        )
    dims = reduced_axes(dim, A.ndim)
    if len(dims) == 2:
        return _matrix_norm(A, ord, dims, keepdim, dtype)
    if isinstance(ord, str):
        raise RuntimeError(f"linalg.norm: Order {ord} not supported for vectors.")
    return vector_norm_of(cast(A, dtype), ord, dims, keepdim).astype(_real(cast(A, dtype)))


@composite()
@numpy_names
def norm(input, p="fro", dim=None, keepdim=False, dtype=None):
    """The p-norm over dims (all by default), "fro", or "nuc" of matrices. torch.norm."""
    if not is_float(input._read()):
        raise RuntimeError(
            "norm(): the input dtype should be either floating point or complex dtypes. Got "
            f"{input.dtype.torch_name}"
        )
    if p == "nuc":
        dims = (-2, -1) if dim is None else dim
        return matrix_norm(input, "nuc", dims, keepdim, dtype=dtype)
    return vector_norm(input, 2 if p in ("fro", None) else p, dim, keepdim, dtype=dtype)


@op("linalg.cond", at=("linalg",))
def cond(A, p=None):
    """The condition number of matrices. torch.linalg.cond."""
    check("cond", A, square=False)
    if p in (None, 2, -2):
        values = singular_values(A)
        low, high = collapse(mx.min, values, -1), collapse(mx.max, values, -1)
        return low / high if p == -2 else high / low
    both = (_matrix_norm(a, p, (-2, -1), False, None) for a in (A, inverse_of(A)))
    return next(both) * next(both)


@composite()
def dist(input, other, p=2):
    """The p-norm of the difference. torch.dist."""
    return vector_norm(input - other, p)


# Differences of this many elements are formed at once; beyond, the 2-norm comes from a product.
_DIRECT = 1 << 24


@composite(at=("torch",))
def cdist(x1, x2, p=2.0, compute_mode="use_mm_for_euclid_dist_if_necessary"):
    """p-norm distances between all pairs of rows, [..., P, M] and [..., R, M] to [..., P, R].

    torch.cdist.
    """
    for x, name in ((x1, "X1"), (x2, "X2")):
        if not x.dtype.is_floating_point:
            raise RuntimeError(
                f"cdist only supports floating-point dtypes, {name} got: {x.dtype.torch_name}"
            )
        if x.ndim < 2:
            raise RuntimeError(f"cdist only supports at least 2D tensors, {name} got: {x.ndim}D")
    if x1.shape[-1] != x2.shape[-1]:
        raise RuntimeError(
            f"X1 and X2 must have the same number of columns. X1: {x1.shape[-1]} X2: {x2.shape[-1]}"
        )
    if p < 0:
        raise RuntimeError("cdist only supports non-negative p values")
    if p == 2 and x1.shape[-2] * x2.shape[-2] * x1.shape[-1] > _DIRECT:
        squares = (x1 * x1).sum(-1, keepdim=True) + (x2 * x2).sum(-1).unsqueeze(-2)
        return (squares - 2 * (x1 @ x2.mT)).clamp_min(0).sqrt()
    return _distances(x1, x2, p)


@op("_distances", at=())
def _distances(x1, x2, p):
    if x1.dtype in (mx.float16, mx.bfloat16):
        raise NotImplementedError(f"\"cdist\" not implemented for '{torch_name(x1)}'")
    apart = mx.expand_dims(x1, -2) - mx.expand_dims(x2, -3)
    if 0 in apart.shape:
        return mx.zeros(apart.shape[:-1], apart.dtype)
    if p == 2:  # the square root has no slope at 0, torch takes 0
        squares = total(mx.square(apart), (apart.ndim - 1,))
        zero = squares == 0
        return mx.where(zero, 0.0, mx.sqrt(mx.where(zero, 1.0, squares))).astype(x1.dtype)
    return vector_norm_of(apart, p, -1, False)


@composite(inplace=True)
def renorm(input, p, dim, maxnorm):
    """Slices along dim scaled down to a p-norm of at most maxnorm. torch.renorm."""
    if input.ndim < 2:
        raise RuntimeError(
            f"renorm: input needs at least 2 dimensions, got {input.ndim} dimensions"
        )
    dims = [d for d in range(input.ndim) if d != dim % input.ndim]
    lengths = vector_norm(input, p, dims, True)
    scale = TABLE["where"].call(lengths > maxnorm, maxnorm / (lengths + 1e-7), 1.0)
    return (input * scale.to(input.dtype)).contiguous()


@composite()
def cov(input, *, correction=1, fweights=None, aweights=None):
    """The covariance matrix of variables (rows) over observations (columns). torch.cov."""
    if input.ndim > 2:
        raise RuntimeError(
            "cov(): expected input to have two or fewer dimensions but got an input with "
            f"{input.ndim} "
            "dimensions"
        )
    x = input.reshape(1, -1) if input.ndim < 2 else input
    weights = None
    for w in (fweights, aweights):
        if w is not None:
            weights = w if weights is None else weights * w
    n = x.shape[1] if weights is None else weights.sum()
    mean = x.sum(1, keepdim=True) / n if weights is None else (x * weights).sum(1, keepdim=True) / n
    norm_ = n - correction
    if aweights is not None and correction:
        norm_ = n - correction * (weights * aweights).sum() / n
    apart = x - mean
    left = apart if weights is None else apart * weights
    norm_ = max(norm_, 0) if not isinstance(norm_, Tensor) else norm_.clamp_min(0)
    result = (left @ (apart.conj() if apart.dtype.is_complex else apart).mT) / norm_
    return result.squeeze()


@composite()
def corrcoef(input):
    """The correlation coefficients of variables (rows). torch.corrcoef."""
    c = cov(input)
    if c.ndim == 0:
        return c / c
    spread = c.diagonal().sqrt()
    r = c / spread.unsqueeze(1) / spread.unsqueeze(0)
    return r if r.dtype.is_complex else r.clamp(-1, 1)
