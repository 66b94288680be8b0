"""Linear algebra.

LAPACK on the host (by NumPy): MLX has it on the CPU only and without gradients.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from .. import return_types
from ..core.layout import wrap_dim
from ..core.op import composite, op
from ..linalg import LinAlgError
from ._calling import host, host_function, is_float, numpy_names, torch_name
from .matmul import product

namespace = ("linalg",)


# The kernels that torch names in its errors for half precision.
_KERNELS = {
    "det": "lu_cpu", "solve": "lu_cpu", "qr": "geqrf_cpu",
    "svd": "linalg_svd_cpu", "svdvals": "linalg_svd_cpu", "cholesky": "cholesky_cpu",
    "eigh": "linalg_eigh_cpu", "eigvalsh": "linalg_eigh_cpu", "cond": "linalg_svd_cpu",
    "solve_triangular": "triangular_solve_cpu", "triangular_solve": "triangular_solve_cpu",
    "cholesky_solve": "cholesky_solve_cpu", "cholesky_inverse": "cholesky_inverse_out_cpu",
}  # fmt: skip


def check(name: str, x: mx.array, square: bool = True) -> None:
    """torch's demands on the argument of a factorisation."""
    if x.dtype in (mx.float16, mx.bfloat16):
        kernel = _KERNELS.get(name)
        if kernel:
            raise NotImplementedError(f"\"{kernel}\" not implemented for '{torch_name(x)}'")
        raise RuntimeError(
            f"linalg.{name}: Low precision dtypes not supported. Got {torch_name(x)}"
        )
    if not is_float(x):
        raise RuntimeError(
            f"linalg.{name}: Expected a floating point or complex tensor as input. Got "
            f"{torch_name(x)}"
        )
    if x.ndim < 2:
        raise RuntimeError(f"linalg.{name}: The input tensor A must have at least 2 dimensions.")
    if square and x.shape[-1] != x.shape[-2]:
        raise RuntimeError(
            f"linalg.{name}: A must be batches of square matrices, but they are {x.shape[-2]} by "
            f"{x.shape[-1]} matrices"
        )


def _lapack(name: str, function, message: str):
    """`function` of NumPy with torch's error for NumPy's."""

    def called(*arrays):
        try:
            return function(*arrays)
        except np.linalg.LinAlgError:
            raise LinAlgError(f"linalg.{name}: {message}") from None

    return called


def _t(x: mx.array) -> mx.array:
    """The conjugate transpose."""
    x = mx.swapaxes(x, -1, -2)
    return mx.conj(x) if x.dtype == mx.complex64 else x


_SINGULAR = (
    "The diagonal element is zero, the inversion could not be completed because the input matrix "
    "is singular."
)
_UNSOLVABLE = "The solver failed because the input matrix is singular."

