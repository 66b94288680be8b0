"""A mixture of experts for few tokens: only the weights of the chosen experts are read, once.

Two dispatches: gate, up and SwiGLU of each token's experts, then down with the experts' weighted
sum. Weights are plain or e4m3 with scales of 128 x 128 blocks; what lies between is float32.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import mlx.core as mx
import numpy as np

from . import dots, e4m3
from .fp8_grouped import BLOCK, expand, scale_kind
from .fp8_matmul import SCALE_SHIFTS, SHIFTS
from .kernel import Kernel
from .matmul import matmul
from .spec import FALLBACK, Case, Chip, Cost, Launch, Metal, Program, Spec

# One output a simdgroup: the same row of gate and of up. An expert that does not exist leaves
# zeros. W is the type of the weights.
UP = """
    // x: [T, K], gate_up: [E, 2 I, K], indices: [T, S], hidden: [T, S, I]
    threadgroup float4 staged[STAGED / 4];
    constexpr uint RUN = 16 / sizeof(W);
    constexpr uint STEP = 32 * RUN;
    uint k = x_shape[1];
    uint inner = gate_up_shape[1] / 2;
    uint lane = thread_index_in_simdgroup;
    uint place = threadgroup_position_in_grid.z;
    uint expert = uint(indices[place]);
    ulong x_at = place / uint(indices_shape[1]) * ulong(k);
    uint row = metal::min(uint(thread_position_in_grid.y), inner - 1);
    bool wide = wide_rows(gate_up, k);
    k = expert < uint(gate_up_shape[0]) ? k : 0;
    float sums[2] = {};
    for (uint begin = 0; begin < k; begin += STAGED) {
        uint staging = metal::min(uint(STAGED), (k - begin + STEP - 1) / STEP * STEP);
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint e = thread_index_in_threadgroup; e < staging; e += 32 * SIMDGROUPS) {
            reinterpret_cast<threadgroup float*>(staged)[slot<RUN>(e)] =
                begin + e < k ? float(x[x_at + begin + e]) : 0.0f;
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint at = begin + RUN * lane; at < metal::min(begin + staging, k); at += STEP) {
            const threadgroup float4* step = staged + (at - begin) / STEP * STEP / 4;
            for (uint part = 0; part < 2; part++) {
                ulong line = ulong(expert) * 2 * inner + part * inner + row;
                float values[RUN];
                read_run(gate_up, line * k + at, k - at, wide, values);
                sums[part] += dot_run<RUN>(values, step, lane)@UP_SCALE@;
            }
        }
    }
    float gate = metal::simd_sum(sums[0]);
    float up = metal::simd_sum(sums[1]);
    if (lane == 0 && thread_position_in_grid.y < inner) {
        hidden[ulong(place) * inner + row] = gate / (1.0f + metal::precise::exp(-gate)) * up;
    }
