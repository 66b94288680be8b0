"""LU factorisations with partial pivoting, and systems solved by them."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

from .. import return_types
from ..core.op import composite, op
from ._calling import from_host, host, host_function
from .lapack import check, identity, namespace, permuted, raise_where, same_batch, transposed
from .triangular import substitute, triangular

BLOCK = 64  # columns that are eliminated before the rest of the matrix is multiplied by them


def factors(a: np.ndarray, pivot: bool = True):
    """(L and U in one array, pivots from 1 int32, error codes int32) of matrices [..., m, n].

    LAPACK's getrf by blocks: NumPy has no LU, and MLX's knows float32 only.
    """
    *batch, m, n = a.shape
    a, least = a.reshape(math.prod(batch), m, n).copy(), min(m, n)
    pivots = np.broadcast_to(np.arange(1, least + 1, dtype=np.int32), (len(a), least)).copy()
    info = np.zeros(len(a), np.int32)
    with np.errstate(all="ignore"):
        for start in range(0, least, BLOCK):
            stop = min(start + BLOCK, least)
            for k in range(start, stop):
                _eliminate(a, k, stop, pivots if pivot else None, info)
            if stop < n:
                rows = a[:, start:stop]
                rows[..., stop:] = substitute(rows[..., start:stop], rows[..., stop:], False, True)
                a[:, stop:, stop:] -= a[:, stop:, start:stop] @ rows[..., stop:]
    return a.reshape(*batch, m, n), pivots.reshape(*batch, least), info.reshape(batch)


def _eliminate(a, k: int, stop: int, pivots, info) -> None:
    """Column k below the diagonal, in the columns before `stop`."""
    each = np.arange(len(a))
    if pivots is not None:
        column = a[:, k:, k]
        size = np.abs(column.real) + np.abs(column.imag)  # as LAPACK measures complex numbers
        row = k + size.argmax(-1)
        pivots[:, k] = row + 1
        a[each, k], a[each, row] = a[each, row], a[each, k].copy()
    zero = a[:, k, k] == 0
    info[zero & (info == 0)] = k + 1
    a[:, k + 1 :, k] /= np.where(zero, 1, a[:, k, k])[:, None]
    a[:, k + 1 :, k + 1 : stop] -= a[:, k + 1 :, k, None] * a[:, k, None, k + 1 : stop]


def order(pivots: np.ndarray, m: int) -> np.ndarray:
    """The rows [..., m] of A that P.T @ A has, given LAPACK's exchanges."""
    rows = np.broadcast_to(np.arange(m, dtype=np.int32), (*pivots.shape[:-1], m)).copy()
    count = math.prod(pivots.shape[:-1])
    flat, swaps = rows.reshape(count, m), pivots.reshape(count, pivots.shape[-1])
    each = np.arange(len(flat))
    for k in range(swaps.shape[-1]):
        other = swaps[:, k] - 1
        flat[each, k], flat[each, other] = flat[each, other], flat[each, k].copy()
    return flat.reshape(rows.shape)


def _order(pivots: mx.array, m: int, inverse: bool = False) -> mx.array:
    rows = order(host(mx.stop_gradient(pivots)), m)
    return mx.array(np.argsort(rows, -1).astype(np.int32) if inverse else rows)


def parts(compact: mx.array):
    """(L [..., m, k], U [..., k, n]) of both in one array."""
    m, n = compact.shape[-2:]
    k = min(m, n)
    lower = mx.tril(compact[..., :k], -1) + mx.eye(m, k).astype(compact.dtype)
    return lower, mx.triu(compact[..., :k, :])


def _right_divided(g: mx.array, upper: mx.array) -> mx.array:
    """g @ inverse(upper^H)."""
    return transposed(triangular(upper, transposed(g), True, False))


def _gradient(primals, cotangents, outputs):
    compact, pivots, _ = outputs
    g, (m, n) = cotangents[0], compact.shape[-2:]
    k = min(m, n)
    lower, upper = parts(compact)
    gl, gu = mx.tril(g[..., :k], -1), mx.triu(g[..., :k, :])
    square = upper[..., :k]
    below = transposed(lower[..., :k, :]) @ gl[..., :k, :]
    above = gu[..., :k] @ transposed(square)
    if n > k:
        below = below - gu[..., k:] @ transposed(upper[..., k:])
    if m > k:
        above = above - transposed(lower[..., k:, :]) @ gl[..., k:, :]
    inner = _right_divided(mx.tril(below, -1) + mx.triu(above), square)
    inner = mx.concatenate((inner, gu[..., k:]), -1)
    result = triangular(transposed(lower[..., :k, :]), inner, True, True)
    if m > k:
        result = mx.concatenate((result, _right_divided(gl[..., k:, :], square)), -2)
    return permuted(result, _order(pivots, m, inverse=True))


