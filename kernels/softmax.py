"""Softmax along one axis, accumulated in float32.

A row in the last axis goes to one simdgroup (short rows), one threadgroup, or, when there are few
long rows, to many threadgroups: partial (maximum, sum) pairs, then a finalising pass.

Temperature, top-k, top-p and min-p (models/sampling.py) are not fused in: for Qwen3-0.6B their
passes over 151,936 float32 logits move 4 MB where a token's weights are 1.2 GB, and top-p has to
sort the row whatever else is fused.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import mlx.core as mx
import numpy as np

from .kernel import Kernel
from .spec import FALLBACK, STREAMING, Case, Chip, Cost, Launch, Metal, Program, Spec

# Running state of a row or a part of it: float2(maximum, sum of exp(x - maximum)).
# Only -inf is left out of the sums while the maximum is still -inf: a chunk of -inf must not spoil
# its row, yet NaN and +inf must. A whole row of -inf becomes NaN in the last step, as in torch.
READING = """
constant constexpr int SIMDGROUPS = 8;
constant constexpr uint THREADS = 32 * SIMDGROUPS;
constant constexpr uint READS = 4;

inline float weight(float x, float maximum) {
    return x == -INFINITY ? 0.0f : metal::precise::exp(x - maximum);
}

inline float2 merge(float2 a, float2 b) {
    float m = metal::fmax(a.x, b.x);
    return float2(m, a.y * weight(a.x, m) + b.y * weight(b.x, m));
}

inline float2 merge_simdgroup(float2 state) {
    float m = metal::simd_max(state.x);
    return float2(m, metal::simd_sum(state.y * weight(state.x, m)));
}

