"""The router of a mixture of experts: softmax in float32, the k largest, renormalised.

One simdgroup a row holds all logits in registers and takes the largest k times.
"""

from dataclasses import dataclass
from math import prod

import mlx.core as mx
import numpy as np

from . import softmax
from .kernel import Kernel
from .spec import FALLBACK, Case, Chip, Cost, Launch, Metal, Program, Spec

# Softmax keeps the order of the logits, so these are compared: exact ties only. A row whose
# probabilities are NaN is all ties, as its probabilities would be.
SOURCE = """
    // logits: [rows, E], weights, indices: [rows, k]
    uint lane = thread_index_in_simdgroup;
    uint experts = logits_shape[1];
    ulong start = ulong(thread_position_in_grid.y) * experts;
    float values[PER_LANE];
    float m = -INFINITY;
    for (uint i = 0; i < PER_LANE; i++) {
        uint c = lane + 32 * i;
        values[i] = c < experts ? float(logits[start + c]) : -INFINITY;
        m = metal::fmax(m, values[i]);
    }
    m = metal::simd_max(m);
    float sum = 0.0f;
    for (uint i = 0; i < PER_LANE; i++) {
        if (lane + 32 * i < experts) {
            sum += metal::precise::exp(values[i] - m);
        }
    }
    sum = metal::simd_sum(sum);
    bool poisoned = metal::isnan(sum);
    uint taken = 0;
    float weight = 0.0f;
    float chosen_sum = 0.0f;
    uint index = 0;
    for (uint rank = 0; rank < uint(k); rank++) {
        float best = -INFINITY;
        uint at = experts;
        for (uint i = 0; i < PER_LANE; i++) {
            uint c = lane + 32 * i;
            float value = poisoned ? 0.0f : values[i];
            if (c < experts && (taken >> i & 1) == 0 && (at == experts || value > best)) {
                best = value;
                at = c;
            }
        }
        float top = metal::simd_max(best);
        uint winner = metal::simd_min(at < experts && best == top ? at : experts);
        if (winner % 32 == lane) {
            taken |= 1u << (winner / 32);
        }
        float share = metal::precise::exp(top - m);
        chosen_sum += share;
        if (lane == rank) {
            weight = share;
            index = winner;
        }
    }
    if (lane < uint(k)) {
        ulong at = ulong(thread_position_in_grid.y) * uint(k) + lane;
        weights[at] = T(poisoned ? NAN : weight / (NORMALISE ? chosen_sum : sum));
        indices[at] = int(index);
    }
"""

PROGRAM = Program("router", ("logits", "k"), ("weights", "indices"), SOURCE)

VARIANTS = {"simdgroup": "one simdgroup a row; up to 512 experts, 32 of them chosen"}

# 16 values a lane in registers; a lane for each choice.
MOST_EXPERTS, MOST_CHOICES = 512, 32
ROWS_A_THREADGROUP = 4


@dataclass(frozen=True)
class Routing:
    """Logits of `leading` shape times `experts`, of which k are chosen."""

    leading: tuple[int, ...]
    rows: int
    experts: int
    k: int
    normalise: bool
    dtype: mx.Dtype


def problem(logits: mx.array, *, k: int, normalise: bool) -> Routing:
    """Describe the call; k fits."""
    leading, experts = logits.shape[:-1], logits.shape[-1]
    return Routing(leading, prod(leading), experts, k, normalise, logits.dtype)


def choose(routing: Routing, chip: Chip) -> str:
    """The one variant where it serves."""
    if routing.dtype not in (mx.float32, mx.float16, mx.bfloat16):
        return FALLBACK
    fits = routing.experts <= MOST_EXPERTS and 1 <= routing.k <= MOST_CHOICES
    return "simdgroup" if fits and routing.rows else FALLBACK


