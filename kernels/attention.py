"""Scaled dot product attention over heads that share keys and values; its Metal is flash.py."""

from collections.abc import Iterator
from math import prod

import mlx.core as mx
import numpy as np

from . import flash
from .kernel import Kernel
from .matmul import matmul
from .softmax import softmax
from .spec import Case, Cost, Metal, Spec

# The fallback takes as many queries at a time as keep the scores below this many values.
SCORES = 2**26


def problem(q, k, v, mask=None, lengths=None, gate=None, *, causal, window, scale) -> flash.Problem:
    """Describe the call; the shapes fit, mask is 4-d, lengths is [B]."""
    batch, heads, queries, d = q.shape
    return flash.Problem(
        batch=batch,
        heads=heads,
        kv_heads=k.shape[1],
        queries=queries,
        keys=k.shape[2],
        d=d,
        values=v.shape[3],
        mask=None if mask is None else mask.shape,
        boolean=mask is not None and mask.dtype == mx.bool_,
        lengths=lengths is not None,
        gate=gate is not None,
        causal=causal,
        window=window or 0,
        scale=scale,
        dtype=q.dtype,
    )


def _visible(position, key, valid, causal: bool, window: int | None):
    """Whether the query at `position` sees `key`; NumPy's or MLX's integers that broadcast."""
    seen = key < valid
    if causal:
        seen = seen & (key <= position)
    return seen & (key > position - window) if window else seen


def reference(
    q, k, v, mask=None, lengths=None, gate=None, causal=False, window=None, scale=1.0
) -> np.ndarray:
    """Scores, softmax and weighted sum in float64; 0 for a row without a score above -inf."""
    groups, (queries, keys) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    k, v = (np.asarray(x, np.float64).repeat(groups, 1) for x in (k, v))
    valid = np.full(1, keys) if lengths is None else np.minimum(lengths, keys)
    valid = valid.reshape(-1, 1, 1, 1)
    position = np.arange(queries)[:, None] + (0 if lengths is None else valid - queries)
    seen = _visible(position, np.arange(keys), valid, causal, window)
    with np.errstate(invalid="ignore"):
        scores = np.asarray(q, np.float64) @ k.swapaxes(-1, -2) * scale
        if mask is not None:
            seen, scores = (seen & mask, scores) if mask.dtype == bool else (seen, scores + mask)
        scores = np.where(seen, scores, -np.inf)
        alive = (scores > -np.inf).any(-1, keepdims=True)
        weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        weights = np.where(alive, weights / weights.sum(-1, keepdims=True), 0.0)
        # What no query may see does not count, whatever lies there.
        v = np.where(np.arange(keys)[:, None] < valid, v, 0.0)
        out = weights @ v
    return out if gate is None else out / (1 + np.exp(-np.asarray(gate, np.float64)))


def fallback(
    q, k, v, mask=None, lengths=None, gate=None, *, causal=False, window=None, scale=1.0
) -> mx.array:
    """Scores, softmax and weighted sum in float32 for half types, some queries at a time."""
    wide = _wide(q)
    if 0 in (*q.shape, *v.shape):
        return _gated(mx.zeros((*q.shape[:3], v.shape[3]), wide), gate, q.dtype)
    k, v = (_valid(x.astype(wide), lengths) for x in (k, v))
    parts = []
    for span, some, seen in _pieces(q, k, mask, lengths, causal, window):
        weights = _weights(q[:, :, span].astype(wide) * scale, k, some, seen)
        parts.append(_times(weights, v))
    return _gated(mx.concatenate(parts, axis=2), gate, q.dtype)


def _wide(q: mx.array) -> mx.Dtype:
    return mx.float64 if q.dtype == mx.float64 else mx.float32


def _starts(lengths: mx.array, keys: int) -> mx.array:
    return mx.minimum(lengths, keys).reshape(-1, 1, 1, 1)


def _valid(x: mx.array, lengths: mx.array | None) -> mx.array:
    """Keys or values with zeros for what is not valid: NaN would come through a weight of 0."""
    if lengths is None:
        return x
    there = mx.arange(x.shape[2])[:, None] < _starts(lengths, x.shape[2])
    return mx.where(there, x, mx.zeros((), x.dtype))