inline float2 merge_threadgroup(
    float2 state, threadgroup float2* shared, uint lane, uint simdgroup) {
    state = merge_simdgroup(state);
    if (lane == 0) {
        shared[simdgroup] = state;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return merge_simdgroup(lane < SIMDGROUPS ? shared[lane] : float2(-INFINITY, 0.0f));
}

// This thread's share of columns first..last; below 8 elements x is a constant pointer.
// Neighbouring lanes read neighbouring columns, READS of them in flight: whole lines each time.
template <typename Pointer>
inline float2 read_columns(Pointer x, ulong row, uint first, uint last, uint thread_index) {
    float2 state = float2(-INFINITY, 0.0f);
    for (uint c = first + thread_index; c < last; c += THREADS * READS) {
        float values[READS];
        float m = state.x;
        for (uint i = 0; i < READS; i++) {
            uint at = c + THREADS * i;
            values[i] = at < last ? float(x[row + at]) : -INFINITY;
            m = metal::fmax(m, values[i]);
        }
        float sum = state.y * weight(state.x, m);
        for (uint i = 0; i < READS; i++) {
            sum += weight(values[i], m);
        }
        state = float2(m, sum);
    }
    return state;
}
"""

# What makes softmax of a row's maximum and sum; log_softmax.py has its own three functions. What is
# kept of x - maximum waits in registers, so that no exponential is taken twice.
SOFTMAX = """
inline float keep(float shifted, thread float& sum) {
    float e = metal::precise::exp(shifted);
    sum += e;
    return e;
}

inline float rest(float sum) {
    return 1.0f / sum;
}

inline float finish(float kept, float rest_of_row) {
    return kept * rest_of_row;
}
"""

WRITING = """
template <typename T, typename Pointer>
inline void write_columns(
    Pointer x, device T* out, ulong row, uint first, uint last, uint thread_index, float2 state) {
    float scale = rest(state.y);
    float ignored = 0.0f;
    for (uint c = first + thread_index; c < last; c += THREADS) {
        out[row + c] = T(finish(keep(float(x[row + c]) - state.x, ignored), scale));
    }
}
"""

ROW = """
    // x, out: [rows, n]; a simdgroup a row, PER_LANE values in each lane's registers
    uint row = thread_position_in_grid.y;
    uint lane = thread_index_in_simdgroup;
    uint n = x_shape[1];
    if (row >= uint(x_shape[0])) {
        return;
    }
    ulong start = ulong(row) * n;
    float values[PER_LANE];
    float m = -INFINITY;
    for (int i = 0; i < PER_LANE; i++) {
        uint c = lane + 32 * i;
        values[i] = c < n ? float(x[start + c]) : -INFINITY;
        m = metal::fmax(m, values[i]);
    }
    m = metal::simd_max(m);
    float sum = 0.0f;
    for (int i = 0; i < PER_LANE; i++) {
        values[i] = keep(values[i] - m, sum);
    }
    float scale = rest(metal::simd_sum(sum));
    for (int i = 0; i < PER_LANE; i++) {
        uint c = lane + 32 * i;
        if (c < n) {
            out[start + c] = T(finish(values[i], scale));
        }
    }
"""

LOOPED = """
    // x, out: [rows, n]; a threadgroup a row
    threadgroup float2 shared[SIMDGROUPS];
    uint n = x_shape[1];
    ulong row = ulong(threadgroup_position_in_grid.y) * n;
    uint thread_index = thread_index_in_threadgroup;
    float2 state = read_columns(x, row, 0, n, thread_index);
    state = merge_threadgroup(
        state, shared, thread_index_in_simdgroup, simdgroup_index_in_threadgroup);
    write_columns<T>(x, out, row, 0, n, thread_index, state);
"""

PARTIAL = """
    // x: [rows, n], part: [rows, chunks, 2] float32; a threadgroup a chunk of CHUNK columns
    threadgroup float2 shared[SIMDGROUPS];
    uint n = x_shape[1];
    uint chunk = threadgroup_position_in_grid.x;
    uint row = threadgroup_position_in_grid.y;
    uint first = chunk * CHUNK;
    uint last = metal::min(first + CHUNK, n);
    float2 state = read_columns(x, ulong(row) * n, first, last, thread_index_in_threadgroup);
    state = merge_threadgroup(
        state, shared, thread_index_in_simdgroup, simdgroup_index_in_threadgroup);
    if (thread_index_in_threadgroup == 0) {
        ulong at = 2 * (ulong(row) * threadgroups_per_grid.x + chunk);
        part[at] = state.x;
        part[at + 1] = state.y;
    }
"""

FINALIZE = """
    // x, out: [rows, n], part: [rows, chunks, 2]; each threadgroup merges its row's pairs again
    threadgroup float2 shared[SIMDGROUPS];
    uint n = x_shape[1];
    uint chunks = threadgroups_per_grid.x;
    uint row = threadgroup_position_in_grid.y;
    ulong pairs = 2 * ulong(row) * chunks;
    float2 state = float2(-INFINITY, 0.0f);
    for (uint i = thread_index_in_threadgroup; i < chunks; i += THREADS) {
        state = merge(state, float2(part[pairs + 2 * i], part[pairs + 2 * i + 1]));
    }
    state = merge_threadgroup(
        state, shared, thread_index_in_simdgroup, simdgroup_index_in_threadgroup);
    uint first = threadgroup_position_in_grid.x * CHUNK;
    uint last = metal::min(first + CHUNK, n);
    write_columns<T>(x, out, ulong(row) * n, first, last, thread_index_in_threadgroup, state);
"""

STRIDED = """
    // x, out: [outer, n, inner]; a lane a column, SIMDGROUPS simdgroups share its n values
    threadgroup float2 shared[THREADS];
    uint n = x_shape[1];
    uint inner = x_shape[2];
    uint column = thread_position_in_grid.x;
    uint lane = thread_position_in_threadgroup.x;
    uint strip = thread_position_in_threadgroup.y;
    ulong start = ulong(thread_position_in_grid.z) * n * inner + column;
    float2 state = float2(-INFINITY, 0.0f);
    if (column < inner) {
        for (uint i = strip; i < n; i += SIMDGROUPS) {
            state = merge(state, float2(float(x[start + ulong(i) * inner]), 1.0f));
        }
    }
    shared[32 * strip + lane] = state;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    state = shared[lane];
    for (int i = 1; i < SIMDGROUPS; i++) {
        state = merge(state, shared[32 * i + lane]);
    }
    if (column < inner) {
        float scale = rest(state.y);
        float ignored = 0.0f;
        for (uint i = strip; i < n; i += SIMDGROUPS) {
            ulong at = start + ulong(i) * inner;
            out[at] = T(finish(keep(float(x[at]) - state.x, ignored), scale));
        }
    }
"""

SIMDGROUPS, THREADS = 8, 256
ROWS_A_THREADGROUP = 4

PARTIAL_PROGRAM = Program("softmax_partial", ("x",), ("part",), PARTIAL, READING)


def programs(name: str, functions: str) -> dict[str, Program]:
    """The programs that end in `functions`, as SOFTMAX's, by variant; "split" is the second one."""
    header = READING + functions + WRITING
    return {
        "row": Program(f"{name}_row", ("x",), ("out",), ROW, functions),
        "looped": Program(f"{name}_looped", ("x",), ("out",), LOOPED, header),
        "split": Program(f"{name}_finalize", ("x", "part"), ("out",), FINALIZE, header),
        "strided": Program(f"{name}_strided", ("x",), ("out",), STRIDED, header),
    }


PROGRAMS = programs("softmax", SOFTMAX)

VARIANTS = {
    "row": "one simdgroup a row, the row in registers; up to 1024 columns",
    "looped": "one threadgroup a row, two passes over it; longer rows, when there are many",
    "split": "a row over many threadgroups, in two dispatches; few long rows, as a vocabulary",
    "strided": "an axis that is not the last: one lane a column",
}

# One simdgroup holds a row of 32 values a lane in registers. Published for PyTorch 2.15's Metal
# softmax, not measured by us.
ROW_COLUMNS = 1024

# One row keeps one GPU core busy; splitting pays once a row outgrows the loads that one core can
# have in flight. Published for 1x151936: 56.2 -> 7.6 us (PyTorch 2.15), not measured by us.
SPLIT_COLUMNS, SPLIT_ROWS = 2048, 256

# Columns of one threadgroup when split: 75 threadgroups for a vocabulary of 152k, about the core
# count of the largest chip. Not measured.
CHUNK = 2048

# MLX's CPU adds a row's values one by one: softmax rows of 49,152 values then sum to 1 within 8e-5
# only. Added in blocks of this size they reach 1e-6, at the same speed (mlx 0.32.4, AMD EPYC,
# 2026-12-02).
SUM_BLOCK = 256


@dataclass(frozen=True)
class Rows:
    """x of `shape` seen as [outer, n, inner], softmax along n."""

    shape: tuple[int, ...]
    outer: int
    n: int
    inner: int
    dtype: mx.Dtype


def problem(x: mx.array, axis: int) -> Rows:
    """Describe softmax of `x` along `axis`, which is not negative."""
    shape = x.shape
    return Rows(shape, prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]), x.dtype)


