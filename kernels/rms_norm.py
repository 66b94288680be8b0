"""Root mean square norm, perhaps of a sum with a residual, perhaps SiLU of it; float32 statistics.

A row is read once and written once: its values wait in the registers of one simdgroup or of one
threadgroup. Rows that are too long for that are read a second time.
"""

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import mlx.core as mx
import numpy as np

from .kernel import Kernel
from .spec import FALLBACK, Case, Chip, Cost, Launch, Metal, Program, Spec

REGISTERS = """
    // x, residual, total, out: [rows, n], w: [n]; SIMDGROUPS simdgroups a row
    threadgroup float shared[SIMDGROUPS];
    uint n = x_shape[1];
    uint first = thread_position_in_grid.x;
    ulong row = ulong(thread_position_in_grid.y) * n;
    float values[PER_LANE];
    float sum = 0.0f;
    for (uint i = 0; i < PER_LANE; i++) {
        uint c = first + 32 * SIMDGROUPS * i;
        values[i] = 0.0f;
        if (c < n) {
            @READ@
            values[i] = value;
            sum += value * value;
        }
    }
    sum = metal::simd_sum(sum);
    if (SIMDGROUPS > 1) {
        uint lane = thread_index_in_simdgroup;
        if (lane == 0) {
            shared[simdgroup_index_in_threadgroup] = sum;
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        sum = metal::simd_sum(lane < SIMDGROUPS ? shared[lane] : 0.0f);
    }
    float scale = metal::precise::rsqrt(sum / n + eps);
    for (uint i = 0; i < PER_LANE; i++) {
        uint c = first + 32 * SIMDGROUPS * i;
        if (c < n) {
            @WRITE@
        }
    }
"""

LOOPED = """
    // x, residual, total, out: [rows, n], w: [n]; a threadgroup a row
    threadgroup float shared[SIMDGROUPS];
    uint n = x_shape[1];
    uint first = thread_position_in_grid.x;
    uint lane = thread_index_in_simdgroup;
    ulong row = ulong(thread_position_in_grid.y) * n;
    float sum = 0.0f;
    for (uint c = first; c < n; c += 32 * SIMDGROUPS) {
        @READ@
        sum += value * value;
    }
    sum = metal::simd_sum(sum);
    if (lane == 0) {
        shared[simdgroup_index_in_threadgroup] = sum;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    sum = metal::simd_sum(lane < SIMDGROUPS ? shared[lane] : 0.0f);
    float scale = metal::precise::rsqrt(sum / n + eps);
    for (uint c = first; c < n; c += 32 * SIMDGROUPS) {
        @WRITE@
    }
"""

WRITE = "out[row + c] = T(@VALUE@ * scale@WEIGHT@);"

WRITE_SILU = """float normed = @VALUE@ * scale@WEIGHT@;
            out[row + c] = T(normed / (1.0f + metal::precise::exp(-normed)));"""

READ_PLAIN = "float value = float(x[row + c]);"

# The sum is rounded before it is squared: the norm is that of what `total` holds.
READ_SUM = """T rounded = T(float(x[row + c]) + float(residual[row + c]));
            total[row + c] = rounded;
            float value = float(rounded);"""


def _program(looped: bool, weighted: bool, summed: bool, silu: bool) -> Program:
    again = f"float({'total' if summed else 'x'}[row + c])"
    source = LOOPED if looped else REGISTERS
    inputs = ["x", *(["residual"] if summed else []), "eps"]
    inputs += ["w", "offset"] if weighted else []
    for mark, text in (
        ("@READ@", READ_SUM if summed else READ_PLAIN),
        ("@WRITE@", WRITE_SILU if silu else WRITE),
        ("@VALUE@", again if looped else "values[i]"),
        ("@WEIGHT@", " * (offset + float(w[c]))" if weighted else ""),
    ):
        source = source.replace(mark, text)
    name = "rms_norm" + "_looped" * looped + "_sum" * summed + "_weight" * weighted + "_silu" * silu
    return Program(name, tuple(inputs), ("out", "total") if summed else ("out",), source)


