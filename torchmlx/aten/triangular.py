"""Triangular systems, and the Cholesky factorisation."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

from .. import return_types
from ..core.op import op
from ._calling import host, host_function
from .lapack import check, identity, namespace, raise_where, same_batch, transposed


def substitute(a: np.ndarray, b: np.ndarray, upper: bool, unit: bool) -> np.ndarray:
    """x with a @ x = b, by rows; only that triangle of a is read, no diagonal if `unit`."""
    n = a.shape[-1]
    x = np.zeros_like(b)
    with np.errstate(all="ignore"):
        for i in range(n - 1, -1, -1) if upper else range(n):
            known = slice(i + 1, n) if upper else slice(0, i)
            row = b[..., i, :] - (a[..., i : i + 1, known] @ x[..., known, :])[..., 0, :]
            x[..., i, :] = row if unit else row / a[..., i, i, None]
    return x


def triangular(a: mx.array, b: mx.array, upper: bool, unit: bool) -> mx.array:
    """`substitute` of mx.arrays, with its gradient."""

    def gradient(primals, c, x):
        right = triangular(transposed(primals[0]), c, not upper, unit)
        full = -(right @ transposed(x))
        kept = mx.triu(full, 1 if unit else 0) if upper else mx.tril(full, -1 if unit else 0)
        return (kept, right)

    run = host_function(
        "linalg_solve_triangular", lambda u, v: substitute(u, v, upper, unit), gradient
    )
    return run(a, b)


@op("linalg.solve_triangular", at=namespace)
def solve_triangular(A, B, *, upper, left=True, unitriangular=False):
    """X with A @ X = B (or X @ A = B), A triangular: only that triangle is read.

    torch.linalg.solve_triangular.
    """
    check("solve_triangular", A)
    if left:
        return triangular(*same_batch(A, B), upper, unitriangular)
    a, b = same_batch(mx.swapaxes(A, -1, -2), mx.swapaxes(B, -1, -2))
    return mx.swapaxes(triangular(a, b, not upper, unitriangular), -1, -2)


@op(at=("torch", "Tensor"))
def triangular_solve(input, A, upper=True, transpose=False, unitriangular=False):
    """(solution, A) of a triangular system. torch.triangular_solve."""
    check("triangular_solve", A)
    a = mx.swapaxes(A, -1, -2) if transpose else A
    x = triangular(*same_batch(a, input), upper != transpose, unitriangular)
    return return_types.make("triangular_solve", x, A)


def _cholesky_gradient(primals, cotangents, outputs):
    factor = outputs[0]
    inner = mx.tril(transposed(factor) @ cotangents[0])
    half = inner - 0.5 * inner * identity(inner.shape[-1], inner)
    left = triangular(transposed(factor), half, True, False)
    full = transposed(triangular(transposed(factor), transposed(left), True, False))
    return 0.5 * (full + transposed(full))


def _lower_factor(a: np.ndarray):
    """(L, error codes): 0, or the order of the first minor that is not positive."""
    try:
        return np.linalg.cholesky(a), np.zeros(a.shape[:-2], np.int32)
    except np.linalg.LinAlgError:
        flat = a.reshape(math.prod(a.shape[:-2]), *a.shape[-2:])
        factors, info = zip(*map(_columns, flat), strict=True)
        return np.stack(factors).reshape(a.shape), np.array(info, np.int32).reshape(a.shape[:-2])


def _columns(a: np.ndarray):
    """LAPACK's potf2: column by column, until a pivot is not positive."""
    lower = np.tril(a)
    for k in range(len(a)):
        pivot = (lower[k, k] - lower[k, :k] @ lower[k, :k].conj()).real
        lower[k, k] = pivot
        if not pivot > 0:
            return lower, k + 1
        lower[k, k] = np.sqrt(pivot)
        rest = lower[k + 1 :, k] - lower[k + 1 :, :k] @ lower[k, :k].conj()
        lower[k + 1 :, k] = rest / lower[k, k]
    return lower, 0


_factor = host_function("linalg_cholesky", _lower_factor, _cholesky_gradient)
_INDEFINITE = (
    "The factorization could not be completed because the input is not positive-definite (the "
    "leading minor of order {info} is not positive-definite)."
)


def _checked_factor(name: str, x: mx.array, upper: bool) -> mx.array:
    check("cholesky", x)
    factor, info = _factor(x)
    raise_where(name, host(info), _INDEFINITE)
    return transposed(factor) if upper else factor


@op("linalg.cholesky_ex", at=namespace)
def cholesky_ex(A, *, upper=False, check_errors=False):
    """(L, info): where info is not 0, A is not positive-definite. torch.linalg.cholesky_ex."""
    check("cholesky", A)
    factor, info = _factor(A)
    if check_errors:
        raise_where("linalg.cholesky_ex", host(info), _INDEFINITE)
    return return_types.make("linalg_cholesky_ex", transposed(factor) if upper else factor, info)


@op("linalg.cholesky", at=namespace)
def cholesky(A, *, upper=False):
    """L with L @ L^H = A (or U with U^H @ U = A), A positive-definite. torch.linalg.cholesky."""
    return _checked_factor("linalg.cholesky", A, upper)


@op("torch.cholesky", at=("torch", "Tensor"))
def _cholesky(input, upper=False):
    """L with L @ L^H = input (or U). torch.cholesky."""
    return _checked_factor("cholesky", input, upper)


@op(at=("torch", "Tensor"))
def cholesky_inverse(input, upper=False):
    """The inverse of a matrix, given its Cholesky factor. torch.cholesky_inverse."""
    check("cholesky_inverse", input)
    eye = mx.broadcast_to(identity(input.shape[-1], input), input.shape)
    x = triangular(input, eye, upper, False)
    return x @ transposed(x) if upper else transposed(x) @ x


@op(at=("torch", "Tensor"))
def cholesky_solve(input, L, upper=False):
    """The solution of a system, given the Cholesky factor of its matrix. torch.cholesky_solve."""
    check("cholesky_solve", L)
    lower = transposed(L) if upper else L
    lower, b = same_batch(lower, input)
    return triangular(transposed(lower), triangular(lower, b, False, False), True, False)