def _pieces(q, k, mask, lengths, causal: bool, window: int | None) -> Iterator[tuple]:
    """(slice of the queries, the mask for them, which keys they see or None for all)."""
    (batch, heads, queries, _), keys = q.shape, k.shape[2]
    start = None if lengths is None else _starts(lengths, keys)
    step = max(SCORES // (batch * heads * keys), 1)
    for first in range(0, queries, step):
        span = slice(first, min(first + step, queries))
        position = mx.arange(span.start, span.stop)[:, None]
        position = position if start is None else position + start - queries
        seen = None
        if causal or window or start is not None:
            valid = keys if start is None else start
            seen = _visible(position, mx.arange(keys), valid, causal, window)
        yield span, mask if mask is None or mask.shape[2] == 1 else mask[:, :, span], seen


def _weights(q, k, mask, seen) -> mx.array:
    """[B, H, L, S] of scaled queries; 0 in a row without a score above -inf."""
    scores = _times(q, k.swapaxes(-1, -2))
    nothing = mx.array(-mx.inf, scores.dtype)
    if mask is not None and mask.dtype != mx.bool_:
        scores = scores + mask.astype(scores.dtype)
    elif mask is not None:
        scores = mx.where(mask, scores, nothing)
    if seen is not None:
        scores = mx.where(seen, scores, nothing)
    # Zeros before the softmax, so that dead rows have gradients of 0 and not NaN.
    alive = mx.any(scores > nothing, axis=-1, keepdims=True)
    zero = mx.zeros((), scores.dtype)
    return mx.where(alive, softmax(mx.where(alive, scores, zero), -1), zero)


def _times(x: mx.array, y: mx.array) -> mx.array:
    """x [B, H, L, N] @ y [B, KH, N, M]: one product for each key head, of all that share it."""
    batch, heads, queries, n = x.shape
    together = x.reshape(batch, y.shape[1], heads // y.shape[1] * queries, n)
    return matmul(together, y).reshape(batch, heads, queries, y.shape[3])


def _transposed_times(x: mx.array, y: mx.array, kv_heads: int) -> mx.array:
    """x [B, H, L, N].T @ y [B, H, L, M] summed over heads that share a key head: [B, KH, N, M]."""
    x, y = (z.reshape(z.shape[0], kv_heads, -1, z.shape[3]) for z in (x, y))
    return matmul(x.swapaxes(-1, -2), y)


def vjp(primals, cotangent: mx.array, output: mx.array, *, causal, window, scale):
    """Weights computed again, some queries at a time: autodiff would keep those of all."""
    q, k, v, *rest = primals
    mask, lengths, gate = (*rest, None, None, None)[:3]
    if 0 in (*q.shape, *v.shape):
        return tuple(None if x is None else mx.zeros_like(x) for x in primals)
    wide = _wide(q)
    keys, values = (_valid(x.astype(wide), lengths) for x in (k, v))
    g_k, g_v = mx.zeros(k.shape, wide), mx.zeros(v.shape, wide)
    parts: dict[str, list[mx.array]] = {"q": [], "mask": [], "gate": []}
    for span, some, seen in _pieces(q, k, mask, lengths, causal, window):
        scaled, g = q[:, :, span].astype(wide) * scale, cotangent[:, :, span].astype(wide)
        weights = _weights(scaled, keys, some, seen)
        if gate is not None:
            s = mx.sigmoid(gate[:, :, span].astype(wide))
            parts["gate"].append(g * _times(weights, values) * s * (1 - s))
            g = g * s
        g_weights = _times(g, values.swapaxes(-1, -2))
        g_scores = weights * (g_weights - (g_weights * weights).sum(axis=-1, keepdims=True))
        g_v = g_v + _transposed_times(weights, g, k.shape[1])
        g_k = g_k + _transposed_times(g_scores, scaled, k.shape[1])
        parts["q"].append(_times(g_scores, keys) * scale)
        if mask is not None and mask.dtype != mx.bool_:
            parts["mask"].append(_summed(g_scores, some.shape))
    gradients = [_joined(parts["q"], q), g_k, g_v, _joined(parts["mask"], mask)]
    gradients += [None if lengths is None else mx.zeros_like(lengths), _joined(parts["gate"], gate)]
    pairs = zip(gradients, primals, strict=False)
    return tuple(g if g is None or x is None else g.astype(x.dtype) for g, x in pairs)


def _summed(x: mx.array, shape: tuple[int, ...]) -> mx.array:
    """x summed over what was broadcast from `shape`."""
    return x.sum(axis=[i for i in range(4) if shape[i] != x.shape[i]], keepdims=True)


def _joined(parts: list[mx.array], like: mx.array | None) -> mx.array | None:
    """The pieces along the queries, or their sum where `like` has none; no pieces are zeros."""
    if like is None:
        return None
    if not parts:
        return mx.zeros_like(like)
    if like.shape[2] == 1:
        return sum(parts[1:], parts[0])
    return mx.concatenate(parts, axis=2)


def _gated(out, gate, dtype) -> mx.array:
    if gate is not None:
        out = out * mx.sigmoid(gate.astype(out.dtype))
    return out.astype(dtype)


def attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    mask: mx.array | None = None,
    lengths: mx.array | None = None,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    gate: mx.array | None = None,
) -> mx.array:
    """softmax(q @ k.T * scale + mask) @ v, accumulated in float32, rounded once.

    q [B, H, L, D], k [B, KH, S, D], v [B, KH, S, E], KH a divisor of H, all of one floating dtype
    (float64 on the CPU). mask, bool (True takes part) or floating (added), broadcasts to
    [B, H, L, S]. lengths, integers [B] or (), is how many of the S keys are valid; what lies
    beyond has no influence, NaN included.

    A query's position is its index; where lengths is given the last query is at the last valid
    key. causal: it sees the keys up to its position (torch's is_causal). window: of those before,
    only the last `window`, its own position included. scale: 1 / sqrt(D) by default. gate
    [B, H, L, E]: the result is multiplied by its sigmoid.

    Returns [B, H, L, E]. A row with no score above -inf is 0, as in torch. Raises ValueError for
    shapes that do not fit, TypeError for dtypes.
    """
    _check(q, k, v, lengths, window, gate)
    full = (*q.shape[:3], k.shape[2])
    if mask is not None:
        mask = mask.reshape((1,) * max(4 - mask.ndim, 0) + mask.shape)
        sizes = zip(mask.shape, full, strict=False)
        if mask.ndim > 4 or any(m not in (1, n) for m, n in sizes):
            raise ValueError(f"attention: mask {mask.shape} does not fit scores {full}")
        if mask.dtype != mx.bool_ and not mx.issubdtype(mask.dtype, mx.floating):
            raise TypeError(f"attention takes a bool or floating mask, not {mask.dtype}")
    if lengths is not None:
        lengths = mx.broadcast_to(lengths.astype(mx.int32), (q.shape[0],))
    scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    arrays = [q, k, v, mask, lengths, gate]
    return KERNEL(*arrays, causal=causal, window=window, scale=scale)


def _check(q, k, v, lengths, window, gate) -> None:
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4 or 0 in (q.shape[3], k.shape[1]):
        raise ValueError(f"attention takes [B, H, L, D], not {q.shape}, {k.shape}, {v.shape}")
    fits = q.shape[::3] == k.shape[::3] and k.shape[:3] == v.shape[:3]
    if not fits or q.shape[1] % k.shape[1]:
        raise ValueError(f"attention: q {q.shape}, k {k.shape}, v {v.shape} do not fit")
    if gate is not None and gate.shape != (*q.shape[:3], v.shape[3]):
        raise ValueError(f"attention: gate {gate.shape} does not fit q {q.shape}, v {v.shape}")
    if window is not None and window < 1:
        raise ValueError(f"attention: a window of {window} keys")
    if lengths is not None and lengths.shape not in ((), q.shape[:1]):
        raise ValueError(f"attention: lengths {lengths.shape} is not () or {q.shape[:1]}")
    if lengths is not None and not mx.issubdtype(lengths.dtype, mx.integer):
        raise TypeError(f"attention takes integer lengths, not {lengths.dtype}")
    dtypes = {x.dtype for x in (q, k, v, gate) if x is not None}
    if len(dtypes) > 1 or not mx.issubdtype(q.dtype, mx.floating):
        raise TypeError(f"attention takes one floating dtype, not {', '.join(map(str, dtypes))}")


def attention_in_order(
    q, k, v, mask=None, lengths=None, gate=None, *, causal=False, window=None, scale=None
):
    """attention with its arrays first, as cases have them."""
    return attention(q, k, v, mask, lengths, causal, window, scale, gate)


def cost(q, k, v, mask=None, lengths=None, gate=None, *, causal, window, scale) -> Cost:
    """Reads every array once, writes the result; two products of all queries and keys."""
    outputs = prod(q.shape[:3]) * v.shape[3]
    read = sum(array.nbytes for array in (q, k, v, mask, lengths, gate) if array is not None)
    flops = 2 * prod(q.shape[:3]) * k.shape[2] * (q.shape[3] + v.shape[3])
    return Cost(bytes=read + outputs * q.itemsize, flops=flops)


def some(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """True at half of the places, nowhere in the first row."""
    mask = rng.random(shape) < 0.5
    mask[..., 0, :] = False
    return mask


def partly(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """33, 0, 23, 13 ... valid keys."""
    return np.arange(33, 33 - 10 * shape[0], -10) * (np.arange(shape[0]) != 1)


def most(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Some hundred valid keys."""
    return rng.integers(270, 290, shape)


def _case(
    why: str,
    heads: tuple[int, int, int],
    lengths: tuple[int, int],
    d: int,
    mask: Spec | None = None,
    valid=None,
    gate: bool = False,
    causal: bool = False,
    window: int = 0,
    **spec,
) -> Case:
    """heads: batch, heads of q, heads of k; lengths: of q, of k."""
    (batch, many, few), (queries, keys) = heads, lengths
    arrays = {
        "q": Spec((batch, many, queries, d), **spec),
        "k": Spec((batch, few, keys, d), **{**spec, "fill": "normal"}),
        "v": Spec((batch, few, keys, d), **{**spec, "fill": "normal"}),
        "mask": mask,
        "lengths": Spec((batch,), "int32", valid) if valid else None,
        "gate": Spec((batch, many, queries, d)) if gate else None,
    }
    numbers = {"causal": causal, "window": window or None, "scale": d**-0.5}
    return Case(arrays, why, numbers)


CASES = [
    _case("SmolLM2, a prompt", (1, 9, 3), (23, 23), 64, causal=True),
    _case("Qwen3.6-35B-A3B, one token", (1, 16, 2), (1, 300), 256, valid=most, gate=True),
    _case("Qwen3-0.6B, one token of two", (2, 16, 8), (1, 300), 128, valid=most),
    _case("SmolLM2, one token of four", (4, 9, 3), (1, 40), 64, valid=partly),
    _case("no key heads shared", (1, 2, 2), (1, 37), 64),
    _case("Qwen3.6-35B-A3B, a prompt", (1, 8, 1), (11, 11), 256, causal=True, gate=True),
    _case("Qwen3-0.6B, a prompt", (1, 2, 1), (70, 70), 128, causal=True),
    _case("three tokens after others", (2, 4, 2), (3, 40), 128, valid=partly, causal=True),
    _case("a window", (1, 2, 1), (50, 50), 96, causal=True, window=7),
    _case("one token, a window", (3, 4, 2), (1, 40), 64, valid=partly, causal=True, window=9),
    _case("vision tower", (1, 2, 2), (67, 67), 72),
    _case("more queries than keys", (1, 2, 1), (20, 9), 80, causal=True),
    _case("mask", (2, 4, 2), (9, 33), 64, mask=Spec((2, 4, 9, 33), "bool_", some)),
    _case("mask of keys", (2, 2, 1), (5, 33), 64, mask=Spec((2, 1, 1, 33)), valid=partly),
    _case("mask of one", (1, 2, 1), (5, 9), 8, mask=Spec((1, 1, 1, 1)), gate=True),
    _case("NaN and infinity", (2, 2, 1), (5, 36), 64, fill="specials", causal=True),
    _case("unaligned", (1, 2, 1), (9, 20), 64, layout="offset"),
    _case("transposed in memory", (1, 2, 1), (9, 20), 64, layout="transposed"),
    _case("a head dimension that goes to MLX", (1, 2, 1), (9, 20), 20, causal=True),
    _case("Wan2.2's middle block: one head, also MLX's", (1, 1, 1), (35, 35), 1024),
    _case("one of everything", (1, 1, 1), (1, 1), 8),
]

# Beyond rounding. Half types compute in float32, then round once.
NMSE = {"float32": 1e-12, "float16": 1e-9, "bfloat16": 1e-8}

KERNEL = Kernel(
    "attention",
    function=attention_in_order,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=Metal(flash.VARIANTS, problem, flash.choose, flash.launch, bar=flash.bar),
    cpu="attention",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
