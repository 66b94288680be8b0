"""A few rows times a weight matrix, x @ w.T + bias, for one to eight rows of x: bound by reading w.

One simdgroup computes one or four outputs of every row, so that each weight is read once.
"""

from dataclasses import dataclass
from math import prod

import mlx.core as mx
import numpy as np

from . import dots
from .kernel import Kernel
from .matmul import matmul
from .spec import FALLBACK, Case, Chip, Cost, Launch, Metal, Program, Spec

# 16 bytes a lane where rows are aligned to them: a compiler joins scalar reads as it likes (two
# rows of half types with four outputs: 6 % of the loads were whole lines, simulator, 2026-12-02).
# A view may start at any element and K be odd: then neighbouring lanes read neighbours.
# Out-of-range outputs of the last simdgroup compute the last weight row again and drop it.
SOURCE = """
    // x: [M, K], w: [N, K], bias: [N], out: [M, N]; a simdgroup COLUMNS outputs of each row
    uint n = w_shape[0];
    uint k = w_shape[1];
    uint lane = thread_index_in_simdgroup;
    uint first = thread_position_in_grid.y * COLUMNS;
    if (first >= n) {
        return;
    }
    ulong starts[COLUMNS];
    for (int c = 0; c < COLUMNS; c++) {
        starts[c] = ulong(metal::min(first + c, n - 1)) * k;
    }
    float sums[M][COLUMNS];
    for (int m = 0; m < M; m++) {
        for (int c = 0; c < COLUMNS; c++) {
            sums[m][c] = 0.0f;
        }
    }
    if (wide_rows(w, k) && wide_rows(x, k)) {
        #pragma unroll(UNROLL)
        for (uint i = lane * VEC; i < k; i += 32 * VEC) {
            float weights[COLUMNS][VEC];
            for (int c = 0; c < COLUMNS; c++) {
                read_run(w, starts[c] + i, VEC, true, weights[c]);
            }
            for (int m = 0; m < M; m++) {
                float values[VEC];
                read_run(x, ulong(m) * k + i, VEC, true, values);
                for (int c = 0; c < COLUMNS; c++) {
                    for (int j = 0; j < VEC; j++) {
                        sums[m][c] += values[j] * weights[c][j];
                    }
                }
            }
        }
    } else {
        #pragma unroll(4)
        for (uint i = lane; i < k; i += 32) {
            float weights[COLUMNS];
            for (int c = 0; c < COLUMNS; c++) {
                weights[c] = float(w[starts[c] + i]);
            }
            for (int m = 0; m < M; m++) {
                float value = float(x[ulong(m) * k + i]);
                for (int c = 0; c < COLUMNS; c++) {
                    sums[m][c] += value * weights[c];
                }
            }
        }
    }
    for (int m = 0; m < M; m++) {
        for (int c = 0; c < COLUMNS; c++) {
            float sum = metal::simd_sum(sums[m][c]);
            if (lane == 0 && first + c < n) {
                out[ulong(m) * n + first + c] = T(sum@EPILOGUE@);
            }
        }
    }
"""

PLAIN_PROGRAM = Program("gemv", ("x", "w"), ("out",), SOURCE.replace("@EPILOGUE@", ""), dots.HEADER)
BIAS_PROGRAM = Program(
    "gemv_bias",
    ("x", "w", "bias"),
    ("out",),
    SOURCE.replace("@EPILOGUE@", " + float(bias[first + c])"),
    dots.HEADER,
)

# Variant -> (outputs of a simdgroup, simdgroups of a threadgroup).
GEOMETRY = {"1x4": (1, 4), "1x8": (1, 8), "1x16": (1, 16), "4x4": (4, 4), "4x8": (4, 8)}

VARIANTS = {
    "1x4": "one output a simdgroup, 4 simdgroups; one row of x",
    "1x8": "one output a simdgroup, 8 simdgroups; one row, half types, many outputs",
    "1x16": "one output a simdgroup, 16 simdgroups; one row, float32, few outputs",
    "4x4": "four outputs a simdgroup, 4 simdgroups: an x once read serves four weights",
    "4x8": "four outputs a simdgroup, 8 simdgroups; many outputs",
}

# Beyond this a tiled matmul reads weights no more often than we do. Not measured on a Mac.
MAX_ROWS = 8

# Outputs from which the other threadgroup size pays, for one row. Published for PyTorch 2.15's
# gemv_nt, not measured by us.
HALF_OUTPUTS, FLOAT_OUTPUTS = 8192, 2048

