"""Inverses, solutions and determinants of square matrices."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

from .. import return_types
from ..core.layout import wrap_dims
from ..core.op import composite, op
from . import lu
from ._calling import host, host_function
from .lapack import check, identity, namespace, raise_where, same_batch, transposed

_SINGULAR = (
    "The diagonal element {info} is zero, the inversion could not be completed because the input "
    "matrix is singular."
)
_UNSOLVABLE = "The solver failed because the input matrix is singular."


def _inverse(a: np.ndarray) -> np.ndarray:
    try:
        return np.linalg.inv(a)
    except np.linalg.LinAlgError:
        raise_where("linalg.inv", lu.factors(a)[2], _SINGULAR)
        raise


def _solution(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    try:
        return np.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        raise_where("torch.linalg.solve", lu.factors(a)[2], _UNSOLVABLE)
        raise


inverse_of = host_function(
    "linalg_inv", _inverse, lambda p, c, o: -(transposed(o) @ c @ transposed(o))
)


@op("linalg.inv", at=namespace)
def inv(A):
    """The inverse of square matrices. torch.linalg.inv."""
    check("inv", A)
    return inverse_of(A)


@op("inverse", at=("torch", "Tensor"))
def inverse(input):
    """The inverse of square matrices. torch.inverse."""
    check("inv", input)
    return inverse_of(input)


def _solve_gradient(primals, c, x):
    a, b = primals
    right = _solve(transposed(a), c)
    return (-(right @ transposed(x)), right)


_solve = host_function("linalg_solve", _solution, _solve_gradient)


def _systems(A, B, left: bool):
    """(a, b, whether B holds vectors) with a @ x = b, one batch of matrices each."""
    check("solve", A)
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    b = mx.expand_dims(B, -1) if vector else B
    a, b = (A, b) if left else (mx.swapaxes(A, -1, -2), mx.swapaxes(b, -1, -2))
    if a.shape[-1] != b.shape[-2]:
        raise RuntimeError(
            "linalg.solve: Incompatible shapes of A and B for the equation "
            f"{'AX = B' if left else 'XA = B'}"
            f" ({A.shape[-2]}x{A.shape[-1]} and {b.shape[-2]}x{b.shape[-1]})"
        )
    return *same_batch(a, b), vector


def _shaped(x: mx.array, left: bool, vector: bool) -> mx.array:
    x = x if left else mx.swapaxes(x, -1, -2)
    return mx.squeeze(x, -1) if vector else x


@op("linalg.solve", at=namespace)
def solve(A, B, *, left=True):
    """X with A @ X = B (or X @ A = B), for matrices or vectors B. torch.linalg.solve."""
    a, b, vector = _systems(A, B, left)
    return _shaped(_solve(a, b), left, vector)


@op("linalg.solve_ex", at=namespace)
def solve_ex(A, B, *, left=True, check_errors=False):
    """(result, info): where info is not 0, A is singular. torch.linalg.solve_ex."""
    a, b, vector = _systems(A, B, left)
    info = lu.error_codes(A)
    if check_errors:
        raise_where("torch.linalg.solve_ex", info, _UNSOLVABLE)
    x = lu.from_factors(a, b) if info.any() else _solve(a, b)
    return return_types.make("linalg_solve_ex", _shaped(x, left, vector), mx.array(info))


@op("linalg.inv_ex", at=namespace)
def inv_ex(A, *, check_errors=False):
    """(inverse, info): where info is not 0, A is singular. torch.linalg.inv_ex."""
    check("inv", A)
    info = lu.error_codes(A)
    if check_errors:
        raise_where("linalg.inv_ex", info, _SINGULAR)
    eye = mx.broadcast_to(identity(A.shape[-1], A), A.shape)
    x = lu.from_factors(A, eye) if info.any() else inverse_of(A)
    return return_types.make("linalg_inv_ex", x, mx.array(info))


def _cofactors(a: np.ndarray) -> np.ndarray:
    """The slope of the determinant, also of singular matrices: U diag(products of the other
    singular values) V^H.
    """
    u, values, vh = np.linalg.svd(a)
    n = values.shape[-1]
    others = np.where(np.eye(n, dtype=bool), 1, values[..., None, :]).prod(-1)
    turn = np.linalg.det(u) * np.linalg.det(vh)
    return ((u * (others * np.conj(turn)[..., None])[..., None, :]) @ vh).astype(a.dtype)


def _det_gradient(primals, c, o):
    a = primals[0]
    c = mx.expand_dims(c, (-1, -2))
    if (host(mx.stop_gradient(o)) == 0).any():  # no inverse; a second gradient is refused
        return c * host_function("linalg_det", _cofactors)(a)
    return c * mx.expand_dims(o, (-1, -2)) * transposed(inverse_of(a))


_det = host_function("linalg_det", lambda a: np.linalg.det(a).astype(a.dtype), _det_gradient)


def _determinant(name: str, at: tuple[str, ...]):
    @op(name, at=at)
    def det(input):
        check("det", input)
        return _det(input)

    det.__doc__ = "The determinant of square matrices. torch.linalg.det."


_determinant("det", ("torch", "Tensor", "linalg"))


def _log_determinant(a: np.ndarray):
    sign, log = np.linalg.slogdet(a)
    real = np.float32 if a.dtype.itemsize <= 8 and a.dtype != np.float64 else np.float64
    return sign.astype(a.dtype), log.astype(real)


def _slogdet_gradient(primals, cotangents, outputs):
    return mx.expand_dims(cotangents[1], (-1, -2)) * transposed(inverse_of(primals[0]))


_slogdet = host_function("linalg_slogdet", _log_determinant, _slogdet_gradient)


@op("linalg.slogdet", at=namespace)
def linalg_slogdet(A):
    """(sign, logabsdet) of square matrices. torch.linalg.slogdet."""
    check("slogdet", A)
    return return_types.make("linalg_slogdet", *_slogdet(A))


@op()
def slogdet(input):
    """(sign, logabsdet) of square matrices. torch.slogdet."""
    check("slogdet", input)
    return return_types.make("slogdet", *_slogdet(input))


@op()
def logdet(input):
    """log of the determinant, NaN where that is negative. torch.logdet."""
    check("logdet", input)
    sign, log = _slogdet(input)
    if sign.dtype == mx.complex64:
        return mx.log(sign) + log
    return mx.where(sign < 0, mx.array(float("nan"), log.dtype), log)


@composite("linalg.tensorinv", at=namespace)
def tensorinv(A, ind=2):
    """The inverse of A as a map from its dims after `ind` to the first ones.

    torch.linalg.tensorinv.
    """
    if ind <= 0:
        raise RuntimeError("Expected a strictly positive integer for 'ind'")
    first, last = A.shape[:ind], A.shape[ind:]
    if math.prod(first) != math.prod(last):
        raise RuntimeError(
            "Expected self to satisfy the requirement prod(self.shape[ind:]) == "
            f"prod(self.shape[:ind]), but got {math.prod(last)} != {math.prod(first)}"
        )
    return inv(A.reshape(math.prod(first), -1)).reshape(*last, *first)


@composite("linalg.tensorsolve", at=namespace)
def tensorsolve(A, B, dims=None):
    """X with tensordot(A, X, X.ndim) = B; dims of A are moved to its end first.

    torch.linalg.tensorsolve.
    """
    if dims is not None:
        moved = wrap_dims(dims, A.ndim)
        A = A.movedim(moved, tuple(range(A.ndim - len(moved), A.ndim)))
    shape = A.shape[B.ndim :]
    if math.prod(shape) != math.prod(A.shape[: B.ndim]):
        raise RuntimeError(
            "Expected self to satisfy the requirement prod(self.shape[other.ndim:]) == "
            f"prod(self.shape[:other.ndim]), but got {math.prod(shape)} != "
            f"{math.prod(A.shape[: B.ndim])}"
        )
    return solve(A.reshape(-1, math.prod(shape)), B.reshape(-1)).reshape(*shape)