PROGRAMS = {key: _program(*key) for key in product((False, True), repeat=4)}

# Simdgroups of a row in each variant, the most values of a lane, and rows of a threadgroup that
# gives each simdgroup a row of its own.
SIMDGROUPS = {"row": 1, "block": 8, "looped": 16}
MOST_PER_LANE = 32
ROWS_A_THREADGROUP = 4

VARIANTS = {
    "row": "one simdgroup a row, the row in registers; heads, and rows up to 1024 when many",
    "block": "one threadgroup a row, the row in registers; up to 8192 columns",
    "looped": "one threadgroup a row, which is read twice; longer rows",
}

# Heads have up to 256 columns; longer rows are shared by a threadgroup's simdgroups unless enough
# rows keep the GPU busy with one simdgroup each. Not measured on a Mac.
HEAD_COLUMNS, MANY_ROWS = 512, 1024


@dataclass(frozen=True)
class Rows:
    """x of `shape` seen as `rows` rows of n columns; what comes with it."""

    shape: tuple[int, ...]
    rows: int
    n: int
    weighted: bool
    summed: bool
    eps: float
    offset: float
    silu: bool
    dtype: mx.Dtype


def problem(
    x: mx.array,
    w: mx.array | None = None,
    residual: mx.array | None = None,
    *,
    eps: float,
    offset: float,
    silu: bool = False,
) -> Rows:
    """Describe the call; the shapes fit."""
    n, rows = x.shape[-1], prod(x.shape[:-1])
    given = (w is not None, residual is not None)
    return Rows(x.shape, rows, n, *given, eps, offset, silu, x.dtype)


def choose(rows: Rows, chip: Chip) -> str:
    """Name of the variant; needs no device, so tests can pin it."""
    if rows.dtype not in (mx.float32, mx.float16, mx.bfloat16) or 0 in rows.shape:
        return FALLBACK
    limit = MOST_PER_LANE * 32
    if rows.n <= HEAD_COLUMNS or (rows.n <= limit and rows.rows >= MANY_ROWS):
        return "row"
    return "block" if rows.n <= limit * SIMDGROUPS["block"] else "looped"