# With several rows of x, four outputs a simdgroup once enough simdgroups remain to fill the GPU.
# Not measured.
WIDE_OUTPUTS = 2048

# From this many rows MLX's float32 matmul on the Linux CPU (netlib) gains more from w.T laid out
# in memory than the copy costs: K = N = 2048, 16 rows 70 -> 49 ms, 64 rows 268 -> 149 ms, 256 rows
# 1197 -> 395 ms; 4 rows 20 -> 31 ms (2 cores of an AMD EPYC, 2026-12-02).
COPY_ROWS = 16


@dataclass(frozen=True)
class Product:
    """x of `leading` shape and `rows` rows in all, times w [n, k]."""

    leading: tuple[int, ...]
    rows: int
    n: int
    k: int
    bias: bool
    dtype: mx.Dtype


def problem(x: mx.array, w: mx.array, bias: mx.array | None = None) -> Product:
    """Describe the product; the shapes fit."""
    leading = x.shape[:-1]
    return Product(leading, prod(leading), w.shape[0], w.shape[1], bias is not None, x.dtype)


def choose(product: Product, chip: Chip) -> str:
    """Name of the variant; needs no device, so tests can pin it."""
    if product.dtype not in (mx.float32, mx.float16, mx.bfloat16):
        return FALLBACK
    if _obstacle(product):
        return FALLBACK
    if product.rows > 1 and product.n >= WIDE_OUTPUTS:
        return "4x8" if product.n >= HALF_OUTPUTS else "4x4"
    if product.dtype == mx.float32:
        return "1x4" if product.n >= FLOAT_OUTPUTS else "1x16"
    return "1x8" if product.n >= HALF_OUTPUTS else "1x4"


def _obstacle(product: Product) -> str:
    """What the program cannot take, or ""."""
    if not 1 <= product.rows <= MAX_ROWS or 0 in (product.n, product.k):
        return f"1 to {MAX_ROWS} rows and no empty weights"
    if min(product.rows, product.n) * product.k < 8:
        return "no x or weights in constant memory (fewer than 8)"
    return ""


