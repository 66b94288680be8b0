"""The SwiGLU pair, silu(x @ gate.T) * (x @ up.T), for one to eight rows of x: bound by reading w.

One simdgroup computes one or two outputs of every row from their gate and up weights, so that each
weight is read once and the two products never reach memory.
"""

from dataclasses import dataclass
from math import prod

import mlx.core as mx
import numpy as np

from .gemv import linear
from .kernel import Kernel
from .matmul import matmul
from .spec import FALLBACK, Case, Chip, Cost, Launch, Metal, Program, Spec

# Neighbouring lanes read neighbouring elements, so that every load of a simdgroup is whole lines;
# VEC such loads of each weight row are in flight. Scalars, as a row-contiguous view may start at
# any element. Out-of-range outputs of the last simdgroup repeat the last one and are dropped.
SOURCE = """
    // x: [M, K], gate_up: [2 I, K], out: [M, I]; a simdgroup COLUMNS outputs of each row
    uint n = uint(gate_up_shape[0]) / 2;
    uint k = gate_up_shape[1];
    uint lane = thread_index_in_simdgroup;
    uint first = thread_position_in_grid.y * COLUMNS;
    if (first >= n) {
        return;
    }
    // Gate rows first, then the up rows of the same outputs.
    ulong starts[2 * COLUMNS];
    for (uint c = 0; c < COLUMNS; c++) {
        ulong column = metal::min(first + c, n - 1);
        starts[c] = column * k;
        starts[COLUMNS + c] = (column + n) * k;
    }
    float sums[M][2 * COLUMNS];
    for (int m = 0; m < M; m++) {
        for (int r = 0; r < 2 * COLUMNS; r++) {
            sums[m][r] = 0.0f;
        }
    }
    uint whole = k - k % (32 * VEC);
    for (uint base = lane; base < whole; base += 32 * VEC) {
        float weights[2 * COLUMNS][VEC];
        for (int r = 0; r < 2 * COLUMNS; r++) {
            for (int j = 0; j < VEC; j++) {
                weights[r][j] = float(gate_up[starts[r] + base + 32 * j]);
            }
        }
        for (int m = 0; m < M; m++) {
            for (int j = 0; j < VEC; j++) {
                float value = float(x[ulong(m) * k + base + 32 * j]);
                for (int r = 0; r < 2 * COLUMNS; r++) {
                    sums[m][r] += value * weights[r][j];
                }
            }
        }
    }
    for (uint i = whole + lane; i < k; i += 32) {
        for (int m = 0; m < M; m++) {
            float value = float(x[ulong(m) * k + i]);
            for (int r = 0; r < 2 * COLUMNS; r++) {
                sums[m][r] += value * float(gate_up[starts[r] + i]);
            }
        }
    }
    for (int m = 0; m < M; m++) {
        for (uint c = 0; c < COLUMNS; c++) {
            float gate = metal::simd_sum(sums[m][c]);
            float up = metal::simd_sum(sums[m][COLUMNS + c]);
            if (lane == 0 && first + c < n) {
                float silu = gate / (1.0f + metal::precise::exp(-gate));
                out[ulong(m) * n + first + c] = T(silu * up);
            }
        }
    }
"""

PROGRAM = Program("swiglu", ("x", "gate_up"), ("out",), SOURCE)

# Variant -> (outputs of a simdgroup, simdgroups of a threadgroup).
GEOMETRY = {"1x4": (1, 4), "1x8": (1, 8), "2x4": (2, 4)}

VARIANTS = {
    "1x4": "one output a simdgroup, 4 simdgroups; one row of x, or few outputs",
    "1x8": "one output a simdgroup, 8 simdgroups; one row of x, many outputs",
    "2x4": "two outputs a simdgroup: an x once read serves four weights; several rows",
}

# Beyond this a tiled matmul reads weights no more often than we do. Not measured on a Mac.
MAX_ROWS = 8

# Outputs from which larger threadgroups and, with several rows, two outputs a simdgroup pay: half
# of gemv's, as each output reads two rows of weights. Not measured.
MANY_OUTPUTS, WIDE_OUTPUTS = 4096, 1024


@dataclass(frozen=True)
class Pair:
    """x of `leading` shape and `rows` rows in all, times two matrices [n, k], perhaps `split`."""

    leading: tuple[int, ...]
    rows: int
    n: int
    k: int
    dtype: mx.Dtype
    split: bool = False


