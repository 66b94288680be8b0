"""A token's attention over the cache that its keys and values join.

On the CPU one node turns, stores and attends: a graph's nodes cost MLX 1 to 2 us each on the thread
that builds it, which on few cores is taken from the kernels. Elsewhere it is made of our kernels.
"""

from math import prod
from typing import Any

import mlx.core as mx
import numpy as np

from . import attention as attending
from . import rope as turning
from .kernel import Kernel
from .spec import Case, Cost, Spec

Triple = tuple[mx.array, mx.array, mx.array]


def reference(q, k, v, cos, sin, keys, values, rows, *, scale) -> tuple[np.ndarray, ...]:
    """Rotation, storing and attention in float64."""
    slots, d, given = *keys.shape[2:], q.shape
    q, k, v = (_by_heads(x, d) for x in (q, k, v))
    q, k = (turning.reference(x, cos=cos, sin=sin) for x in (q, k))
    keys, values = (np.array(x, np.float64) for x in (keys, values))
    for b, row in enumerate(rows):
        keys[b, :, row % slots], values[b, :, row % slots] = k[b, :, 0], v[b, :, 0]
    out = attending.reference(q, keys, values, lengths=rows + 1, scale=scale)
    return out.reshape(given), keys, values


def _by_heads(x: Any, d: int) -> Any:
    """[B, 1, H * D] as [B, H, 1, D]."""
    return x.reshape(x.shape[0], x.shape[2] // d, 1, d)


def fallback(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    cos: mx.array,
    sin: mx.array,
    keys: mx.array,
    values: mx.array,
    rows: mx.array,
    *,
    scale: float,
) -> Triple:
    """Our rope, MLX's writes, our attention."""
    d, given = keys.shape[3], q.shape
    q, k, v = (_by_heads(x, d) for x in (q, k, v))
    q, k = (turning.rope(x, cos=cos, sin=sin) for x in (q, k))
    keys, values = _stored(keys, k, rows), _stored(values, v, rows)
    out = attending.attention(q, keys, values, lengths=rows + 1, scale=scale)
    return out.reshape(given), keys, values


def _stored(buffer: mx.array, new: mx.array, rows: mx.array) -> mx.array:
    """`buffer` [B, H, S, D] with row b of new [B, H, 1, D] at slot rows[b] modulo S."""
    slot = mx.stop_gradient(rows) % buffer.shape[2]  # indices that MLX would differentiate
    if buffer.shape[0] == 1:
        return mx.slice_update(buffer, new, slot, (2,))
    return mx.put_along_axis(buffer, slot[:, None, None, None], new, axis=2)


def cached_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    cos: mx.array,
    sin: mx.array,
    keys: mx.array,
    values: mx.array,
    rows: mx.array,
    scale: float | None = None,
) -> Triple:
    """Attention of one token a sequence to those before it and itself; its key and value stored.

    q [B, 1, H * D], k and v [B, 1, KH * D] as they are projected, KH a divisor of H; keys and
    values [B, KH, S, D]; one floating dtype. q and k are turned by cos and sin [1, d] or
    [B, 1, 1, d], float32, as `rope` does. rows [B], integers from 0 on, is how many tokens each
    sequence has: the new one takes slot rows % S and sees min(rows + 1, S) slots. scale of the
    scores: 1 / sqrt(D) by default.

    Returns the result [B, 1, H * D], keys and values; the CPU writes to those given where nothing
    else holds them. Raises ValueError for shapes that do not fit, TypeError for dtypes.
    """
    _check(q, k, v, cos, sin, keys, values, rows)
    scale = keys.shape[3] ** -0.5 if scale is None else float(scale)
    rows = rows.astype(mx.int32)
    return KERNEL(q, k, v, cos, sin, keys, values, rows, scale=scale)