_FACTOR = {
    pivot: host_function("linalg_lu_factor", lambda a, p=pivot: factors(a, p), _gradient)
    for pivot in (True, False)
}
_ZERO = (
    "U[{info},{info}] is zero and using it on lu_solve would result in a division by zero. If you "
    "still want to perform the factorization, consider calling linalg.lu(A, pivot) or "
    "linalg.lu_factor_ex(A, pivot)"
)


@op("linalg.lu_factor_ex", at=namespace)
def lu_factor_ex(A, *, pivot=True, check_errors=False):
    """(LU, pivots, info): both factors in one matrix. torch.linalg.lu_factor_ex."""
    check("lu_factor", A, square=False)
    results = _FACTOR[pivot](A)
    if check_errors:
        raise_where("torch.linalg.lu_factor_ex", host(results[2]), _ZERO, RuntimeError)
    return return_types.make("linalg_lu_factor_ex", *results)


@op("linalg.lu_factor", at=namespace)
def lu_factor(A, *, pivot=True):
    """(LU, pivots): both factors in one matrix. torch.linalg.lu_factor."""
    check("lu_factor", A, square=False)
    compact, pivots, info = _FACTOR[pivot](A)
    raise_where("torch.linalg.lu_factor", host(info), _ZERO, RuntimeError)
    return return_types.make("linalg_lu_factor", compact, pivots)


def _exchange(pivots: mx.array, m: int, like: mx.array) -> mx.array:
    """P with A = P @ L @ U."""
    rows = _order(pivots, m, inverse=True)
    eye = mx.broadcast_to(identity(m, like), (*rows.shape, m))
    return permuted(eye, rows)


@op("linalg.lu", at=namespace)
def lu(A, *, pivot=True):
    """(P, L, U) with A = P @ L @ U; P is empty without pivoting. torch.linalg.lu."""
    check("lu", A, square=False)
    compact, pivots, _ = _FACTOR[pivot](A)
    none = mx.zeros((0,), A.dtype)
    exchange = _exchange(pivots, A.shape[-2], A) if pivot else none
    return return_types.make("linalg_lu", exchange, *parts(compact))


@op()
def lu_unpack(LU_data, LU_pivots, unpack_data=True, unpack_pivots=True):
    """(P, L, U) of a compact factorisation; what is not asked for is empty. torch.lu_unpack."""
    none = mx.zeros((0,), LU_data.dtype)
    if LU_pivots.dtype != mx.int32:
        raise RuntimeError(
            "torch.lu_unpack: LU_pivots is expected to be a contiguous tensor of torch.int32 dtype."
        )
    exchange = _exchange(LU_pivots, LU_data.shape[-2], LU_data) if unpack_pivots else none
    lower, upper = parts(LU_data) if unpack_data else (none, none)
    return return_types.make("lu_unpack", exchange, lower, upper)


@composite("torch.lu", at=("torch", "Tensor"))
def _torch_lu(A, pivot=True, get_infos=False):
    """(LU, pivots), and error codes if asked for. torch.lu."""
    results = lu_factor_ex(A, pivot=pivot)
    return tuple(results) if get_infos else tuple(lu_factor(A, pivot=pivot))


def solved(compact: mx.array, pivots: mx.array, b: mx.array, adjoint: bool = False) -> mx.array:
    """X with A @ X = b (A^H @ X = b), A by its factors."""
    compact, b = same_batch(compact, b)
    m = compact.shape[-1]
    rows = _order(mx.broadcast_to(pivots, (*compact.shape[:-2], m)), m, inverse=adjoint)
    if adjoint:
        x = triangular(transposed(compact), b, False, False)
        return permuted(triangular(transposed(compact), x, True, True), rows)
    x = triangular(compact, permuted(b, rows), False, True)
    return triangular(compact, x, True, False)


@op("linalg.lu_solve", at=namespace)
def linalg_lu_solve(LU, pivots, B, *, left=True, adjoint=False):
    """X with A @ X = B (X @ A = B), given lu_factor's results. torch.linalg.lu_solve."""
    check("lu_solve", LU)
    if left:
        return solved(LU, pivots, B, adjoint)
    return transposed(solved(LU, pivots, transposed(B), not adjoint))


@op(at=("torch", "Tensor"))
def lu_solve(input, LU_data, LU_pivots):
    """X with A @ X = input, given torch.lu's results. torch.lu_solve."""
    check("lu_solve", LU_data)
    return solved(LU_data, LU_pivots, input)


def error_codes(a: mx.array) -> np.ndarray:
    """For each matrix the first zero on U's diagonal, from 1; 0 if there is none."""
    return factors(host(mx.stop_gradient(a)))[2]


def from_factors(a: mx.array, b: mx.array) -> mx.array:
    """a @ x = b, a singular: x is what division by zero gives, as in torch, without a gradient."""
    a, b = (host(mx.stop_gradient(v)) for v in (a, b))
    compact, pivots, _ = factors(a)
    rows = np.broadcast_to(order(pivots, a.shape[-1])[..., None], b.shape)
    x = substitute(compact, np.take_along_axis(b, rows, -2), False, True)
    return from_host(substitute(compact, x, True, False))
