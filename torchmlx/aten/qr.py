"""QR factorisations, and what Householder reflections are made into."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from .. import return_types
from ..core.op import op
from ._calling import host_function
from .lapack import check, namespace, transposed
from .triangular import triangular


def _gradient(primals, cotangents, outputs):
    q, r = outputs
    gq, gr = cotangents
    m, n = primals[0].shape[-2:]
    if q.shape[-1] > n:
        raise NotImplementedError(
            "The QR decomposition is not differentiable when mode='complete' and nrows > ncols"
        )
    left, rest = r[..., :m], None
    if n > m:  # A = [X, Y]: Q and the first columns of R are X's, Y = Q @ the others
        rest = q @ gr[..., m:]
        gq = gq + primals[0][..., m:] @ transposed(gr[..., m:])
        gr = gr[..., :m]
    inner = mx.triu(gr @ transposed(left) - transposed(q) @ gq)
    both = inner + transposed(inner)
    diagonal = mx.diagonal(both, 0, -2, -1) * 0.5
    both = mx.tril(both, -1) + mx.triu(both, 1) + _on_diagonal(diagonal)
    result = transposed(triangular(left, transposed(gq + q @ both), True, False))
    return result if rest is None else mx.concatenate((result, rest), -1)


def _on_diagonal(x: mx.array) -> mx.array:
    return mx.expand_dims(x, -1) * mx.eye(x.shape[-1], dtype=mx.float32).astype(x.dtype)


def _factors(a: np.ndarray, columns: int):
    """Q's first columns and R. NumPy's own Q took three times as long for 4000 x 36, by LAPACK's
    orgqr in float64 (2 cores, 2026-12-03).
    """
    packed, tau = _reflections(a)
    m, n = a.shape[-2:]
    q = _reflected(packed[..., : min(m, n)], tau, np.eye(m, columns, dtype=a.dtype), False)
    return q, np.triu(packed[..., :columns, :])


_FACTOR = {
    "reduced": host_function("linalg_qr", lambda a: _factors(a, min(a.shape[-2:])), _gradient),
    "complete": host_function("linalg_qr", lambda a: _factors(a, a.shape[-2]), _gradient),
}


def _no_gradient(primals, cotangents, outputs):
    raise NotImplementedError(
        "The derivative of linalg.qr depends on Q, which is not computed when mode='r'. Please use "
        "linalg.qr(A, mode='reduced') if you are going to require gradients through R."
    )


_only_r = host_function("linalg_qr", lambda a: np.linalg.qr(a, "r"), _no_gradient)


def _qr_of(x: mx.array, mode: str):
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), "
            "'r', or 'complete'"
        )
    if mode == "r":
        return mx.zeros((0,), x.dtype), _only_r(x)
    return _FACTOR[mode](x)


@op("linalg.qr", at=namespace)
def qr(A, mode="reduced"):
    """(Q, R), Q with orthonormal columns. torch.linalg.qr."""
    check("qr", A, square=False)
    return return_types.make("linalg_qr", *_qr_of(A, mode))


@op("torch.qr", at=("torch", "Tensor"))
def _torch_qr(input, some=True):
    """(Q, R). torch.qr."""
    check("qr", input, square=False)
    return return_types.make("qr", *_qr_of(input, "reduced" if some else "complete"))


def _reflections(a: np.ndarray):
    """(reflections below R, their factors), as LAPACK's geqrf packs them."""
    packed, tau = np.linalg.qr(a, "raw")
    return np.swapaxes(packed, -1, -2), tau.astype(a.dtype)


@op(at=("torch", "Tensor"))
def geqrf(input):
    """(a, tau): R and the reflections whose product is Q. torch.geqrf."""
    check("qr", input, square=False)
    return return_types.make("geqrf", *host_function("geqrf", _reflections)(input))


def _reflected(a, tau, x, adjoint: bool):
    """Q @ x, or Q^H @ x, of Q the product of reflections 1 - tau v v^H; v is packed below a's
    diagonal. They are applied at once, as Q = 1 - V T V^H (Schreiber, Van Loan 1989).
    """
    count = tau.shape[-1]
    v, one = np.array(a[..., :count], order="C"), np.eye(count, dtype=a.dtype)
    v[..., :count, :] = np.tril(v[..., :count, :], -1) + one
    vh = np.swapaxes(v, -1, -2).conj()
    t = np.linalg.solve(one + tau[..., None] * np.triu(vh @ v, 1), tau[..., None] * one)
    y = v @ ((np.swapaxes(t, -1, -2).conj() if adjoint else t) @ (vh @ x))
    return np.subtract(x, y, out=y)


def _product(a: np.ndarray, tau: np.ndarray) -> np.ndarray:
    return _reflected(a, tau, np.eye(*a.shape[-2:], dtype=a.dtype), False)


def _reflected_by_mlx(a, tau, x, adjoint: bool) -> mx.array:
    """`_reflected` in operations that MLX differentiates."""
    count = tau.shape[-1]
    rows = mx.arange(a.shape[-2])
    for k in range(count) if adjoint else reversed(range(count)):
        column = mx.where(rows < k, mx.zeros((), a.dtype), a[..., k])
        v = mx.where(rows == k, mx.ones((), a.dtype), column)
        factor = tau[..., k, None]
        along = mx.conj(v)[..., None, :] @ x
        x = x - ((mx.conj(factor) if adjoint else factor) * v)[..., None] * along
    return x


def _product_gradient(primals, cotangent, output):
    a, tau = primals
    eye = mx.broadcast_to(mx.eye(*a.shape[-2:], dtype=mx.float32).astype(a.dtype), a.shape)
    pulled = mx.vjp(lambda *p: _reflected_by_mlx(*p, eye, False), list(primals), [cotangent])[1]
    return tuple(pulled)


_householder = host_function("linalg_householder_product", _product, _product_gradient)


@op("linalg.householder_product", at=namespace)
def householder_product(input, tau):
    """The first columns of the product of geqrf's reflections. torch.linalg.householder_product."""
    check("householder_product", input, square=False)
    if input.shape[-2] < input.shape[-1]:
        raise RuntimeError(
            "torch.linalg.householder_product: input.shape[-2] must be greater than or equal to "
            "input.shape[-1]"
        )
    if tau.shape[-1] > input.shape[-1]:
        raise RuntimeError(
            "torch.linalg.householder_product: input.shape[-1] must be greater than or equal to "
            "tau.shape[-1]"
        )
    return _householder(input, tau)


@op(at=("torch", "Tensor"))
def orgqr(input, input2):
    """torch.linalg.householder_product by LAPACK's name. torch.orgqr."""
    return _householder(input, input2)


@op(at=("torch", "Tensor"))
def ormqr(input, tau, other, left=True, transpose=False):
    """Q @ other (or other @ Q), Q by geqrf's reflections, not formed. torch.ormqr."""
    check("ormqr", input, square=False)

    # other @ Q is the adjoint of Q^H @ other^H.
    x = other if left else transposed(other)
    adjoint = transpose if left else not transpose

    def gradient(primals, cotangent, output):
        by_mlx = mx.vjp(lambda *p: _reflected_by_mlx(*p, adjoint), list(primals), [cotangent])
        return tuple(by_mlx[1])

    y = host_function("ormqr", lambda *p: _reflected(*p, adjoint), gradient)(input, tau, x)
    return y if left else transposed(y)