inverse_of = host_function(
    "linalg_inv", _lapack("inv", np.linalg.inv, _SINGULAR), lambda p, c, o: -(_t(o) @ c @ _t(o))
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
    right = _solve(_t(a), c)
    return (-(right @ _t(x)), right)


_solve = host_function(
    "linalg_solve", _lapack("solve", np.linalg.solve, _UNSOLVABLE), _solve_gradient
)


@op("linalg.solve", at=namespace)
def solve(A, B, *, left=True):
    """X with A @ X = B (or X @ A = B), for matrices or vectors B. torch.linalg.solve."""
    check("solve", A)
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    b = mx.expand_dims(B, -1) if vector else B
    if not left:
        a, b = mx.swapaxes(A, -1, -2), mx.swapaxes(b, -1, -2)
    else:
        a = A
    if a.shape[-1] != b.shape[-2]:
        raise RuntimeError(
            "linalg.solve: Incompatible shapes of A and B for the equation "
            f"{'AX = B' if left else 'XA = B'}"
            f" ({A.shape[-2]}x{A.shape[-1]} and {b.shape[-2]}x{b.shape[-1]})"
        )
    a, b = _same_batch(a, b)
    x = _solve(a, b)
    x = x if left else mx.swapaxes(x, -1, -2)
    return mx.squeeze(x, -1) if vector else x


def _same_batch(a: mx.array, b: mx.array):
    batch = mx.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return mx.broadcast_to(a, (*batch, *a.shape[-2:])), mx.broadcast_to(b, (*batch, *b.shape[-2:]))


# ---- triangular systems


def _substitute(a: np.ndarray, b: np.ndarray, upper: bool, unit: bool) -> np.ndarray:
    n = a.shape[-1]
    x = np.zeros_like(b)
    for i in range(n - 1, -1, -1) if upper else range(n):
        known = slice(i + 1, n) if upper else slice(0, i)
        row = b[..., i, :] - (a[..., i : i + 1, known] @ x[..., known, :])[..., 0, :]
        with np.errstate(all="ignore"):
            x[..., i, :] = row if unit else row / a[..., i, i, None]
    return x


def _triangular(a: mx.array, b: mx.array, upper: bool, unit: bool) -> mx.array:
    def gradient(primals, c, x):
        right = _triangular(_t(primals[0]), c, not upper, unit)
        full = -(right @ _t(x))
        kept = mx.triu(full, 1 if unit else 0) if upper else mx.tril(full, -1 if unit else 0)
        return (kept, right)

    run = host_function(
        "linalg_solve_triangular", lambda u, v: _substitute(u, v, upper, unit), gradient
    )
    return run(a, b)


@op("linalg.solve_triangular", at=namespace)
def solve_triangular(A, B, *, upper, left=True, unitriangular=False):
    """X with A @ X = B (or X @ A = B), A triangular: only that triangle is read.

    torch.linalg.solve_triangular.
    """
    check("solve_triangular", A)
    if left:
        return _triangular(*_same_batch(A, B), upper, unitriangular)
    a, b = _same_batch(mx.swapaxes(A, -1, -2), mx.swapaxes(B, -1, -2))
    return mx.swapaxes(_triangular(a, b, not upper, unitriangular), -1, -2)


@op(at=("torch", "Tensor"))
def triangular_solve(input, A, upper=True, transpose=False, unitriangular=False):
    """(solution, A) of a triangular system. torch.triangular_solve."""
    check("triangular_solve", A)
    a = mx.swapaxes(A, -1, -2) if transpose else A
    x = _triangular(*_same_batch(a, input), upper != transpose, unitriangular)
    return return_types.make("triangular_solve", x, A)


# ---- Cholesky


def _cholesky_gradient(primals, c, factor):
    inner = mx.tril(_t(factor) @ c)
    half = inner - 0.5 * inner * mx.eye(inner.shape[-1], dtype=mx.float32).astype(inner.dtype)
    inverse_ = inverse_of(factor)
    full = _t(inverse_) @ half @ inverse_
    return 0.5 * (full + _t(full))


_factor = host_function(
    "linalg_cholesky",
    _lapack(
        "cholesky",
        np.linalg.cholesky,
        "The factorization could not be completed because the input is not positive-definite.",
    ),
    _cholesky_gradient,
)


@op("linalg.cholesky", at=namespace)
def cholesky(A, *, upper=False):
    """L with L @ L^H = A (or U with U^H @ U = A), A positive-definite. torch.linalg.cholesky."""
    check("cholesky", A)
    factor = _factor(A)
    return _t(factor) if upper else factor


@op("torch.cholesky", at=("torch", "Tensor"))
def _cholesky(input, upper=False):
    """L with L @ L^H = input (or U). torch.cholesky."""
    check("cholesky", input)
    return _t(_factor(input)) if upper else _factor(input)


@op(at=("torch", "Tensor"))
def cholesky_inverse(input, upper=False):
    """The inverse of a matrix, given its Cholesky factor. torch.cholesky_inverse."""
    check("cholesky_inverse", input)
    x = inverse_of(mx.triu(input) if upper else mx.tril(input))
    return x @ _t(x) if upper else _t(x) @ x


@op(at=("torch", "Tensor"))
def cholesky_solve(input, L, upper=False):
    """The solution of a system, given the Cholesky factor of its matrix. torch.cholesky_solve."""
    check("cholesky_solve", L)
    lower = _t(L) if upper else L
    lower, b = _same_batch(lower, input)
    return _triangular(_t(lower), _triangular(lower, b, False, False), True, False)


# ---- determinants

_det = host_function(
    "linalg_det",
    lambda a: np.linalg.det(a).astype(a.dtype),
    lambda p, c, o: mx.expand_dims(c * o, (-1, -2)) * _t(inverse_of(p[0])),
)


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
    return mx.expand_dims(cotangents[1], (-1, -2)) * _t(inverse_of(primals[0]))


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


# ---- orthogonal and spectral factorisations


def _qr_of(x: mx.array, mode: str):
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), "
            "'r', or "
            "'complete'"
        )
    if mode == "r":
        r = host_function("linalg_qr", lambda a: np.linalg.qr(a, "r"))(x)
        return mx.zeros((0,), x.dtype), r
    return host_function("linalg_qr", lambda a: tuple(np.linalg.qr(a, mode)))(x)


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


