"""The gated delta rule (arXiv:2412.06464): linear attention whose state decays and corrects itself.

For each time t, with S [dk, dv] per value head in float32:
    S <- exp(g_t) S;  delta = beta_t (v_t - k_t S);  S <- S + k_t (outer) delta;  o_t = q_t S.

Few times go step by step. Many go in chunks of 32 times, whose corrections are one triangular
system each, so that matrix products do the work. Its Metal is delta.py.
"""

from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from . import delta
from .delta import CHUNK, Rule
from .kernel import Kernel
from .matmul import matmul
from .spec import Case, Cost, Metal, Spec


def problem(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None = None,
    *,
    normalise: bool,
    scale: float | None,
) -> Rule:
    """Describe the call; the shapes fit."""
    batch, tokens, key_heads, dk = q.shape
    heads, dv = v.shape[2:]
    scale = _scale(dk, scale)
    return Rule(
        batch, tokens, key_heads, heads, dk, dv, state is not None, normalise, scale, q.dtype
    )


def _scale(dk: int, scale: float | None) -> float:
    return max(dk, 1) ** -0.5 if scale is None else scale


def reference(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    g: np.ndarray,
    beta: np.ndarray,
    state: np.ndarray | None = None,
    *,
    normalise: bool,
    scale: float | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The recurrence in float64."""
    batch, tokens, key_heads, dk = q.shape
    heads, dv = v.shape[2:]
    q, k = (np.repeat(np.asarray(x, np.float64), heads // key_heads, axis=2) for x in (q, k))
    if normalise:
        q, k = (x / np.sqrt(np.square(x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    q = q * _scale(dk, scale)
    held = np.zeros((batch, heads, dk, dv)) if state is None else np.array(state, np.float64)
    out = np.zeros(v.shape)
    for t in range(tokens):
        held = held * np.exp(g[:, t])[..., None, None]
        memory = np.einsum("bhk,bhkv->bhv", k[:, t], held)
        delta = beta[:, t, :, None] * (v[:, t] - memory)
        held = held + k[:, t, ..., None] * delta[:, :, None, :]
        out[:, t] = np.einsum("bhk,bhkv->bhv", q[:, t], held)
    return out, held


# From here on the fallback works in chunks: a step takes six operations, a chunk's system 62 for
# all chunks together, and eight more each.
FALLBACK_STEPS = 16


def fallback(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None = None,
    *,
    normalise: bool,
    scale: float | None,
) -> tuple[mx.array, mx.array]:
    """Step by step, or in chunks, in float32."""
    wide = _wide(q)
    axes = (q.shape[0], v.shape[2], q.shape[3], v.shape[3])
    held = mx.zeros(axes, wide) if state is None else state.astype(wide)
    if 0 in (*v.shape, *q.shape):
        return mx.zeros(v.shape, q.dtype), held
    prepared = _prepare(q, k, v, g, beta, normalise=normalise, scale=scale)
    walk = _by_steps if q.shape[1] < FALLBACK_STEPS else _by_chunks
    out, held = walk(*prepared, held)
    return out.swapaxes(1, 2).astype(q.dtype), held


def _wide(q: mx.array) -> mx.Dtype:
    """What everything is computed in, and the state's dtype."""
    return mx.float64 if q.dtype == mx.float64 else mx.float32


_Prepared = tuple[mx.array, mx.array, mx.array, mx.array, mx.array]


def _prepare(q, k, v, g, beta, *, normalise: bool, scale: float | None) -> _Prepared:
    """The arrays as [B, H, T, ..], keys and queries normalised, scaled, and repeated for heads."""
    wide, repeats = _wide(q), v.shape[2] // q.shape[2]
    q, k, v, g, beta = (x.astype(wide).swapaxes(1, 2) for x in (q, k, v, g, beta))
    if normalise:
        q, k = (x * mx.rsqrt(x.square().sum(axis=-1, keepdims=True) + 1e-6) for x in (q, k))
    q = q * _scale(q.shape[-1], scale)
    if repeats > 1:
        q, k = (mx.repeat(x, repeats, axis=1) for x in (q, k))
    return q, k, v, g, beta


def _by_steps(q, k, v, g, beta, state):
    """q, k [B, H, T, dk], v [B, H, T, dv], g, beta [B, H, T], state [B, H, dk, dv]."""
    outs, decay = [], mx.exp(g)
    for t in range(q.shape[2]):
        key = k[:, :, t : t + 1]
        state = state * decay[:, :, t, None, None]
        delta = beta[:, :, t, None, None] * (v[:, :, t : t + 1] - matmul(key, state))
        state = state + key.swapaxes(-1, -2) * delta
        outs.append(matmul(q[:, :, t : t + 1], state))
    return mx.concatenate(outs, axis=2), state


class _Systems(NamedTuple):
    """All chunks of a call, [B, H, chunks, CHUNK, ..], as the chunk programs see them.

    With G the running sum of g in a chunk: decay[i, j] = exp(G_i - G_j) for j <= i, else 0; grown =
    exp(G); rest = exp(G_last - G); final = exp(G_last); alike = (k k^T) decay below the diagonal;
    inverse = (I + beta alike)^-1; intra = (q k^T) decay.
    """

    q: mx.array
    k: mx.array
    v: mx.array
    beta: mx.array
    decay: mx.array
    grown: mx.array
    rest: mx.array
    final: mx.array
    alike: mx.array
    inverse: mx.array
    intra: mx.array

    def chunk(self, c: int) -> "_Systems":
        return _Systems(*(x[:, :, c] for x in self))

    def deltas(self, state: mx.array) -> mx.array:
        """The corrections of a chunk that begins with `state`."""
        known = self.grown * matmul(self.k, state)
        return matmul(self.inverse, self.beta * (self.v - known))

    def after(self, state: mx.array, deltas: mx.array) -> mx.array:
        """The state after a chunk."""
        return self.final * state + matmul(_t(self.k), self.rest * deltas)


def _cut(x: mx.array) -> mx.array:
    """[B, H, T, ..] as [B, H, chunks, CHUNK, ..], with zeros at the end."""
    padding = -x.shape[2] % CHUNK
    x = mx.pad(x, [(0, 0), (0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 3))
    return x.reshape(*x.shape[:2], -1, CHUNK, *x.shape[3:])


def _systems(q, k, v, g, beta) -> _Systems:
    q, k, v, sums, beta = _cut(q), _cut(k), _cut(v), mx.cumsum(_cut(g), axis=-1), _cut(beta)
    beta, times = beta[..., None], mx.arange(CHUNK)
    gaps = sums[..., :, None] - sums[..., None, :]
    lower = times[:, None] >= times
    decay = mx.exp(mx.where(lower, gaps, mx.array(-mx.inf, gaps.dtype)))
    alike = mx.where(times[:, None] > times, matmul(k, _t(k)) * decay, 0.0)
    grown, last = mx.exp(sums)[..., None], sums[..., -1:]
    rest, final = mx.exp(last - sums)[..., None], mx.exp(last)[..., None]
    inverse, intra = _inverse(beta * alike), matmul(q, _t(k)) * decay
    return _Systems(q, k, v, beta, decay, grown, rest, final, alike, inverse, intra)


def _by_chunks(q, k, v, g, beta, state):
    """The same, as the chunk programs do."""
    systems, outs = _systems(q, k, v, g, beta), []
    for c in range(systems.q.shape[2]):
        one = systems.chunk(c)
        deltas = one.deltas(state)
        outs.append(one.grown * matmul(one.q, state) + matmul(one.intra, deltas))
        state = one.after(state, deltas)
    return mx.concatenate(outs, axis=2)[:, :, : q.shape[2]], state


def _inverse(a: mx.array) -> mx.array:
    """(I + a)^-1 for strictly lower triangular a, by elimination.

    Not by the product of I + (-a)^(2^i): with equal keys its terms reach 1e8 and cancel.
    """
    x = mx.broadcast_to(mx.eye(CHUNK, dtype=a.dtype), a.shape)
    for j in range(CHUNK - 1):
        x = x - a[..., :, j : j + 1] * x[..., j : j + 1, :]
    return x


def vjp(primals, cotangent, output, *, normalise: bool, scale: float | None):
    """Chunk by chunk from the end: autodiff would keep every step of each system's elimination."""
    arrays, state = list(primals[:5]), (*primals, None)[5]
    q, v = arrays[0], arrays[2]
    wide = _wide(q)
    g_out, g_state = cotangent[0].astype(wide).swapaxes(1, 2), cotangent[1].astype(wide)
    if 0 in (*v.shape, *q.shape):
        gradients = [mx.zeros_like(x) for x in arrays]
    else:
        prepare = lambda *a: _prepare(*a, normalise=normalise, scale=scale)  # noqa: E731
        prepared = prepare(*arrays)
        held = mx.zeros(g_state.shape, wide) if state is None else state.astype(wide)
        inner, g_state = _chunk_gradients(_systems(*prepared), held, _cut(g_out), g_state)
        ends = [x.reshape(*x.shape[:2], -1, *x.shape[4:])[:, :, : q.shape[1]] for x in inner]
        gradients = mx.vjp(prepare, arrays, ends)[1]
    return (*gradients, None if state is None else g_state.astype(state.dtype))[: len(primals)]


def _chunk_gradients(systems: _Systems, state, g_out, g_state):
    """Gradients of q, k, v, g, beta, [B, H, chunks, CHUNK, ..], and of the first state."""
    chunks = [systems.chunk(c) for c in range(systems.q.shape[2])]
    states, deltas, g_inputs, g_states = [], [], [], []
    for one in chunks:
        states.append(state)
        deltas.append(one.deltas(state))
        state = one.after(state, deltas[-1])
    # What the next chunk wants of this one's state is all that goes from chunk to chunk.
    for c, one in reversed(list(enumerate(chunks))):
        g_delta = matmul(_t(one.intra), g_out[:, :, c]) + one.rest * matmul(one.k, g_state)
        g_inputs.append(matmul(_t(one.inverse), g_delta))
        g_states.append(g_state)
        g_known = -one.beta * one.grown * g_inputs[-1]
        g_state = one.final * g_state + matmul(_t(one.grown * one.q), g_out[:, :, c])
        g_state = g_state + matmul(_t(one.k), g_known)
    befores, corrections = mx.stack(states, axis=2), mx.stack(deltas, axis=2)
    wanted, afters = (mx.stack(x[::-1], axis=2) for x in (g_inputs, g_states))
    return _gradients_within(systems, befores, corrections, wanted, afters, g_out), g_state


def _gradients_within(systems: _Systems, state, deltas, g_input, g_state, g_out):
    """Gradients of q, k, v, g, beta of all chunks at once; g_input: of beta (v - exp(G) k S)."""
    q, k, v, beta, decay, grown, rest, final, alike, _, intra = systems
    known = grown * matmul(k, state)
    below = mx.tri(CHUNK, CHUNK, -1, dtype=decay.dtype)
    g_intra, g_system = matmul(g_out, _t(deltas)), -matmul(g_input, _t(deltas)) * below
    read, alone = g_intra * decay, g_system * beta * decay
    left = rest * deltas
    g_q = grown * matmul(g_out, _t(state)) + matmul(read, k)
    g_k = matmul(_t(read), q) + matmul(alone + _t(alone), k) + matmul(left, _t(g_state))
    g_k = g_k - matmul(beta * grown * g_input, _t(state))
    g_beta = (g_input * (v - known)).sum(axis=-1) + (g_system * alike).sum(axis=-1)
    # exp(G_i - G_j) in both matrices, exp(G_i) in what is read, exp(G_last - G_i) in what is left.
    gaps = g_intra * intra + g_system * beta * alike
    g_sums = gaps.sum(axis=-1) - gaps.sum(axis=-2)
    g_sums = g_sums + (g_out * (grown * matmul(q, state)) - beta * g_input * known).sum(axis=-1)
    g_left = (left * matmul(k, g_state)).sum(axis=-1)
    g_last = g_left.sum(axis=-1) + (final * g_state * state).sum(axis=(-1, -2))
    g_sums = g_sums - g_left
    g_g = mx.cumsum(g_sums, axis=-1, reverse=True) + g_last[..., None]
    return g_q, g_k, beta * g_input, g_g, g_beta


def _t(x: mx.array) -> mx.array:
    return x.swapaxes(-1, -2)


def gated_delta(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None = None,
    *,
    normalise: bool = True,
    scale: float | None = None,
) -> tuple[mx.array, mx.array]:
    """o_t = q_t S_t with S_t = exp(g_t) S_{t-1} + k_t (outer) beta_t (v_t - k_t exp(g_t) S_{t-1}).

    q, k [B, T, Hk, dk] and v [B, T, Hv, dv] of one floating dtype; Hv a multiple of Hk, each key
    head serves Hv / Hk consecutive value heads. g [B, T, Hv], the logarithm of the decay, not
    above 0, and beta [B, T, Hv] in any floating dtypes. state [B, Hv, dk, dv], float32, or None
    for zeros. normalise: q and k are divided by their length, x * rsqrt(sum(x^2) + 1e-6). scale:
    of q, after that; dk^-0.5 by default.
    Returns o [B, T, Hv, dv] in v's dtype and the state after T, float32; all is computed in
    float32 and o rounded once. A call continues exactly where the state was returned. Raises
    ValueError for shapes that do not fit, TypeError for dtypes. arXiv:2412.06464.
    """
    if q.ndim != 4 or k.shape != q.shape or v.ndim != 4 or v.shape[:2] != q.shape[:2]:
        raise ValueError(f"gated_delta: q {q.shape}, k {k.shape} and v {v.shape} do not fit")
    batch, _, key_heads, dk = q.shape
    heads, dv = v.shape[2:]
    if key_heads == 0 or heads % key_heads:
        raise ValueError(f"gated_delta: {key_heads} key heads cannot serve {heads} value heads")
    for name, gate in (("g", g), ("beta", beta)):
        if gate.shape != v.shape[:3]:
            raise ValueError(f"gated_delta: {name} is {gate.shape}, not {v.shape[:3]}")
    if state is not None and state.shape != (batch, heads, dk, dv):
        raise ValueError(f"gated_delta: state is {state.shape}, not {(batch, heads, dk, dv)}")
    _check_dtypes(q, k, v, g, beta, state)
    return KERNEL(q, k, v, g, beta, state, normalise=normalise, scale=scale)


def _check_dtypes(q, k, v, g, beta, state) -> None:
    if not (q.dtype == k.dtype == v.dtype and mx.issubdtype(q.dtype, mx.floating)):
        raise TypeError(f"gated_delta: q, k, v are {q.dtype}, {k.dtype}, {v.dtype}")
    if not all(mx.issubdtype(gate.dtype, mx.floating) for gate in (g, beta)):
        raise TypeError(f"gated_delta: g and beta are {g.dtype} and {beta.dtype}")
    kept = mx.float64 if q.dtype == mx.float64 else mx.float32
    if state is not None and state.dtype != kept:
        raise TypeError(f"gated_delta: state is {state.dtype}, not {kept}: less corrupts it")


def cost(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None = None,
    *,
    normalise: bool,
    scale: float | None,
) -> Cost:
    """Reads each array, writes o and the state, once; three products of a state's size a time."""
    kept = q.shape[0] * v.shape[2] * q.shape[3] * v.shape[3]
    read = q.nbytes + k.nbytes + 2 * v.nbytes + g.nbytes + beta.nbytes
    moved = read + 4 * kept * (1 if state is None else 2)
    return Cost(bytes=moved, flops=7 * kept * q.shape[1])


def decays(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """-exp(A) softplus(a) as in a model: heads from forgetful to long-remembering."""
    rates = np.exp(rng.uniform(np.log(0.01), np.log(16.0), shape[-1:]))
    return -rates * np.log1p(np.exp(rng.standard_normal(shape)))


def rates(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A sigmoid's values."""
    return 1 / (1 + np.exp(-rng.standard_normal(shape)))


def lasting(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Almost no decay."""
    return -1e-3 * rng.random(shape)


def full(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Each time replaces what its key reads."""
    return np.ones(shape)


def alike(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """The same key at all times, as repeated tokens give."""
    return np.broadcast_to(rng.standard_normal((shape[0], 1, *shape[2:])), shape)


def _case(
    axes: tuple[int, int, int, int, int, int],
    why: str,
    state: bool = True,
    key: Any = "normal",
    decay: Any = decays,
    rate: Any = rates,
    layout: str = "contiguous",
    normalise: bool = True,
    scale: float | None = None,
    size: float = 1.0,
) -> Case:
    batch, tokens, key_heads, heads, dk, dv = axes
    keys, gates = (batch, tokens, key_heads, dk), (batch, tokens, heads)
    arrays = {
        "q": Spec(keys, layout=layout, scale=size),
        "k": Spec(keys, layout=layout, fill=key, scale=size),
        "v": Spec((batch, tokens, heads, dv), layout=layout),
        "g": Spec(gates, "float32", decay),
        "beta": Spec(gates, fill=rate),
    }
    if state:
        arrays["state"] = Spec((batch, heads, dk, dv), "float32")
    return Case(arrays, why, {"normalise": normalise, "scale": scale})


CASES = [
    _case((1, 1, 4, 8, 128, 128), "Qwen3.6-35B-A3B, one token, a quarter of its heads"),
    _case((1, 70, 1, 2, 128, 128), "its prompt, one key head", state=False),
    _case((2, 5, 1, 2, 128, 64), "a few times, no state before", state=False),
    _case((2, 67, 2, 2, 16, 40), "chunks not whole, a head for each, a state before"),
    _case((1, 96, 1, 3, 20, 33), "whole chunks, ragged rows and columns"),
    _case((1, 64, 1, 1, 176, 8), "as many rows as a chunk holds"),
    _case((1, 3, 1, 1, 250, 5), "more rows than a chunk holds, few columns"),
    _case((1, 65, 1, 1, 200, 5), "many times, too many rows for chunks"),
    _case(
        (1, 100, 1, 1, 32, 32), "equal keys, hardly a decay", key=alike, decay=lasting, rate=full
    ),
    _case((1, 20, 1, 2, 24, 16), "the fallback's chunks, the kernel's steps"),
    _case((2, 4, 1, 2, 12, 7), "not normalised", normalise=False, scale=1.0, size=0.3),
    _case((1, 70, 1, 1, 12, 7), "chunks not normalised", normalise=False, scale=0.5, size=0.3),
    _case((1, 1, 1, 1, 2, 2), "all arrays in constant memory"),
    _case((1, 2, 1, 3, 1, 1), "one row, one column"),
    _case((1, 6, 2, 4, 10, 12), "transposed in memory", layout="transposed"),
    _case((1, 66, 2, 4, 10, 12), "starts one element into its buffer", layout="offset"),
    _case((1, 6, 2, 4, 10, 12), "every other element of a buffer", layout="strided"),
]

# Beyond rounding: sums of up to 250 terms, and of 100 times of corrections. Half types compute in
# float32; o is rounded once.
NMSE = {"float32": 1e-12, "float16": 1e-9, "bfloat16": 1e-8}

KERNEL = Kernel(
    "gated_delta",
    function=gated_delta,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=Metal(
        delta.VARIANTS, problem, delta.choose, delta.launch, outputs=("out", "next"), bar=delta.bar
    ),
    cpu="gated_delta",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