def launch(rows: Rows, variant: str) -> list[Launch]:
    """The one dispatch of a variant; ValueError where the row does not fit its registers."""
    simdgroups, looped = SIMDGROUPS[variant], variant == "looped"
    width = 32 * simdgroups
    if not looped and rows.n > MOST_PER_LANE * width:
        raise ValueError(f"{variant} holds {MOST_PER_LANE * width} columns, not {rows.n}")
    template: list[tuple[str, Any]] = [("T", rows.dtype), ("SIMDGROUPS", simdgroups)]
    if not looped:
        template.append(("PER_LANE", 1 << (-(-rows.n // width) - 1).bit_length()))
    matrix = (rows.rows, rows.n)
    inputs = {"x": matrix, "residual": matrix, "w": (rows.n,)}
    program = PROGRAMS[looped, rows.weighted, rows.summed, rows.silu]
    return [
        Launch(
            program,
            inputs={name: inputs[name] for name in program.inputs if name in inputs},
            outputs={name: (rows.shape, rows.dtype) for name in program.outputs},
            grid=(width, rows.rows, 1),
            threadgroup=(width, ROWS_A_THREADGROUP if simdgroups == 1 else 1, 1),
            template=tuple(template),
            threadgroup_bytes=4 * simdgroups,
            scalars={"eps": rows.eps, "offset": rows.offset},
        )
    ]


def reference(
    x: np.ndarray,
    w: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    *,
    eps: float,
    offset: float,
    silu: bool = False,
) -> Any:
    """In float64, the sum with the residual not rounded."""
    total = np.asarray(x, np.float64) + (0.0 if residual is None else residual)
    if total.size == 0:
        return total if residual is None else (total, total)
    with np.errstate(invalid="ignore"):
        out = total / np.sqrt(np.square(total).mean(-1, keepdims=True) + eps)
    if w is not None:
        out = out * (offset + w)
    if silu:
        with np.errstate(over="ignore", invalid="ignore"):
            out = out / (1 + np.exp(-out))
    return out if residual is None else (out, total)


def fallback(
    x: mx.array,
    w: mx.array | None = None,
    residual: mx.array | None = None,
    *,
    eps: float,
    offset: float,
    silu: bool = False,
) -> Any:
    """In float32, rounded once: mx.fast.rms_norm rounds before the weight and knows no offset."""
    total = x if residual is None else x + residual
    wide = total.astype(_wide(x.dtype))
    out = wide * mx.rsqrt(wide.square().mean(axis=-1, keepdims=True) + eps)
    if w is not None:
        out = out * (offset + w.astype(wide.dtype))
    out = out / (1 + mx.exp(-out)) if silu else out
    out = out.astype(x.dtype)
    return out if residual is None else (out, total)


def _wide(dtype: mx.Dtype) -> mx.Dtype:
    return mx.float64 if dtype == mx.float64 else mx.float32


def vjp(
    primals, cotangent, output, *, eps: float, offset: float, silu: bool = False
) -> tuple[mx.array | None, ...]:
    """With h the sum, s = 1 / rms and g the cotangent times the weight: s (g - h s^2 mean(g h))."""
    x = primals[0]
    w = primals[1] if len(primals) > 1 else None
    residual = primals[2] if len(primals) > 2 else None
    total, through = (x, None) if residual is None else (output[1], cotangent[1])
    cotangent = cotangent if residual is None else cotangent[0]
    h, g = total.astype(_wide(x.dtype)), cotangent.astype(_wide(x.dtype))
    scale = mx.rsqrt(h.square().mean(axis=-1, keepdims=True) + eps)
    if silu:
        g = g * _silu_slope(h * scale if w is None else h * scale * (offset + w.astype(h.dtype)))
    dw = None
    if w is not None:
        dw = (g * h * scale).reshape(prod(h.shape[:-1]), h.shape[-1]).sum(axis=0).astype(w.dtype)
        g = g * (offset + w.astype(g.dtype))
    dx = scale * (g - h * scale.square() * (g * h).mean(axis=-1, keepdims=True))
    dx = (dx if through is None else dx + through.astype(dx.dtype)).astype(x.dtype)
    return (dx, dw, dx)[: len(primals)]


def _silu_slope(x: mx.array) -> mx.array:
    sigmoid = 1 / (1 + mx.exp(-x))
    return sigmoid * (1 + x * (1 - sigmoid))


def rms_norm(
    x: mx.array,
    w: mx.array | None = None,
    residual: mx.array | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    silu: bool = False,
) -> Any:
    """x / sqrt(mean(x^2) + eps) * (offset + w) over the last axis (arXiv:1910.07467).

    x [..., n] in float32, float16, bfloat16, or float64 on the CPU; w [n] in any floating dtype,
    or None for no weight (and no offset); offset 1 serves zero-centred weights. Computed in
    float32 and rounded once to x's dtype. With a residual of x's shape and dtype: h = x + residual
    is rounded, and the result is (the norm of h, h), the second for the next residual. With `silu`
    the norm is times its sigmoid, before it is rounded. Raises ValueError for shapes that do not
    fit, TypeError for dtypes.
    """
    if not mx.issubdtype(x.dtype, mx.floating):
        raise TypeError(f"rms_norm takes a floating dtype, not {x.dtype}")
    if x.ndim == 0 or (w is not None and w.shape != x.shape[-1:]):
        raise ValueError(f"rms_norm: weight {getattr(w, 'shape', None)} does not fit x {x.shape}")
    if w is not None and not mx.issubdtype(w.dtype, mx.floating):
        raise TypeError(f"rms_norm takes a floating weight, not {w.dtype}")
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"rms_norm: residual {residual.shape} does not fit x {x.shape}")
    if residual is not None and residual.dtype != x.dtype:
        raise TypeError(f"rms_norm: residual is {residual.dtype}, x is {x.dtype}")
    arrays = (x,) if w is None and residual is None else (x, w)
    arrays = arrays if residual is None else (x, w, residual)
    keywords = {"silu": True} if silu else {}
    return KERNEL(*arrays, eps=float(eps), offset=float(offset), **keywords)


def cost(
    x: mx.array,
    w: mx.array | None = None,
    residual: mx.array | None = None,
    *,
    eps: float,
    offset: float,
    silu: bool = False,
) -> Cost:
    """Reads each array once, writes each result once; square, sum and scale an element."""
    moved = (2 if residual is None else 4) * x.nbytes + (0 if w is None else w.nbytes)
    return Cost(bytes=moved, flops=4 * x.size)


def _case(
    shape: tuple[int, ...],
    why: str,
    weight: str | bool = True,
    residual: bool = False,
    offset: float = 0.0,
    eps: float = 1e-6,
    silu: bool = False,
    **spec: Any,
) -> Case:
    arrays: dict[str, Spec | None] = {"x": Spec(shape, **spec)}
    if weight or residual:
        dtype = weight if isinstance(weight, str) else None
        arrays["w"] = Spec(shape[-1:], dtype) if weight else None
    if residual:
        arrays["residual"] = Spec(shape, layout=spec.get("layout", "contiguous"))
    keywords = {"silu": True} if silu else {}
    return Case(arrays, why, {"eps": eps, "offset": offset, **keywords})


CASES = [
    _case((1, 1, 2048), "Qwen3.6-35B-A3B, one token", residual=True, offset=1.0),
    _case((2, 3, 16, 256), "its query heads, zero-centred", offset=1.0),
    _case((1, 32, 128), "its linear attention's heads, weights in float32", weight="float32"),
    _case((1, 5, 1024), "Qwen3-0.6B: a prompt", residual=True),
    _case((3, 576), "SmolLM2-135M, eps 1e-5", residual=True, eps=1e-5),
    _case((1025, 600), "many rows go to one simdgroup each"),
    _case((2, 1025), "one column beyond a simdgroup's registers", residual=True),
    _case((2, 8192), "as many columns as a threadgroup's registers hold"),
    _case((2, 8193), "one column more is read twice", offset=1.0),
    _case((3, 9000), "read twice, with the sum written in between", residual=True),
    _case((2, 8200), "read twice, no weight", weight=False),
    _case((2, 8200), "read twice, sum, no weight", weight=False, residual=True),
    _case((7, 96), "no weight, Wan2.1's channels", weight=False),
    _case((2, 3, 4, 1024), "pixels of the Wan2.2 decoder", eps=1e-12),
    _case((2, 3, 5, 96), "its residual blocks: SiLU of the norm", eps=1e-12, silu=True),
    _case((6, 700), "SiLU of special values, a threadgroup", silu=True, fill="specials"),
    _case((3, 8300), "SiLU, read twice, with the sum", silu=True, residual=True, weight=False),
    _case((7, 513), "no weight, ragged", weight=False, residual=True),
    _case((5, 1), "one column: the sign, but for eps", scale=1e-3),
    _case((1, 3), "fewer than 8 elements arrive in constant memory", residual=True),
    _case((9, 5), "only the weight is in constant memory"),
    _case((2, 4, 40), "small values, where eps weighs", scale=1e-3),
    _case((6, 40), "special values, a simdgroup", fill="specials"),
    _case((6, 700), "special values, a threadgroup", fill="specials"),
    _case((6, 8300), "special values, read twice", fill="specials"),
    _case((6, 100), "transposed in memory", layout="transposed", residual=True),
    _case((3, 700), "starts one element into its buffer: unaligned", layout="offset"),
    _case((3, 700), "every other element of a buffer", layout="strided"),
]

# Beyond rounding. float32: sums of 9000 squares, which MLX's CPU adds one by one (relative error
# 1e-6 at 5120 columns, Linux x86, 2026-12-02). Half types: the rounded sum with the residual.
NMSE = {"float32": 2e-12, "float16": 1e-6, "bfloat16": 1e-5}

KERNEL = Kernel(
    "rms_norm",
    function=rms_norm,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=Metal(VARIANTS, problem, choose, launch, outputs=("out", "total")),
    cpu="rms_norm",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