@op("torch.svd", at=("torch", "Tensor"))
def _torch_svd(input, some=True, compute_uv=True):
    """(U, S, V) with input = U diag(S) V^H. torch.svd."""
    check("svd", input, square=False)
    u, values, vh = _svd_of(input, not some)
    v = _t(vh)
    if not compute_uv:
        u, v = mx.zeros_like(u), mx.zeros_like(v)
    return return_types.make("svd", u, values, v)


def _svd_of(x: mx.array, full: bool):
    return host_function("linalg_svd", lambda a: tuple(np.linalg.svd(a, full)))(x)


@op("linalg.svd", at=namespace)
def svd(A, full_matrices=True, *, driver=None):
    """(U, S, Vh), singular values descending. torch.linalg.svd."""
    check("svd", A, square=False)
    return return_types.make("linalg_svd", *_svd_of(A, full_matrices))


def _values_gradient(primals, c, o):
    u, _, vh = _svd_of(primals[0], False)  # without a gradient: a second one is refused
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
    inner = (_t(vectors) @ cotangents[1]) * inverse_gaps
    diagonal = mx.eye(values.shape[-1]).astype(values.dtype) * mx.expand_dims(cotangents[0], -2)
    full = vectors @ (inner + diagonal) @ _t(vectors)
    return 0.5 * (full + _t(full))


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


@op("linalg.eig", at=namespace)
def eig(A):
    """(eigenvalues, eigenvectors) of square matrices, complex64. torch.linalg.eig."""
    check("eig", A)
    run = host_function(
        "linalg_eig", lambda a: tuple(v.astype(np.complex64) for v in np.linalg.eig(a))
    )
    return return_types.make("linalg_eig", *run(A))


@op("linalg.eigvals", at=namespace)
def eigvals(A):
    """Eigenvalues of square matrices, complex64. torch.linalg.eigvals."""
    check("eigvals", A)
    return host_function("linalg_eig", lambda a: np.linalg.eigvals(a).astype(np.complex64))(A)


# ---- built on them


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


def _pseudo_inverse(x: mx.array, rcond, hermitian: bool) -> mx.array:
    def compute(a):
        limit = max(a.shape[-2:]) * np.finfo(a.dtype).eps if rcond is None else rcond
        return np.linalg.pinv(a, rcond=limit, hermitian=hermitian).astype(a.dtype)

    def gradient(primals, c, o):
        a = primals[0]
        left = mx.eye(a.shape[-2], dtype=mx.float32).astype(a.dtype) - a @ o
        right = mx.eye(a.shape[-1], dtype=mx.float32).astype(a.dtype) - o @ a
        along = _t(o) @ c @ _t(o)
        return -along + left @ _t(c) @ o @ _t(o) + _t(o) @ o @ _t(c) @ right

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
    relative = max(A.shape[-2:]) * np.finfo(values.dtype).eps if rtol is None else rtol
    absolute = tol if tol is not None else atol
    relative = 0 if absolute is not None and rtol is None else relative
    limit = np.maximum(absolute or 0, relative * largest)
    return mx.array(np.asarray((values > limit).sum(-1), np.int64))


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
    none, rank, residuals = mx.zeros((0,), A.dtype), mx.zeros((0,), mx.int64), None
    ranks = np.linalg.matrix_rank(host(mx.stop_gradient(A)))
    if driver != "gels":
        rank = mx.array(np.asarray(ranks, np.int64))
    if driver != "gelsy" and A.shape[-2] > A.shape[-1] and (ranks == A.shape[-1]).all():
        residuals = mx.sum(mx.square(mx.abs(A @ solution - B)), axis=-2)
    values = singular_values(A) if driver in ("gelsd", "gelss") else none
    residuals = none if residuals is None else residuals
    return return_types.make("linalg_lstsq", solution, residuals, rank, values)


def _checked_result(name: str, field: str, function):
    """linalg.NAME_ex: the result of linalg.NAME and an int32 error code, 0 for success."""

    @op(f"linalg.{name}_ex", at=namespace)
    def with_info(A, *, check_errors=False, **kwargs):
        info = mx.zeros(A.shape[:-2], mx.int32)
        return return_types.make(f"linalg_{name}_ex", function(A, **kwargs), info)

    with_info.__doc__ = (
        f"({field}, info) without an error where torch reports one. torch.linalg.{name}_ex."
    )


def _inverse_checked(A):
    check("inv", A)
    return inverse_of(A)


_checked_result("inv", "inverse", _inverse_checked)


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