def _check(q, k, v, cos, sin, keys, values, rows) -> None:
    if keys.ndim != 4 or values.shape != keys.shape or 0 in keys.shape[1:]:
        raise ValueError(f"cached_attention: keys {keys.shape}, values {values.shape}")
    batch, heads, _, d = keys.shape
    fits = k.shape == v.shape == (batch, 1, heads * d) and q.shape[:-1] == (batch, 1)
    if not fits or not q.shape[2] or q.shape[2] % (heads * d):
        raise ValueError(
            f"cached_attention: q {q.shape}, k {k.shape}, v {v.shape} do not fit keys {keys.shape}"
        )
    width = cos.shape[-1] if cos.ndim else 0
    if cos.shape != sin.shape or cos.size not in (width, batch * width):
        raise ValueError(f"cached_attention: cos {cos.shape}, sin {sin.shape}, {batch} sequences")
    if width < 2 or width % 2 or width > d:
        raise ValueError(f"cached_attention: {width} dimensions cannot turn in heads of {d}")
    if rows.shape != (batch,):
        raise ValueError(f"cached_attention: rows {rows.shape}, not {(batch,)}")
    if not mx.issubdtype(rows.dtype, mx.integer):
        raise TypeError(f"cached_attention takes integer rows, not {rows.dtype}")
    dtypes = {x.dtype for x in (q, k, v, keys, values)}
    if len(dtypes) > 1 or not mx.issubdtype(q.dtype, mx.floating):
        names = ", ".join(sorted(map(str, dtypes)))
        raise TypeError(f"cached_attention takes one floating dtype, not {names}")


def cost(q, k, v, cos, sin, keys, values, rows, *, scale) -> Cost:
    """Reads all slots and the token, writes the token and the result."""
    moved = sum(x.nbytes for x in (keys, values, cos, sin, rows)) + 2 * (q.nbytes + 2 * k.nbytes)
    return Cost(bytes=moved, flops=4 * prod(q.shape) * keys.shape[2])


def places(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """33, 26, 19 .. tokens."""
    return np.arange(33, 33 - 7 * shape[0], -7)


def none(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """No token yet."""
    return np.zeros(shape)


def _case(
    why: str, heads: tuple[int, int, int], slots: int, d: int, width: int = 0, rows: Any = places,
    table: bool = True, layout: str = "contiguous"
) -> Case:  # fmt: skip
    """heads: batch, heads of q, heads of k. table: a rotation for each sequence, not for all."""
    (batch, many, few), width = heads, width or d
    tables = Spec((batch, 1, 1, width) if table else (1, width), "float32")
    new = Spec((batch, 1, few * d), layout=layout)
    arrays = {
        "q": Spec((batch, 1, many * d), layout=layout),
        "k": new,
        "v": new,
        "cos": tables,
        "sin": tables,
        "keys": Spec((batch, few, slots, d), layout=layout),
        "values": Spec((batch, few, slots, d), layout=layout),
        "rows": Spec((batch,), "int32", rows),
    }
    return Case(arrays, why, {"scale": d**-0.5})


CASES = [
    _case("SmolLM2-135M", (1, 9, 3), 300, 64),
    _case("Qwen3-0.6B, three sequences", (3, 16, 8), 40, 128),
    _case("one rotation for two sequences, of some dimensions", (2, 4, 2), 40, 64, 24, table=False),
    _case("the first token, one head", (1, 1, 1), 9, 8, rows=none),
    _case("a ring that is full", (3, 4, 4), 20, 32),
    _case("odd heads", (2, 6, 2), 37, 20, 20),
    _case("every other element of a buffer", (2, 4, 2), 40, 16, layout="strided"),
    _case("starts one element into its buffer", (2, 4, 2), 40, 16, layout="offset"),
    _case("transposed in memory", (2, 4, 2), 40, 16, layout="transposed"),
]

# Beyond rounding. Half types: cosines and sines are rounded first, as in rope, and the turned
# queries and keys that the scores are made of.
NMSE = {"float32": 1e-12, "float16": 1e-6, "bfloat16": 2e-5}

KERNEL = Kernel(
    "cached_attention",
    function=cached_attention,
    reference=reference,
    fallback=fallback,
    vjp=None,
    metal=None,
    cpu="cached_attention",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