def launch(routing: Routing, variant: str) -> list[Launch]:
    """The one dispatch; ValueError for too many experts or choices, or no rows."""
    if choose(routing, Chip.here()) == FALLBACK:
        raise ValueError(f"router holds {MOST_EXPERTS} experts and {MOST_CHOICES} choices")
    shape = (*routing.leading, routing.k)
    per_lane = 1 << (-(-routing.experts // 32) - 1).bit_length()
    template = (("T", routing.dtype), ("PER_LANE", per_lane), ("NORMALISE", routing.normalise))
    return [
        Launch(
            PROGRAM,
            inputs={"logits": (routing.rows, routing.experts)},
            outputs={"weights": (shape, routing.dtype), "indices": (shape, mx.int32)},
            grid=(32, routing.rows, 1),
            threadgroup=(32, ROWS_A_THREADGROUP, 1),
            template=template,
            scalars={"k": routing.k},
        )
    ]


def reference(logits: np.ndarray, *, k: int, normalise: bool) -> tuple[np.ndarray, np.ndarray]:
    """In float64; indices int32."""
    p = softmax.reference(logits, logits.ndim - 1)
    keys = np.where(np.isnan(p), 0.0, -np.asarray(logits, np.float64))
    indices = np.argsort(keys, axis=-1, kind="stable")[..., :k]
    weights = np.take_along_axis(p, indices, -1)
    if normalise:
        weights = weights / weights.sum(-1, keepdims=True)
    return weights, indices.astype(np.int32)


def fallback(logits: mx.array, *, k: int, normalise: bool) -> tuple[mx.array, mx.array]:
    """By a full sort, which is stable in MLX on the CPU (seen with 0.32.4)."""
    if logits.size == 0:
        shape = (*logits.shape[:-1], k)
        return mx.zeros(shape, logits.dtype), mx.zeros(shape, mx.int32)
    wide = logits.astype(mx.float64 if logits.dtype == mx.float64 else mx.float32)
    p = softmax.fallback(wide, logits.ndim - 1)
    keys = mx.where(mx.isnan(p), mx.zeros_like(wide), -wide)
    indices = mx.stop_gradient(mx.argsort(keys, axis=-1)[..., :k])
    weights = mx.take_along_axis(p, indices, axis=-1)
    if normalise:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return weights.astype(logits.dtype), indices.astype(mx.int32)


def vjp(primals, cotangent, output, *, k: int, normalise: bool) -> tuple[mx.array]:
    """Softmax's, over the chosen when they are renormalised; other logits are constant then."""
    (logits,) = primals
    wide = mx.float64 if logits.dtype == mx.float64 else mx.float32
    p = softmax.softmax(logits.astype(wide))
    indices, g = mx.stop_gradient(output[1]), cotangent[0].astype(wide)
    chosen = mx.take_along_axis(p, indices, axis=-1)
    if normalise:
        chosen = chosen / chosen.sum(axis=-1, keepdims=True)
    mean = (g * chosen).sum(axis=-1, keepdims=True)
    if normalise:
        gradient = mx.put_along_axis(mx.zeros_like(p), indices, chosen * (g - mean), axis=-1)
    else:
        spread = mx.put_along_axis(mx.zeros_like(p), indices, g, axis=-1)
        gradient = p * (spread - mean)
    return (gradient.astype(logits.dtype),)


def router(logits: mx.array, k: int, normalise: bool = True) -> tuple[mx.array, mx.array]:
    """The k most likely experts of each row, the likeliest first, and their weights.

    logits [..., E] in float32, float16, bfloat16, or float64 on the CPU. Returns weights [..., k]
    in that dtype and indices [..., k], int32. Weights are probabilities, softmax in float32,
    divided by their sum if `normalise`, rounded once. Equal logits: the lowest index first. A row
    whose probabilities are NaN gives weights NaN and experts 0 to k - 1. Raises TypeError for
    another dtype, ValueError for a k out of range.
    """
    if not mx.issubdtype(logits.dtype, mx.floating):
        raise TypeError(f"router takes a floating dtype, not {logits.dtype}")
    if logits.ndim == 0 or not 1 <= k <= logits.shape[-1]:
        raise ValueError(f"router: k {k} is out of range for logits {logits.shape}")
    return KERNEL(logits, k=k, normalise=normalise)


def cost(logits: mx.array, *, k: int, normalise: bool) -> Cost:
    """Reads the logits, writes k weights and indices a row; softmax, then k comparisons each."""
    rows = prod(logits.shape[:-1])
    moved = logits.nbytes + rows * k * (logits.itemsize + 4)
    return Cost(bytes=moved, flops=(3 + k) * logits.size)


def tied(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """One of five values: ties everywhere."""
    return rng.integers(-2, 3, shape).astype(np.float32)


def _case(shape: tuple[int, ...], k: int, why: str, normalise: bool = True, **spec) -> Case:
    return Case({"logits": Spec(shape, **spec)}, why, {"k": k, "normalise": normalise})


CASES = [
    _case((1, 256), 8, "Qwen3.6-35B-A3B, one token"),
    _case((70, 256), 8, "a prompt, rows not a multiple of a threadgroup"),
    _case((9, 128), 8, "Qwen3-30B-A3B without renormalising", normalise=False),
    _case((5, 512), 10, "Qwen3-Next, as many experts as a simdgroup holds"),
    _case((2, 3, 60), 4, "experts not a multiple of 32"),
    _case((7, 5), 5, "all are chosen"),
    _case((4, 64), 1, "one is chosen: weight exactly 1"),
    _case((3, 40), 32, "a choice for each lane"),
    _case((1, 3), 2, "fewer than 8 elements arrive in constant memory"),
    _case((3, 1), 1, "one expert"),
    _case((20, 256), 8, "ties go to the lowest index", fill=tied),
    _case((20, 33), 7, "ties, not renormalised", fill=tied, normalise=False),
    _case((6, 256), 8, "peaked", scale=40.0),
    _case((6, 40), 8, "special values", fill="specials"),
    _case((6, 100), 60, "more -inf than finite, more choices than lanes", fill="specials"),
    _case((6, 40), 30, "-inf chosen with weight 0", fill="specials"),
    _case((3, 600), 8, "more experts than registers go to MLX"),
    _case((6, 64), 6, "transposed in memory", layout="transposed"),
    _case((6, 64), 6, "starts one element into its buffer", layout="offset"),
    _case((6, 64), 6, "every other element of a buffer", layout="strided"),
]

# Beyond rounding: exp, two sums and a division in float32.
NMSE = {"float32": 1e-12, "float16": 1e-9, "bfloat16": 1e-8}

KERNEL = Kernel(
    "router",
    function=router,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=Metal(VARIANTS, problem, choose, launch, outputs=("weights", "indices")),
    cpu="router",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