def launch(product: Product, variant: str) -> list[Launch]:
    """The one dispatch of a variant; ValueError where it cannot serve the problem."""
    obstacle = _obstacle(product)
    if obstacle:
        raise ValueError(f"gemv takes {obstacle}")
    rows, n, k, dtype = product.rows, product.n, product.k, product.dtype
    columns, simdgroups = GEOMETRY[variant]
    template = {
        "T": dtype,
        "M": rows,
        "COLUMNS": columns,
        "VEC": 16 // dtype.size,
        "UNROLL": 4 if columns == 1 else 1,
    }
    inputs = {"x": (rows, k), "w": (n, k)}
    return [
        Launch(
            BIAS_PROGRAM if product.bias else PLAIN_PROGRAM,
            inputs={**inputs, "bias": (n,)} if product.bias else inputs,
            outputs={"out": ((*product.leading, n), dtype)},
            grid=(32, -(-n // columns), 1),
            threadgroup=(32, simdgroups, 1),
            template=tuple(template.items()),
        )
    ]


def reference(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """x @ w.T + bias in float64."""
    out = np.asarray(x, np.float64) @ np.asarray(w, np.float64).T
    return out if bias is None else out + np.asarray(bias, np.float64)


def fallback(x: mx.array, w: mx.array, bias: mx.array | None = None) -> mx.array:
    """MLX's matmul on x as a matrix; it accumulates half types in float32, bias included."""
    if x.ndim > 2:
        out = fallback(x.reshape(prod(x.shape[:-1]), x.shape[-1]), w, bias)
        return out.reshape(*x.shape[:-1], w.shape[0])
    wt = w.T
    slow = x.ndim == 2 and x.shape[0] >= COPY_ROWS and x.dtype == mx.float32
    if slow and mx.default_device().type == mx.cpu:
        # A copy, as mx.contiguous makes, but one that mx.export_function can describe.
        wt = wt.flatten().reshape(wt.shape)
    return x @ wt if bias is None else mx.addmm(bias, x, wt)


def vjp(primals, cotangent: mx.array, output: mx.array) -> tuple[mx.array, ...]:
    """g @ w for x, g.T @ x for w and the sum of g, in float32, for the bias."""
    x, w, *bias = primals
    rows, (n, k) = prod(x.shape[:-1]), w.shape
    g = cotangent.reshape(rows, n)
    gradients = (matmul(g, w).reshape(x.shape), matmul(g.T, x.reshape(rows, k)))
    if not bias:
        return gradients
    wide = g.astype(mx.float32) if g.dtype in (mx.float16, mx.bfloat16) else g
    return (*gradients, wide.sum(axis=0).astype(g.dtype))


def linear(x: mx.array, w: mx.array, bias: mx.array | None = None) -> mx.array:
    """x @ w.T + bias, accumulated in float32, rounded once.

    x [..., K], w [N, K], bias [N], all of one dtype: float32, float16, bfloat16, or what MLX's
    matmul takes on the device. Returns [..., N]. Raises ValueError for shapes that do not fit,
    TypeError for mixed dtypes.
    """
    if x.ndim == 0 or w.ndim != 2 or x.shape[-1] != w.shape[1]:
        raise ValueError(f"linear: x {x.shape} does not fit weights {w.shape} as [N, K]")
    if bias is not None and bias.shape != (w.shape[0],):
        raise ValueError(f"linear: bias {bias.shape} does not fit weights {w.shape} as [N, K]")
    arrays = (x, w) if bias is None else (x, w, bias)
    if any(array.dtype != x.dtype for array in arrays):
        raise TypeError(f"linear takes one dtype, not {', '.join(str(a.dtype) for a in arrays)}")
    return KERNEL(*arrays)


def cost(x: mx.array, w: mx.array, bias: mx.array | None = None) -> Cost:
    """Reads each array once, writes the result; a multiply and an add for each weight and row."""
    rows, n = prod(x.shape[:-1]), w.shape[0]
    read = x.nbytes + w.nbytes + (0 if bias is None else bias.nbytes)
    return Cost(bytes=read + rows * n * x.itemsize, flops=2 * rows * w.size)


def _case(x: tuple[int, ...], n: int, why: str, bias: bool = False, layout: str = "contiguous"):
    scale = max(x[-1], 1) ** -0.5
    arrays = {"x": Spec(x, layout=layout), "w": Spec((n, x[-1]), layout=layout, scale=scale)}
    return Case({**arrays, "bias": Spec((n,))} if bias else arrays, why)


CASES = [
    _case((1, 1, 576), 1536, "SmolLM2-135M up projection, one token"),
    _case((1, 1, 1024), 300, "K of Qwen3-0.6B, one token"),
    _case((1, 2048), 260, "K of Qwen3.6-35B-A3B, one token"),
    _case((1, 1, 896), 1152, "Qwen2-0.5B fused q, k, v: with bias", bias=True),
    _case((1, 128), 8200, "many outputs: half types take larger threadgroups", bias=True),
    _case((2, 256), 2048, "two rows, four outputs a simdgroup"),
    _case((3, 100), 8195, "three rows, outputs not a multiple of four, K not of VEC", bias=True),
    _case((4, 1, 512), 640, "four sequences, one token each"),
    _case((5, 300), 70, "five rows, few outputs"),
    _case((6, 257), 2050, "six rows, odd K, two outputs left over"),
    _case((7, 64), 33, "seven rows, K shorter than one step of a simdgroup", bias=True),
    _case((2, 4, 320), 2052, "eight rows, in two leading axes", bias=True),
    _case((1023,), 65, "no leading axis, odd K"),
    _case((1, 3), 2, "fewer than 8 elements go to MLX", bias=True),
    _case((1, 1), 1, "one weight"),
    _case((1, 5), 300, "fewer than 8 elements of x go to MLX"),
    _case((1, 12), 300, "K below a step, lanes idle"),
    _case((1, 4096), 7, "long K, few outputs, the bias in constant memory", bias=True),
    _case((2, 130), 40, "transposed in memory", layout="transposed"),
    _case((2, 130), 40, "starts one element into its buffer: unaligned", layout="offset"),
    _case((2, 130), 40, "every other element of a buffer", layout="strided"),
    _case((9, 200), 96, "more rows than a simdgroup holds go to matmul", bias=True),
    _case((3, 11, 64), 48, "a prompt goes to matmul"),
]

# Beyond rounding: 1e-15 K, K up to 4096. float32 sums err by about sqrt(K) * 6e-8: MLX's CPU
# reaches 2e-14 to 7e-13 (Linux x86, 2026-12-02). Half types sum in float32, then round once.
NMSE = {"float32": 4e-12, "float16": 1e-9, "bfloat16": 1e-8}

KERNEL = Kernel(
    "gemv",
    function=linear,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=Metal(VARIANTS, problem, choose, launch),
    cpu="linear",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
