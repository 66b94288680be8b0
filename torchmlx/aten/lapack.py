"""What linear algebra shares: torch's demands on matrices, its errors, small matrices.

Factorisations run in LAPACK on the host (by NumPy): MLX has them on the CPU only and without
gradients.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ..linalg import LinAlgError
from ._calling import is_float, torch_name

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


def transposed(x: mx.array) -> mx.array:
    """The conjugate transpose."""
    x = mx.swapaxes(x, -1, -2)
    return mx.conj(x) if x.dtype == mx.complex64 else x


def same_batch(a: mx.array, b: mx.array):
    batch = mx.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return mx.broadcast_to(a, (*batch, *a.shape[-2:])), mx.broadcast_to(b, (*batch, *b.shape[-2:]))


def identity(n: int, like: mx.array) -> mx.array:
    """The n by n identity in like's dtype."""
    return mx.eye(n, dtype=mx.float32).astype(like.dtype)


def permuted(x: mx.array, rows: mx.array) -> mx.array:
    """The rows [..., m] of matrices x [..., m, n], in that order."""
    return mx.take_along_axis(x, mx.stop_gradient(mx.expand_dims(rows, -1)), axis=-2)


def raise_where(name: str, info: np.ndarray, message: str, error: type = LinAlgError) -> None:
    """torch's error for the first matrix whose error code is not 0; `message` may use {info}."""
    failed = np.flatnonzero(info)
    if failed.size:
        which = f"(Batch element {failed[0]}): " if info.ndim else ""
        raise error(f"{name}: {which}" + message.format(info=info.ravel()[failed[0]]))