def problem(x: mx.array, gate_up: mx.array, up: mx.array | None = None) -> Pair:
    """Describe the call; the shapes fit."""
    leading, split = x.shape[:-1], up is not None
    n = gate_up.shape[0] // (1 if split else 2)
    return Pair(leading, prod(leading), n, gate_up.shape[1], x.dtype, split)


def choose(pair: Pair, chip: Chip) -> str:
    """Name of the variant; needs no device, so tests can pin it."""
    if pair.split or pair.dtype not in (mx.float32, mx.float16, mx.bfloat16):
        return FALLBACK
    if not 1 <= pair.rows <= MAX_ROWS or 0 in (pair.n, pair.k):
        return FALLBACK
    if pair.rows > 1 and pair.n >= WIDE_OUTPUTS:
        return "2x4"
    return "1x8" if pair.rows == 1 and pair.n >= MANY_OUTPUTS else "1x4"


def launch(pair: Pair, variant: str) -> list[Launch]:
    """The one dispatch of a variant; ValueError for more than MAX_ROWS rows or nothing to do."""
    if pair.split or not 1 <= pair.rows <= MAX_ROWS or 0 in (pair.n, pair.k):
        raise ValueError(f"swiglu takes 1 to {MAX_ROWS} rows and no empty weights, in one array")
    columns, simdgroups = GEOMETRY[variant]
    return [
        Launch(
            PROGRAM,
            inputs={"x": (pair.rows, pair.k), "gate_up": (2 * pair.n, pair.k)},
            outputs={"out": ((*pair.leading, pair.n), pair.dtype)},
            grid=(32, -(-pair.n // columns), 1),
            threadgroup=(32, simdgroups, 1),
            template=(("T", pair.dtype), ("M", pair.rows), ("COLUMNS", columns), ("VEC", 4)),
        )
    ]


def reference(x: np.ndarray, gate_up: np.ndarray, up: np.ndarray | None = None) -> np.ndarray:
    """silu(x @ gate.T) * (x @ up.T) in float64."""
    weights = np.asarray(gate_up if up is None else np.concatenate([gate_up, up]), np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        gate, raised = np.split(np.asarray(x, np.float64) @ weights.T, 2, -1)
        return gate / (1 + np.exp(-gate)) * raised


def fallback(x: mx.array, gate_up: mx.array, up: mx.array | None = None) -> mx.array:
    """Our linear for both products, which are rounded to x's dtype; the rest in float32."""
    gate, raised = _products(x, gate_up, up)
    return (gate * mx.sigmoid(gate) * raised).astype(x.dtype)


def _products(
    x: mx.array, gate_up: mx.array, up: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    wide = mx.float64 if x.dtype == mx.float64 else mx.float32
    if up is not None:
        return linear(x, gate_up).astype(wide), linear(x, up).astype(wide)
    both = linear(x, gate_up).astype(wide)
    n = gate_up.shape[0] // 2
    return both[..., :n], both[..., n:]


def vjp(primals, cotangent: mx.array, output: mx.array) -> tuple[mx.array, ...]:
    """Through the products, which are computed again: keeping them would cost what fusing saved."""
    x, *weights = primals
    gate, up = _products(x, *weights)
    g, s = cotangent.astype(gate.dtype), mx.sigmoid(gate)
    parts = [g * up * s * (1 + gate * (1 - s)), g * gate * s]
    if len(weights) == 1:
        parts = [mx.concatenate(parts, axis=-1)]
    count = prod(x.shape[:-1])
    rows = x.reshape(count, x.shape[-1])
    parts = [p.astype(x.dtype).reshape(count, p.shape[-1]) for p in parts]
    through = [matmul(p, w) for p, w in zip(parts, weights, strict=True)]
    dx = through[0] if len(through) == 1 else through[0] + through[1]
    return dx.reshape(x.shape), *(matmul(p.T, rows) for p in parts)


def swiglu(x: mx.array, gate_up: mx.array, up: mx.array | None = None) -> mx.array:
    """silu(x @ gate.T) * (x @ up.T), accumulated in float32 (arXiv:2002.05202).

    x [..., K], gate_up [2 I, K] with the I gate rows first, or gate and up [I, K] by themselves,
    of one dtype: float32, float16, bfloat16, or what MLX's matmul takes on the device. Returns
    [..., I]. On Metal, weights in one array, and on the CPU one to eight rows are one pass, rounded
    once; otherwise the two products are rounded too. Raises ValueError for shapes that do not fit,
    TypeError for mixed dtypes.
    """
    if x.ndim == 0 or gate_up.ndim != 2 or x.shape[-1] != gate_up.shape[1]:
        wanted = "[2 I, K]" if up is None else "[I, K]"
        raise ValueError(f"swiglu: x {x.shape} does not fit weights {gate_up.shape} as {wanted}")
    if up is None and gate_up.shape[0] % 2:
        raise ValueError(f"swiglu: {gate_up.shape[0]} rows are no gate and up rows of one number")
    if up is not None and up.shape != gate_up.shape:
        raise ValueError(f"swiglu: gate {gate_up.shape} and up {up.shape} are not alike")
    for weights in (gate_up, up):
        if weights is not None and x.dtype != weights.dtype:
            raise TypeError(f"swiglu takes one dtype, not {x.dtype} and {weights.dtype}")
    return KERNEL(x, gate_up) if up is None else KERNEL(x, gate_up, up)


def cost(x: mx.array, gate_up: mx.array, up: mx.array | None = None) -> Cost:
    """Reads each array once, writes the result; a multiply and an add a weight and row."""
    both = [gate_up] if up is None else [gate_up, up]
    rows, weights = prod(x.shape[:-1]), sum(w.size for w in both)
    n = sum(w.shape[0] for w in both) // 2
    moved = x.nbytes + sum(w.nbytes for w in both) + rows * n * x.itemsize
    return Cost(bytes=moved, flops=2 * rows * weights)


def _case(
    x: tuple[int, ...],
    n: int,
    why: str,
    layout: str = "contiguous",
    scale: float = 1.0,
    split: bool = False,
):
    form = {"layout": layout, "scale": scale * max(x[-1], 1) ** -0.5}
    arrays = {"x": Spec(x, layout=layout), "gate_up": Spec((n if split else 2 * n, x[-1]), **form)}
    return Case({**arrays, "up": Spec((n, x[-1]), **form)} if split else arrays, why)


CASES = [
    _case((1, 1, 576), 1536, "SmolLM2-135M, one token"),
    _case((1, 2048), 150, "K of Qwen3.6-35B-A3B, one token"),
    _case((1, 40), 4100, "many outputs take larger threadgroups"),
    _case((2, 1, 1024), 130, "K of Qwen3-0.6B, two sequences"),
    _case((2, 64), 1030, "two outputs a simdgroup"),
    _case((3, 100), 1025, "three rows, odd outputs: one simdgroup repeats its output"),
    _case((5, 2, 130), 7, "more rows than a simdgroup holds go to matmul"),
    _case((7, 257), 33, "seven rows, odd K"),
    _case((2, 4, 320), 1026, "eight rows, in two leading axes"),
    _case((129,), 65, "no leading axis, one element beyond a whole step"),
    _case((1, 3), 1, "fewer than 8 elements arrive in constant memory"),
    _case((1, 1), 2, "one weight an output, gate_up in constant memory"),
    _case((1, 5), 130, "only x is in constant memory"),
    _case((1, 64), 80, "large products: silu saturates on both sides", scale=40.0),
    _case((2, 130), 40, "transposed in memory", layout="transposed"),
    _case((2, 130), 40, "starts one element into its buffer: unaligned", layout="offset"),
    _case((2, 130), 40, "every other element of a buffer", layout="strided"),
    _case((1, 1, 576), 1536, "SmolLM2-135M as its checkpoint has the weights", split=True),
    _case((5, 257), 133, "five rows, odd K, weights apart", split=True),
    _case((70, 96), 129, "a prompt, weights apart", split=True),
    _case((2, 130), 40, "transposed in memory, weights apart", layout="transposed", split=True),
]

# Beyond rounding, K up to 2048. The fallback rounds the products of half types: nmse 3e-6 for
# bfloat16, 4e-8 for float16 by theory, as seen on Linux x86 (2026-12-02).
NMSE = {"float32": 2e-12, "float16": 1e-6, "bfloat16": 1e-5}

KERNEL = Kernel(
    "swiglu",
    function=swiglu,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=Metal(VARIANTS, problem, choose, launch),
    cpu="swiglu",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