"""

# scale_step: scales of an expert; the one of a weight is found by shifts, as in fp8_matmul.FEW.
UP_SCALE = """ *
                    float(gate_up_scale[ulong(expert) * uint(scale_step) +
                        ((part * inner + row) >> row_shift) * (((k - 1) >> column_shift) + 1) +
                        (at >> column_shift)])"""

# One output a simdgroup, the products of all experts added up; the hidden values of as many experts
# as fit are staged at a time, already weighted.
DOWN = """
    // hidden: [T, S, I], down: [E, K, I], indices, weights: [T, S], out: [T, K]
    threadgroup float4 staged[STAGED / 4];
    constexpr uint RUN = 16 / sizeof(W);
    constexpr uint STEP = 32 * RUN;
    uint n = down_shape[1];
    uint inner = down_shape[2];
    uint slots = indices_shape[1];
    uint lane = thread_index_in_simdgroup;
    uint token = threadgroup_position_in_grid.z;
    uint row = metal::min(uint(thread_position_in_grid.y), n - 1);
    bool wide = wide_rows(down, inner);
    uint chunk = metal::min((inner + STEP - 1) / STEP * STEP, uint(STAGED));
    uint most = STAGED / chunk;
    float sum = 0.0f;
    for (uint first = 0; first < slots; first += most) {
        uint span = metal::min(most, slots - first);
        ulong place = ulong(token) * slots + first;
        for (uint begin = 0; begin < inner; begin += chunk) {
            uint staging = metal::min(chunk, (inner - begin + STEP - 1) / STEP * STEP);
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            for (uint s = 0; s < span; s++) {
                float weight = float(weights[place + s]);
                for (uint e = thread_index_in_threadgroup; e < staging; e += 32 * SIMDGROUPS) {
                    uint i = begin + e;
                    reinterpret_cast<threadgroup float*>(staged)[s * chunk + slot<RUN>(e)] =
                        i < inner ? weight * hidden[(place + s) * inner + i] : 0.0f;
                }
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            for (uint s = 0; s < span; s++) {
                uint expert = uint(indices[place + s]);
                uint end = metal::min(begin + staging, inner);
                end = expert < uint(down_shape[0]) ? end : 0;
                for (uint at = begin + RUN * lane; at < end; at += STEP) {
                    float values[RUN];
                    ulong line = ulong(expert) * n + row;
                    read_run(down, line * inner + at, inner - at, wide, values);
                    uint step = s * chunk + (at - begin) / STEP * STEP;
                    sum += dot_run<RUN>(values, staged + step / 4, lane)@DOWN_SCALE@;
                }
            }
        }
    }
    sum = metal::simd_sum(sum);
    if (lane == 0 && thread_position_in_grid.y < n) {
        out[ulong(token) * n + row] = T(sum);
    }
"""

DOWN_SCALE = """ *
                        float(down_scale[ulong(expert) * uint(scale_step) +
                            (row >> row_shift) * (((inner - 1) >> column_shift) + 1) +
                            (at >> column_shift)])"""

UP_INPUTS = ("x", "gate_up", "indices")
DOWN_INPUTS = ("hidden", "down", "indices", "weights")
PLAIN_UP = UP.replace("@UP_SCALE@", "")
PLAIN_DOWN = DOWN.replace("@DOWN_SCALE@", "")
SCALED_UP = UP.replace("@UP_SCALE@", UP_SCALE)
SCALED_DOWN = DOWN.replace("@DOWN_SCALE@", DOWN_SCALE)

PLAIN_PROGRAMS = (
    Program("moe_up", UP_INPUTS, ("hidden",), PLAIN_UP, dots.HEADER),
    Program("moe_down", DOWN_INPUTS, ("out",), PLAIN_DOWN, dots.HEADER),
)
PLACES = ("scale_step", *SHIFTS)
SCALED_PROGRAMS = (
    Program(
        "moe_up_fp8",
        (*UP_INPUTS, "gate_up_scale", *PLACES),
        ("hidden",),
        SCALED_UP,
        dots.HEADER,
    ),
    Program(
        "moe_down_fp8",
        (*DOWN_INPUTS, "down_scale", *PLACES),
        ("out",),
        SCALED_DOWN,
        dots.HEADER,
    ),
)

VARIANTS = {"decode": "each token reads its own experts; few tokens"}

SIMDGROUPS = 8

# Floats of x, and of hidden values, that a threadgroup stages at a time: Qwen3.6's K, and eight of
# its experts' 512 values.
UP_STAGED, DOWN_STAGED = 2048, 4096

# Tokens times experts from which tokens share experts often enough that sorting them for a
# grouped product pays. Not measured on a Mac.
MAX_PLACES = 64


@dataclass(frozen=True)
class Mixture:
    """`tokens` rows of k, each through `slots` of `experts` with `inner` hidden values."""

    tokens: int
    slots: int
    experts: int
    inner: int
    k: int
    scale_shapes: tuple[tuple[int, ...], ...]
    dtype: mx.Dtype
    stored: mx.Dtype


def problem(x, gate_up, down, indices, weights, gate_up_scale=None, down_scale=None) -> Mixture:
    """Describe the call; the shapes fit."""
    shapes = tuple(s.shape for s in (gate_up_scale, down_scale) if s is not None)
    experts, k, inner = down.shape
    tokens, slots = indices.shape
    return Mixture(tokens, slots, experts, inner, k, shapes, x.dtype, gate_up.dtype)


def choose(mixture: Mixture, chip: Chip) -> str:
    """The one variant for few tokens; needs no device, so tests can pin it."""
    known = mixture.dtype in (mx.float32, mx.float16, mx.bfloat16)
    few = mixture.tokens * mixture.slots <= MAX_PLACES
    return "decode" if known and few and not _obstacle(mixture) else FALLBACK


def _obstacle(mixture: Mixture) -> str:
    """What the programs cannot take, or ""."""
    size = mixture.experts * mixture.inner * mixture.k
    if 0 in (mixture.tokens, mixture.slots, size):
        return "no empty arrays"
    if size < 8:
        return "no weights in constant memory (fewer than 8)"
    return ""


def launch(mixture: Mixture, variant: str) -> list[Launch]:
    """Up, then down; ValueError where the programs cannot serve the problem."""
    obstacle = _obstacle(mixture)
    if obstacle:
        raise ValueError(f"moe_decode takes {obstacle}")
    programs = SCALED_PROGRAMS if mixture.scale_shapes else PLAIN_PROGRAMS
    return [_up(mixture, programs[0]), _down(mixture, programs[1])]


def _up(mixture: Mixture, program: Program) -> Launch:
    places = (mixture.tokens, mixture.slots)
    inputs: dict[str, tuple[int, ...]] = {
        "x": (mixture.tokens, mixture.k),
        "gate_up": (mixture.experts, 2 * mixture.inner, mixture.k),
        "indices": places,
    }
    if mixture.scale_shapes:
        inputs["gate_up_scale"] = mixture.scale_shapes[0]
    template = {"W": mixture.stored, "STAGED": UP_STAGED, "SIMDGROUPS": SIMDGROUPS}
    return Launch(
        program,
        inputs,
        outputs={"hidden": ((*places, mixture.inner), mx.float32)},
        grid=(32, _rounded(mixture.inner, SIMDGROUPS), mixture.tokens * mixture.slots),
        threadgroup=(32, SIMDGROUPS, 1),
        template=tuple(template.items()),
        threadgroup_bytes=4 * UP_STAGED,
        scalars=_places(mixture, 0, inputs["gate_up"]),
    )


def _down(mixture: Mixture, program: Program) -> Launch:
    places = (mixture.tokens, mixture.slots)
    inputs: dict[str, tuple[int, ...]] = {
        "hidden": (*places, mixture.inner),
        "down": (mixture.experts, mixture.k, mixture.inner),
        "indices": places,
        "weights": places,
    }
    if mixture.scale_shapes:
        inputs["down_scale"] = mixture.scale_shapes[1]
    template = {
        "T": mixture.dtype,
        "W": mixture.stored,
        "STAGED": DOWN_STAGED,
        "SIMDGROUPS": SIMDGROUPS,
    }
    return Launch(
        program,
        inputs,
        outputs={"out": ((mixture.tokens, mixture.k), mixture.dtype)},
        grid=(32, _rounded(mixture.k, SIMDGROUPS), mixture.tokens),
        threadgroup=(32, SIMDGROUPS, 1),
        template=tuple(template.items()),
        threadgroup_bytes=4 * DOWN_STAGED,
        scalars=_places(mixture, 1, inputs["down"]),
    )


def _places(mixture: Mixture, which: int, stored: tuple[int, ...]) -> dict[str, int]:
    """Where scales lie, of gate and up (0) or of down (1)."""
    if not mixture.scale_shapes:
        return {}
    shape = mixture.scale_shapes[which]
    shifts = SCALE_SHIFTS[scale_kind(shape, stored)]
    return {"scale_step": prod(shape[1:]), **dict(zip(SHIFTS, shifts, strict=True))}


def _rounded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def reference(x, gate_up, down, indices, weights, gate_up_scale=None, down_scale=None):
    """Token by token, expert by expert, in float64."""

    def of(stored, scale, expert):
        if scale is None:
            return np.asarray(stored[expert], np.float64)
        one = slice(expert, expert + 1)
        scales = expand(np.asarray(scale[one], np.float64), stored[one].shape, np.repeat)
        return (e4m3.widen(stored[one]) * scales)[0]

    x, weights = np.asarray(x, np.float64), np.asarray(weights, np.float64)
    out = np.zeros_like(x)
    with np.errstate(invalid="ignore", over="ignore"):
        for token, slot in np.ndindex(*indices.shape):
            expert = int(indices[token, slot])
            if 0 <= expert < gate_up.shape[0]:
                gate, up = np.split(of(gate_up, gate_up_scale, expert) @ x[token], 2)
                hidden = gate / (1 + np.exp(-gate)) * up
                out[token] += weights[token, slot] * (of(down, down_scale, expert) @ hidden)
    return out


def fallback(x, gate_up, down, indices, weights, gate_up_scale=None, down_scale=None) -> mx.array:
    """Gathers each token's experts, or, for many tokens, MLX's gathered products.

    In float32 on the CPU, where half types raise; elsewhere products are in x's dtype.
    """
    tokens, slots = indices.shape
    if 0 in (*x.shape, *down.shape, slots):
        return mx.zeros_like(x)
    half = x.dtype in (mx.float16, mx.bfloat16)
    wide = mx.float32 if half and mx.default_device().type == mx.cpu else x.dtype
    flat = mx.stop_gradient(indices).flatten().astype(mx.int32)
    known = (flat >= 0) & (flat < down.shape[0])
    flat = mx.where(known, flat, 0)
    rows = mx.broadcast_to(x[:, None, None, :], (tokens, slots, 1, x.shape[1]))
    rows = rows.reshape(tokens * slots, 1, x.shape[1]).astype(wide)
    gate, up = mx.split(_products(rows, gate_up, gate_up_scale, flat, wide), 2, axis=-1)
    hidden = gate * mx.sigmoid(gate) * up
    parts = _products(hidden, down, down_scale, flat, wide)[:, 0, :].astype(_exact(wide))
    factors = weights.flatten().astype(parts.dtype)[:, None]
    parts = mx.where(known[:, None], parts * factors, 0)
    return parts.reshape(tokens, slots, -1).sum(axis=1).astype(x.dtype)


def _exact(wide: mx.Dtype) -> mx.Dtype:
    return mx.float64 if wide == mx.float64 else mx.float32


def _products(rows: mx.array, stored: mx.array, scale: Any, flat: mx.array, wide: mx.Dtype):
    """rows [R, 1, K] times the transposed weights [E, N, K] of each row's expert."""
    if scale is None and len(flat) > stored.shape[0] and wide != mx.float64:
        return mx.gather_mm(rows, stored.astype(wide).swapaxes(1, 2), rhs_indices=flat)
    taken = mx.take(mx.stop_gradient(stored) if scale is not None else stored, flat, axis=0)
    if scale is not None:
        # MLX's from_fp8 gives wrong float64 (0.32.4).
        scales = expand(mx.take(scale, flat, axis=0).astype(mx.float32), taken.shape, mx.repeat)
        taken = mx.from_fp8(taken, mx.float32) * scales
    return matmul(rows, taken.astype(wide).swapaxes(1, 2))


def moe_decode(
    x: mx.array,
    gate_up: mx.array,
    down: mx.array,
    indices: mx.array,
    weights: mx.array,
    scales: tuple[mx.array, mx.array] | None = None,
) -> mx.array:
    """sum_s weights[t, s] * down[e] @ (silu(gate[e] @ x[t]) * (up[e] @ x[t])), e = indices[t, s].

    x [T, K]; gate_up [E, 2 I, K], gate rows first; down [E, K, I]; indices [T, S], int32 or
    uint32 (an expert that does not exist adds nothing); weights [T, S], floating. Expert weights
    are of x's dtype, or e4m3 codes (uint8) with `scales` of (gate_up, down), float32 or bfloat16:
    of their 128 x 128 blocks, ([E, ceil(2 I / 128), ceil(K / 128)],
    [E, ceil(K / 128), ceil(I / 128)]), of each output, [E, N, 1], or of each expert, [E].
    Sums are float32, the result [T, K] is rounded once to x's dtype. Meant for few tokens: for a
    prompt sort the tokens by expert and use grouped_matmul. Raises ValueError for shapes that do
    not fit, TypeError for dtypes.
    """
    _check(x, gate_up, down, indices, weights)
    if scales is None:
        if gate_up.dtype != x.dtype:
            raise TypeError(f"moe_decode: {gate_up.dtype} weights and {x.dtype} x, but no scales")
        return KERNEL(x, gate_up, down, indices, weights)
    if gate_up.dtype != mx.uint8:
        raise TypeError(f"moe_decode: scales are for uint8 codes, not for {gate_up.dtype}")
    for name, stored, scale in zip(("gate_up", "down"), (gate_up, down), scales, strict=True):
        experts, n, k = stored.shape
        grid = (experts, -(-n // BLOCK), -(-k // BLOCK))
        if scale.shape not in ((experts,), (experts, 1, 1), (experts, n, 1), grid):
            raise ValueError(f"moe_decode: {name} {stored.shape} has scales {scale.shape}")
        if not mx.issubdtype(scale.dtype, mx.floating):
            raise TypeError(f"moe_decode takes floating scales, not {scale.dtype}")
    return KERNEL(x, gate_up, down, indices, weights, *scales)


def _check(x, gate_up, down, indices, weights) -> None:
    if x.ndim != 2 or down.ndim != 3 or down.shape[1] != x.shape[1]:
        raise ValueError(f"moe_decode: x {x.shape}, down {down.shape} are not [T, K], [E, K, I]")
    experts, k, inner = down.shape
    if gate_up.shape != (experts, 2 * inner, k):
        raise ValueError(f"moe_decode: gate_up {gate_up.shape} is not {(experts, 2 * inner, k)}")
    if indices.ndim != 2 or len(indices) != len(x) or indices.shape != weights.shape:
        raise ValueError(
            f"moe_decode: indices {indices.shape}, weights {weights.shape}: not [T, S]"
        )
    if indices.dtype not in (mx.int32, mx.uint32):
        raise TypeError(f"moe_decode takes indices of int32 or uint32, not {indices.dtype}")
    if gate_up.dtype != down.dtype:
        raise TypeError(f"moe_decode: gate_up {gate_up.dtype}, down {down.dtype} differ")
    if not all(mx.issubdtype(array.dtype, mx.floating) for array in (x, weights)):
        raise TypeError(f"moe_decode takes floating x and weights, not {x.dtype}, {weights.dtype}")


def in_order(x, gate_up, down, indices, weights, gate_up_scale=None, down_scale=None) -> mx.array:
    """moe_decode with its arrays in a row, as cases have them."""
    if gate_up_scale is None or down_scale is None:
        return moe_decode(x, gate_up, down, indices, weights)
    return moe_decode(x, gate_up, down, indices, weights, (gate_up_scale, down_scale))


def cost(x, gate_up, down, indices, weights, gate_up_scale=None, down_scale=None) -> Cost:
    """Reads the weights of as many experts as there are places, x and the routing; writes out."""
    places, experts = indices.size, max(down.shape[0], 1)
    stored = [array for array in (gate_up, down, gate_up_scale, down_scale) if array is not None]
    read = sum(array.nbytes for array in stored) * min(places, experts) // experts
    small = 2 * x.nbytes + indices.nbytes + weights.nbytes
    return Cost(bytes=read + small, flops=6 * places * down.shape[1] * down.shape[2])


def experts(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Eleven experts, each at most once."""
    return rng.permutation(11)[: shape[0] * shape[1]].reshape(shape)


def repeated(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Experts 0 to 3, several times."""
    return rng.integers(0, 4, shape)


def absent(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Expert 1, and experts below the first and beyond the last."""
    return np.resize([1, -1, 99, 4], shape)


def shares(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Positive, one for each token in all."""
    values = rng.uniform(0.1, 1.0, shape)
    return values / values.sum(axis=-1, keepdims=True)


def codes(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Codes of normal values that use the whole range up to 448."""
    return rng.choice(e4m3.narrow(100 * rng.standard_normal(4096)), shape)


def _scales(shape: tuple[int, int, int], dtype: str, kind: str) -> Spec:
    def scales(rng: np.random.Generator, grid: tuple[int, ...]) -> np.ndarray:
        return rng.uniform(0.5, 2.0, grid) / 100 * shape[2] ** -0.5

    count, n, k = shape
    shapes = {"block": (count, -(-n // BLOCK), -(-k // BLOCK)), "row": (count, n, 1)}
    return Spec(shapes.get(kind, (count,)), dtype, scales)


def _case(
    tokens, slots, count, inner, k, why, fill=experts, fp8="", x="normal", kind="block"
) -> Case:
    up, down = (count, 2 * inner, k), (count, k, inner)
    arrays: dict[str, Spec | None] = {
        "x": Spec((tokens, k), fill=x),
        "gate_up": Spec(up, "uint8", codes) if fp8 else Spec(up, scale=k**-0.5),
        "down": Spec(down, "uint8", codes) if fp8 else Spec(down, scale=inner**-0.5),
        "indices": Spec((tokens, slots), "int32", fill),
        "weights": Spec((tokens, slots), None, shares),
    }
    if fp8:
        arrays["gate_up_scale"] = _scales(up, fp8, kind)
        arrays["down_scale"] = _scales(down, fp8, kind)
    return Case(arrays, why)


CASES = [
    _case(1, 2, 11, 24, 40, "one token, two experts, small"),
    _case(1, 8, 11, 64, 2048, "Qwen3.6-35B-A3B's K and experts a token, 64 hidden values"),
    _case(1, 8, 11, 512, 144, "Qwen3.6-35B-A3B's hidden values: eight experts staged at once"),
    _case(1, 8, 11, 128, 1024, "the same in FP8, blocks of 128", fp8="bfloat16"),
    _case(3, 3, 4, 70, 150, "three tokens share experts; nothing a multiple of a run", repeated),
    _case(2, 4, 11, 100, 200, "FP8, blocks cut off at every edge, rows unaligned", fp8="float32"),
    _case(2, 2, 11, 40, 150, "FP8, a scale for each output", fp8="float32", kind="row"),
    _case(1, 2, 11, 48, 32, "FP8, a scale for each expert", fp8="bfloat16", kind="expert"),
    _case(1, 3, 11, 2100, 48, "one expert's hidden values staged at a time"),
    _case(2, 4, 4, 32, 64, "experts that do not exist add nothing", absent),
    _case(1, 1, 1, 2, 3, "fewer than 8 weights go to MLX", absent),
    _case(6, 1, 11, 32, 64, "NaN and infinity in x stay with their tokens", x="specials"),
    _case(40, 2, 4, 16, 24, "many tokens go to MLX", repeated),
]

# Beyond rounding, K and I up to 2100. Half types round once, at the end.
NMSE = {"float32": 4e-12, "float16": 1e-9, "bfloat16": 1e-8}

KERNEL = Kernel(
    "moe_decode",
    function=in_order,
    reference=reference,
    fallback=fallback,
    vjp=None,
    metal=Metal(VARIANTS, problem, choose, launch),
    cpu="moe_decode",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