def choose(rows: Rows, chip: Chip) -> str:
    """Name of the variant; needs no device, so tests can pin it."""
    if rows.dtype not in (mx.float32, mx.float16, mx.bfloat16) or 0 in rows.shape:
        return FALLBACK
    if rows.inner > 1:
        return "strided"
    if rows.n <= ROW_COLUMNS:
        return "row"
    return "split" if rows.n > SPLIT_COLUMNS and rows.outer < SPLIT_ROWS else "looped"


def bar(rows: Rows, variant: str) -> float:
    """Split rows are read twice and written once: 1.5 times the least."""
    return 1.55 if variant == "split" else STREAMING


def launch(rows: Rows, variant: str, made: Mapping[str, Program] = PROGRAMS) -> list[Launch]:
    """The dispatches of a variant; ValueError where it cannot serve the problem."""
    if (rows.inner > 1) != (variant == "strided"):
        raise ValueError(f"{variant} softmax cannot serve {rows.inner} values after the axis")
    if variant == "split":
        return _split(rows, made[variant])
    one = {"row": _row, "looped": _looped, "strided": _strided}[variant]
    return [one(rows, made[variant])]


def _row(rows: Rows, program: Program) -> Launch:
    if rows.n > ROW_COLUMNS:
        raise ValueError(f"row softmax holds {ROW_COLUMNS} columns, not {rows.n}")
    per_lane = 1 << (-(-rows.n // 32) - 1).bit_length()
    return Launch(
        program,
        inputs={"x": (rows.outer, rows.n)},
        outputs={"out": (rows.shape, rows.dtype)},
        grid=(32, rows.outer, 1),
        threadgroup=(32, ROWS_A_THREADGROUP, 1),
        template=(("T", rows.dtype), ("PER_LANE", per_lane)),
    )


def _looped(rows: Rows, program: Program) -> Launch:
    return Launch(
        program,
        inputs={"x": (rows.outer, rows.n)},
        outputs={"out": (rows.shape, rows.dtype)},
        grid=(THREADS, rows.outer, 1),
        threadgroup=(THREADS, 1, 1),
        template=(("T", rows.dtype),),
        threadgroup_bytes=8 * SIMDGROUPS,
    )


def _split(rows: Rows, program: Program) -> list[Launch]:
    chunks = -(-rows.n // CHUNK)
    part = (rows.outer, chunks, 2)
    x = {"x": (rows.outer, rows.n)}
    grid, threadgroup = (THREADS * chunks, rows.outer, 1), (THREADS, 1, 1)
    chunk = ("CHUNK", CHUNK)
    memory = 8 * SIMDGROUPS
    return [
        Launch(
            PARTIAL_PROGRAM,
            x,
            {"part": (part, mx.float32)},
            grid,
            threadgroup,
            template=(chunk,),
            threadgroup_bytes=memory,
        ),
        Launch(
            program,
            {**x, "part": part},
            {"out": (rows.shape, rows.dtype)},
            grid,
            threadgroup,
            template=(("T", rows.dtype), chunk),
            threadgroup_bytes=memory,
        ),
    ]


def _strided(rows: Rows, program: Program) -> Launch:
    return Launch(
        program,
        inputs={"x": (rows.outer, rows.n, rows.inner)},
        outputs={"out": (rows.shape, rows.dtype)},
        grid=(32 * -(-rows.inner // 32), SIMDGROUPS, rows.outer),
        threadgroup=(32, SIMDGROUPS, 1),
        template=(("T", rows.dtype),),
        threadgroup_bytes=8 * THREADS,
    )


def reference(x: np.ndarray, axis: int) -> np.ndarray:
    """Softmax in float64; a row of -inf, or one that holds NaN or +inf, is NaN."""
    x = np.asarray(x, np.float64)
    if x.size == 0:
        return x
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def fallback(x: mx.array, axis: int) -> mx.array:
    """MLX's softmax. precise=True: without it bf16 sums in bf16 (NMSE 514 at 152k columns).

    On the CPU, float64 and long float32 rows go by exponential and blocked sum instead, and half
    types by float32: twice as fast (1x151936 bf16 3.9 -> 2.1 ms, AMD EPYC, 2026-12-02).
    """
    if mx.default_device().type != mx.cpu or x.size == 0:
        return mx.softmax(x, axis=axis, precise=True)
    if x.dtype in (mx.float16, mx.bfloat16):
        return fallback(x.astype(mx.float32), axis).astype(x.dtype)
    if x.dtype == mx.float32 and x.shape[axis] <= SUM_BLOCK:
        return mx.softmax(x, axis=axis)
    e = exponential(x - x.max(axis=axis, keepdims=True))
    return e / blocked_sum(e, axis)


def exponential(x: mx.array) -> mx.array:
    """e to the x; MLX's CPU exp of float64 is right to 3e-7 only, its power to 1e-15 (0.32.4)."""
    return mx.power(mx.array(math.e, mx.float64), x) if x.dtype == mx.float64 else mx.exp(x)


def blocked_sum(x: mx.array, axis: int) -> mx.array:
    """The sum along `axis`, which is kept, over blocks first where the CPU would add one by one."""
    n = x.shape[axis]
    if n <= SUM_BLOCK or x.size == 0 or mx.default_device().type != mx.cpu:
        return x.sum(axis=axis, keepdims=True)
    rows = x.swapaxes(axis, -1)
    padded = mx.pad(rows, [(0, 0)] * (x.ndim - 1) + [(0, -n % SUM_BLOCK)])
    blocks = padded.reshape(*rows.shape[:-1], -1, SUM_BLOCK)
    return blocks.sum(axis=-1).sum(axis=-1, keepdims=True).swapaxes(axis, -1)


def vjp(primals, cotangent: mx.array, output: mx.array, axis: int) -> tuple[mx.array]:
    """y * (g - sum(g * y)), computed in float32 for half types."""
    (x,) = primals
    wide = mx.float64 if x.dtype == mx.float64 else mx.float32
    y, g = output.astype(wide), cotangent.astype(wide)
    return ((y * (g - blocked_sum(g * y, axis))).astype(x.dtype),)


def softmax(x: mx.array, axis: int = -1) -> mx.array:
    """Softmax along `axis`, accumulated in float32, in x's shape and dtype.

    x: any shape, 0-d and empty included; float32, float16, bfloat16, and float64 on the CPU. A
    row of -inf gives NaN, as in torch. Raises TypeError for another dtype, ValueError for an axis
    out of range.
    """
    return along(KERNEL, x, axis)


def along(kernel: Kernel, x: mx.array, axis: int) -> mx.array:
    """`kernel` along `axis` of x; the errors of softmax and log_softmax."""
    if not mx.issubdtype(x.dtype, mx.floating):
        raise TypeError(f"{kernel.name} takes a floating dtype, not {x.dtype}")
    if x.ndim == 0:
        return along(kernel, x.reshape(1), axis).reshape(())
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"{kernel.name}: axis {axis} is out of range for {x.ndim} dimensions")
    return kernel(x, axis=axis % x.ndim)


def cost(x: mx.array, axis: int) -> Cost:
    """Reads and writes x once; maximum, exponential, sum and a last step for each."""
    return Cost(bytes=2 * x.nbytes, flops=4 * x.size)


def case(shape: tuple[int, ...], why: str, axis: int | None = None, **spec) -> Case:
    """x of `shape`, along the last axis if not told."""
    axis = len(shape) - 1 if axis is None else axis
    return Case({"x": Spec(shape, **spec)}, why, {"axis": axis})


CASES = [
    case((1, 151_936), "Qwen vocabulary: one long row, 75 chunks"),
    case((3, 49_152), "SmolLM2 vocabulary, peaked as logits are", scale=4.0),
    case((2, 2049), "just split; the last chunk has one column"),
    case((5, 2048), "just not split"),
    case((257, 2050), "many long rows are not split"),
    case((7, 1025), "just over a simdgroup's registers"),
    case((9, 1024), "just within a simdgroup's registers"),
    case((2, 4, 33, 65), "attention scores; rows not a multiple of a threadgroup"),
    case((3, 1), "one column gives exactly 1"),
    case((5,), "fewer than 8 elements arrive in constant memory"),
    case((1, 3), "fewer than 8 elements, 2-d"),
    case((4, 37, 50), "middle axis, inner not a multiple of 32", axis=1),
    case((1030, 3), "first axis, long, few columns", axis=0),
    case((2, 2, 1), "trailing axis of one counts as the last", axis=1),
    case((6, 40), "special values, short rows", fill="specials"),
    case((6, 1500), "special values, looped", fill="specials"),
    case((6, 5000), "special values, whole chunks of -inf beside others", fill="specials"),
    case((40, 6), "special values, first axis", axis=0, fill="specials"),
    case((6, 100), "transposed in memory", layout="transposed"),
    case((3, 2500), "starts one element into its buffer: unaligned", layout="offset"),
    case((3, 2500), "every other element of a buffer", layout="strided"),
]

# Beyond rounding. float32: the maximum is exact, exp errs by 2 ulp; the fallback reaches 2e-14 at
# 152k columns, 2e-13 at 49k peaked ones (mlx 0.32.4 on Linux x86, 2026-12-02). Half types compute
# in float32, then round once.
NMSE = {"float32": 1e-12, "float16": 1e-9, "bfloat16": 1e-8}

KERNEL = Kernel(
    "softmax",
    function=softmax,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=Metal(VARIANTS, problem, choose, launch, bar=bar),
    cpu="softmax",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
