"""Matrix products with leading axes, a @ b: on the CPU our own, elsewhere MLX's, which are good."""

from math import prod

import mlx.core as mx
import numpy as np

from .kernel import Kernel
from .spec import Case, Cost, Spec


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b in float64."""
    return np.asarray(a, np.float64) @ np.asarray(b, np.float64)


def fallback(a: mx.array, b: mx.array) -> mx.array:
    """MLX's matmul; it accumulates half types in float32."""
    return mx.matmul(a, b)


def vjp(primals, cotangent: mx.array, output: mx.array) -> tuple[mx.array, mx.array]:
    """g @ b.T and a.T @ g; the leading axes are the same by now."""
    a, b = primals
    return (
        matmul(cotangent, b.swapaxes(-1, -2)),
        matmul(a.swapaxes(-1, -2), cotangent),
    )


def matmul(a: mx.array, b: mx.array) -> mx.array:
    """a @ b, accumulated in float32, rounded once.

    a [..., M, K] and b [..., K, N] of one dtype, leading axes broadcast; a vector stands for one
    row (a) or one column (b), whose axis the result [..., M, N] then lacks, as in torch.matmul.
    float32, float16, bfloat16, or what MLX's matmul takes on the device. Raises ValueError for
    shapes that do not fit, TypeError for mixed dtypes.
    """
    if a.dtype != b.dtype:
        raise TypeError(f"matmul takes one dtype, not {a.dtype}, {b.dtype}")
    if 0 in (a.ndim, b.ndim) or a.shape[-1] != b.shape[max(b.ndim - 2, 0)]:
        raise ValueError(f"matmul: shapes {a.shape} and {b.shape} do not fit")
    if a.ndim == 1:
        return matmul(a[None], b).squeeze(-1 if b.ndim == 1 else -2)
    if b.ndim == 1:
        return matmul(a, b[:, None]).squeeze(-1)
    if b.ndim == 2 and a.ndim > 2:
        # One matrix for all rows: its gradient is then one product too.
        rows = KERNEL(a.reshape(prod(a.shape[:-1]), a.shape[-1]), b)
        return rows.reshape(*a.shape[:-1], b.shape[-1])
    return KERNEL(*_same_leading(a, b))


def _same_leading(a: mx.array, b: mx.array) -> tuple[mx.array, mx.array]:
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if a.shape[:-2] != leading:
        a = mx.broadcast_to(a, (*leading, *a.shape[-2:]))
    if b.shape[:-2] != leading:
        b = mx.broadcast_to(b, (*leading, *b.shape[-2:]))
    return a, b


def cost(a: mx.array, b: mx.array) -> Cost:
    """Reads each array once, writes the result; a multiply and an add for each of M N K."""
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = prod(leading) * a.shape[-2] * b.shape[-1]
    return Cost(bytes=a.nbytes + b.nbytes + out * a.itemsize, flops=2 * out * a.shape[-1])


def _case(a: tuple[int, ...], b: tuple[int, ...], why: str, layout_a="contiguous", layout_b=None):
    layout_b = layout_a if layout_b is None else layout_b
    scale = max(a[-1], 1) ** -0.5
    return Case({"a": Spec(a, layout=layout_a), "b": Spec(b, layout=layout_b, scale=scale)}, why)


CASES = [
    _case((64, 256), (256, 192), "a prompt through a layer"),
    _case((2, 3, 17, 64), (2, 3, 64, 23), "attention scores: a batch of small products"),
    _case((2, 3, 17, 23), (1, 3, 23, 64), "leading axes broadcast"),
    _case((9, 33, 65), (65, 100), "one matrix for a batch"),
    _case((33, 65), (4, 65, 10), "a batch for one matrix"),
    _case((29, 515), (515, 97), "odd sizes: no tile is full, K is not even"),
    _case((70, 3000), (3000, 40), "long K: several blocks"),
    _case((1, 300), (300, 500), "one row"),
    _case((500, 300), (300, 1), "one column"),
    _case((40, 1), (1, 50), "an outer product"),
    _case((1, 1), (1, 1), "one number"),
    _case((40, 130), (130, 72), "both transposed in memory", "transposed"),
    _case((40, 130), (130, 72), "weights as [N, K]", "contiguous", "transposed"),
    _case((5, 130), (130, 72), "a few rows, weights as [N, K]", "contiguous", "transposed"),
    _case((40, 130), (130, 5), "a few columns", "contiguous", "transposed"),
    _case((40, 130), (130, 72), "start one element into their buffers: unaligned", "offset"),
    _case((40, 130), (130, 72), "every other element of a buffer", "strided"),
]

# Beyond rounding: as for gemv.py, 1e-15 K; K up to 3000.
NMSE = {"float32": 3e-12, "float16": 1e-9, "bfloat16": 1e-8}

KERNEL = Kernel(
    "matmul",
    function=matmul,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=None,
    cpu="matmul",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
