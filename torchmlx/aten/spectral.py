"""Singular values and eigenvalues, and what is built on them."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from .. import return_types
from ..core.op import TABLE, composite, op
from ._calling import collapse, host, host_function
from .lapack import check, identity, namespace, transposed
from .linalg import inverse_of


@op("torch.svd", at=("torch", "Tensor"))
def _torch_svd(input, some=True, compute_uv=True):
    """(U, S, V) with input = U diag(S) V^H. torch.svd."""
    check("svd", input, square=False)
    u, values, vh = _svd_of(input, not some)
    v = transposed(vh)
    if not compute_uv:
        u, v = mx.zeros_like(u), mx.zeros_like(v)
    return return_types.make("svd", u, values, v)


def _svd_gradient(primals, cotangents, outputs):
    u, values, vh = outputs
    gu, gs, gvh = cotangents
    k = values.shape[-1]
    if u.shape[-1] > k or vh.shape[-2] > k:
        raise NotImplementedError(
            "The singular vectors in the case full_matrices=True are not differentiable: pass "
            "full_matrices=False"
        )
    s = mx.expand_dims(values, -2).astype(u.dtype)  # multiplies columns
    v, gv = transposed(vh), transposed(gvh)
    gaps = (mx.expand_dims(values, -2) - mx.expand_dims(values, -1)) * (
        mx.expand_dims(values, -2) + mx.expand_dims(values, -1)
    )
    eye = identity(k, values)
    inverse_gaps = ((1 - eye) / mx.where(eye != 0, mx.array(1, gaps.dtype), gaps)).astype(u.dtype)
    of_u, of_v = transposed(u) @ gu, transposed(v) @ gv
    inner = (of_u - transposed(of_u)) * inverse_gaps * s
    inner = inner + mx.swapaxes(s, -1, -2) * ((of_v - transposed(of_v)) * inverse_gaps)
    inner = inner + (eye * mx.expand_dims(gs, -2)).astype(u.dtype)
    if u.dtype == mx.complex64:
        turn = (of_u - transposed(of_u)) * 0.5 * eye.astype(u.dtype)
        inner = inner + turn / s
    result = u @ inner @ vh
    m, n = primals[0].shape[-2:]
    if m > k:
        beside = gu / s
        result = result + (beside - u @ (transposed(u) @ beside)) @ vh
    if n > k:
        beside = mx.swapaxes(1 / s, -1, -2) * gvh
        result = result + u @ (beside - (beside @ v) @ vh)
    return result


_SVD = {
    full: host_function("linalg_svd", lambda a, f=full: tuple(np.linalg.svd(a, f)), _svd_gradient)
    for full in (True, False)
}


def _svd_of(x: mx.array, full: bool):
    return _SVD[bool(full)](x)


@op("linalg.svd", at=namespace)
def svd(A, full_matrices=True, *, driver=None):
    """(U, S, Vh), singular values descending. torch.linalg.svd."""
    check("svd", A, square=False)
    return return_types.make("linalg_svd", *_svd_of(A, full_matrices))


def _values_gradient(primals, c, o):
    u, _, vh = _svd_of(primals[0], False)
    return (u * mx.expand_dims(c, -2)) @ vh


singular_values = host_function(
    "linalg_svdvals", lambda a: np.linalg.svd(a, compute_uv=False), _values_gradient
)


@op("linalg.svdvals", at=namespace)
def svdvals(A, *, driver=None):
    """Singular values, descending. torch.linalg.svdvals."""
    check("svdvals", A, square=False)
    return singular_values(A)


def _eigh_gradient(primals, cotangents, outputs):
    values, vectors = outputs
    gaps = mx.expand_dims(values, -2) - mx.expand_dims(values, -1)
    inverse_gaps = mx.where(
        gaps == 0, mx.zeros((), gaps.dtype), 1.0 / mx.where(gaps == 0, 1.0, gaps)
    )
    inner = (transposed(vectors) @ cotangents[1]) * inverse_gaps
    diagonal = mx.eye(values.shape[-1]).astype(values.dtype) * mx.expand_dims(cotangents[0], -2)
    full = vectors @ (inner + diagonal) @ transposed(vectors)
    return 0.5 * (full + transposed(full))


@op("linalg.eigh", at=namespace)
def eigh(A, UPLO="L"):
    """(eigenvalues ascending, eigenvectors) of symmetric or Hermitian matrices.

    torch.linalg.eigh.
    """
    check("eigh", A)
    run = host_function("linalg_eigh", lambda a: tuple(np.linalg.eigh(a, UPLO)), _eigh_gradient)
    return return_types.make("linalg_eigh", *run(A))


@op("linalg.eigvalsh", at=namespace)
def eigvalsh(A, UPLO="L"):
    """Eigenvalues, ascending, of symmetric or Hermitian matrices. torch.linalg.eigvalsh."""
    check("eigvalsh", A)
    return host_function("linalg_eigh", lambda a: tuple(np.linalg.eigh(a, UPLO)), _eigh_gradient)(
        A
    )[0]


def _from_eigen(vectors, inner, like: mx.array) -> mx.array:
    """V^-H @ inner @ V^H, real where the matrix was."""
    adjoint = transposed(vectors)
    result = inverse_of(adjoint) @ (inner @ adjoint)
    return result if like.dtype == mx.complex64 else mx.real(result).astype(like.dtype)


def _eig_gradient(primals, cotangents, outputs):
    values, vectors = outputs
    gl, gv = cotangents
    eye = identity(values.shape[-1], values)
    along = transposed(vectors) @ gv
    length = mx.real(mx.diagonal(along, 0, -2, -1)).astype(along.dtype)
    inner = along - (transposed(vectors) @ vectors) * mx.expand_dims(length, -2)
    gaps = mx.conj(mx.expand_dims(values, -2) - mx.expand_dims(values, -1))
    inner = (1 - eye) * inner / mx.where(eye != 0, mx.array(1, gaps.dtype), gaps)
    return _from_eigen(vectors, inner + eye * mx.expand_dims(gl, -2), primals[0])


def _eigvals_gradient(primals, c, o):
    values, vectors = _eig(primals[0])
    return _from_eigen(vectors, identity(c.shape[-1], c) * mx.expand_dims(c, -2), primals[0])


_eig = host_function(
    "linalg_eig",
    lambda a: tuple(v.astype(np.complex64) for v in np.linalg.eig(a)),
    _eig_gradient,
)
_eigvals = host_function(
    "linalg_eigvals", lambda a: np.linalg.eigvals(a).astype(np.complex64), _eigvals_gradient
)


@op("linalg.eig", at=namespace)
def eig(A):
    """(eigenvalues, eigenvectors) of square matrices, complex64. torch.linalg.eig."""
    check("eig", A)
    return return_types.make("linalg_eig", *_eig(A))


@op("linalg.eigvals", at=namespace)
def eigvals(A):
    """Eigenvalues of square matrices, complex64. torch.linalg.eigvals."""
    check("eigvals", A)
    return _eigvals(A)


def _pseudo_inverse(x: mx.array, rcond, hermitian: bool) -> mx.array:
    def compute(a):
        limit = max(a.shape[-2:]) * np.finfo(a.dtype).eps if rcond is None else rcond
        return np.linalg.pinv(a, rcond=limit, hermitian=hermitian).astype(a.dtype)

    def gradient(primals, c, o):
        a = primals[0]
        left = mx.eye(a.shape[-2], dtype=mx.float32).astype(a.dtype) - a @ o
        right = mx.eye(a.shape[-1], dtype=mx.float32).astype(a.dtype) - o @ a
        c, adjoint = transposed(c), transposed(o)
        return left @ c @ o @ adjoint + adjoint @ o @ c @ right - adjoint @ transposed(c) @ adjoint

    return host_function("linalg_pinv", compute, gradient)(x)


@op("linalg.pinv", at=namespace)
def pinv(A, *, atol=None, rtol=None, hermitian=False):
    """The pseudo-inverse. torch.linalg.pinv."""
    check("pinv", A, square=hermitian)
    return _pseudo_inverse(A, rtol, hermitian)


@op()
def pinverse(input, rcond=1e-15):
    """The pseudo-inverse. torch.pinverse."""
    check("pinv", input, square=False)
    return _pseudo_inverse(input, rcond, False)


@op("linalg.matrix_rank", at=namespace)
def matrix_rank(A, *, tol=None, atol=None, rtol=None, hermitian=False):
    """How many singular values exceed the tolerance, int64. torch.linalg.matrix_rank."""
    check("matrix_rank", A, square=hermitian)
    values = host(singular_values(A))
    largest = values.max(-1, keepdims=True, initial=0)
    absolute = tol if tol is not None else atol
    if rtol is None:
        rtol = 0 if absolute is not None else max(A.shape[-2:]) * np.finfo(values.dtype).eps
    absolute, relative = (_for_each(v) for v in (0 if absolute is None else absolute, rtol))
    limit = np.maximum(absolute, relative * largest)
    return mx.array(np.asarray((values > limit).sum(-1), np.int64))


def _for_each(tolerance):
    """A number, or one for each matrix, against singular values."""
    return host(tolerance)[..., None] if isinstance(tolerance, mx.array) else tolerance


@op("linalg.lstsq", at=namespace)
def lstsq(A, B, rcond=None, *, driver=None):
    """(solution, residuals, rank, singular_values) of least squares. torch.linalg.lstsq.

    What a LAPACK driver ("gelsy" by default) does not compute is empty, as in torch.
    """
    check("lstsq", A, square=False)
    driver = driver or "gelsy"
    if driver not in ("gels", "gelsy", "gelsd", "gelss"):
        raise RuntimeError(
            "torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss)"
        )
    solution = _pseudo_inverse(A, rcond, False) @ B
    rank, residuals = mx.zeros((0,), mx.int64), None
    ranks = np.linalg.matrix_rank(host(mx.stop_gradient(A)))
    if driver != "gels":
        rank = mx.array(np.asarray(ranks, np.int64))
    if driver != "gelsy" and A.shape[-2] > A.shape[-1] and (ranks == A.shape[-1]).all():
        residuals = collapse(mx.sum, mx.square(mx.abs(A @ solution - B)), -2)
    real = mx.float32 if A.dtype == mx.complex64 else A.dtype
    values = singular_values(A) if driver in ("gelsd", "gelss") else mx.zeros((0,), real)
    residuals = mx.zeros((0,), real) if residuals is None else residuals
    return return_types.make("linalg_lstsq", solution, residuals, rank, values)


def _basis(A, q: int, niter: int):
    """Q [..., m, q]: orthonormal columns whose span holds most of A (Halko et al. 2009, 4.4)."""
    draw = TABLE["randn"].call(A.shape[-1], q, dtype=A.dtype, device=A.device)
    Q = TABLE["linalg.qr"].call(A @ draw)[0]
    for _ in range(niter):
        Q = TABLE["linalg.qr"].call(A.mH @ Q)[0]
        Q = TABLE["linalg.qr"].call(A @ Q)[0]
    return Q


@composite(at=("torch",))
def svd_lowrank(A, q=6, niter=2, M=None):
    """(U, S, V) of rank q that nearly make A - M, by random projections. torch.svd_lowrank."""
    A, q = (A if M is None else A - M), 6 if q is None else q
    wide = A.shape[-2] < A.shape[-1]
    A = A.mH if wide else A
    Q = _basis(A, q, 2 if niter is None else niter)
    U, S, Vh = TABLE["linalg.svd"].call(Q.mH @ A, full_matrices=False)
    U, V = Q @ U, Vh.mH
    return (V, S, U) if wide else (U, S, V)


@composite(at=("torch",))
def pca_lowrank(A, q=None, center=True, niter=2):
    """(U, S, V): the principal components of rows of A [..., m, n]. torch.pca_lowrank."""
    m, n = A.shape[-2:]
    q = min(6, m, n) if q is None else q
    if not 0 <= q <= min(m, n):
        raise ValueError(
            f"q(={q}) must be non-negative integer and not greater than min(m, n)={min(m, n)}"
        )
    if niter < 0:
        raise ValueError(f"niter(={niter}) must be non-negative integer")
    return svd_lowrank(A - A.mean(-2, keepdim=True) if center else A, q, niter=niter)
