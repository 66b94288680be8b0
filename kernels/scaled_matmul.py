"""Float8 e4m3 times float8 e4m3 with scales on both sides: F.scaled_mm on arrays.

The programs of fp8_matmul.py with codes for x. Codes are exact in half, so tiles are halves, but
where x has a scale for each row and 128 columns: it goes onto the values of x as they are read,
and tiles are floats.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from . import dots, e4m3, tiles
from .fp8_cast import to_fp8
from .fp8_matmul import (
    BIAS,
    BLOCK,
    FEW,
    FEW_GEOMETRY,
    FEW_PLACE,
    MANY_OUTPUTS,
    MAX_ROWS,
    PLACE,
    SCALE_SHIFTS,
    SHIFTS,
    TILE_ROWS,
    TILED,
    expand,
    few_rows,
    scales,
    tiled,
    weights,
)
from .gemv import linear
from .kernel import Kernel
from .spec import FALLBACK, STREAMING, Case, Chip, Cost, Launch, Metal, Program, Spec, Tiled

# The scale of x (m, k) is found as in fp8_matmul.FEW. In tiles, X_SCALES: 0 one for all, 1 one for
# each row, 2 one for each row and BLOCK columns.
SCALE_X = """ *
                    float(scale_x[(m >> x_row_shift) * (((k - 1) >> x_column_shift) + 1) +
                        (i >> x_column_shift)])"""

LOAD_X = """for (uint r = simdgroup; r < BM; r += TILE_SIMDGROUPS) {
            float value = 0.0f;
            if (row0 + r < rows && begin + lane < k) {
                value = widen(x[ulong(row0 + r) * k + begin + lane]);
            }
            if (X_SCALES == 2) {
                bool reads = lane == 0 && row0 + r < rows;
                ulong at = ulong(row0 + r) * blocks + begin / BLOCK;
                value *= metal::simd_broadcast(reads ? float(scale_x[at]) : 0.0f, ushort(0));
            }
            a[r * ROW + lane] = TILE(value);
        }"""

STORE = "out[ulong(row) * columns + column] = Narrow<T>::of(sum@BIAS@);"

SCALED_STORE = (
    """if (X_SCALES != 2) {
                    sum *= float(scale_x[X_SCALES == 1 ? row : 0]);
                }
                if (SCALES != 2) {
                    sum *= float(scale[SCALES == 1 ? column : 0]);
                }
                """
    + STORE
)

X_SHIFTS = ("x_row_shift", "x_column_shift")

# Kind of scale, as in X_SCALES -> how far row and column of x are shifted to find its scale.
X_SCALE_SHIFTS = {0: (31, 31), 1: (0, 31), 2: (0, 7)}


def _programs(name: str, bias: bool) -> tuple[Program, Program]:
    """The programs for few and for many rows, without or with a bias."""
    few = FEW.replace("@PLACE@", FEW_PLACE).replace("@SCALE_X@", SCALE_X)
    few = few.replace("@EPILOGUE@", STORE)
    many = TILED.replace("@PLACE@", PLACE).replace("@LOAD_X@", LOAD_X)
    many = many.replace("@EPILOGUE@", SCALED_STORE)
    few, many = (text.replace("@BIAS@", BIAS if bias else "") for text in (few, many))
    inputs = ("x", "w", "scale_x", "scale", *(("bias",) if bias else ()))
    few_inputs, few_header = (*inputs, *SHIFTS, *X_SHIFTS), dots.HEADER + e4m3.WRITE
    header = e4m3.READ + e4m3.WRITE + tiles.HEADER
    return (
        Program(f"scaled_few{name}", few_inputs, ("out",), few, few_header),
        Program(f"scaled_tiled{name}", inputs, ("out",), many, header),
    )


FEW_PROGRAM, TILED_PROGRAM = _programs("", False)
FEW_BIAS_PROGRAM, TILED_BIAS_PROGRAM = _programs("_bias", True)

VARIANTS = {
    "1x4": "one output a simdgroup, 4 simdgroups; up to 8 rows, few outputs",
    "2x8": "two outputs a simdgroup, 8 simdgroups; up to 8 rows, many outputs",
    "tile32": "a threadgroup 32 x 64 outputs; up to 32 rows",
    "tile64": "a threadgroup 64 x 64 outputs; more rows",
}


@dataclass(frozen=True)
class Product:
    """x [rows, k] times w [n, k]; scales as in X_SCALES and in fp8_matmul's SCALES."""

    rows: int
    n: int
    k: int
    x_scales: int
    scales: int
    x_scale_shape: tuple[int, ...]
    scale_shape: tuple[int, ...]
    bias: bool
    dtype: mx.Dtype


def _kind(scale: mx.array, count: int) -> int:
    return 0 if scale.size == 1 else 1 if scale.shape == (count, 1) else 2


def problem(x, w, scale_x, scale, bias=None, *, dtype: mx.Dtype) -> Product:
    """Describe the product; the shapes fit."""
    (rows, k), n = x.shape, w.shape[0]
    kinds = _kind(scale_x, rows), _kind(scale, n)
    return Product(rows, n, k, *kinds, scale_x.shape, scale.shape, bias is not None, dtype)


def choose(product: Product, chip: Chip) -> str:
    """Name of the variant, by rows and outputs as in fp8_matmul."""
    if 0 in (product.rows, product.n, product.k) or product.n * product.k < 8:
        return FALLBACK
    if product.dtype not in (mx.float32, mx.float16, mx.bfloat16, mx.uint8):
        return FALLBACK
    if product.rows <= MAX_ROWS:
        return "2x8" if product.n >= MANY_OUTPUTS else "1x4"
    return "tile32" if product.rows <= 32 else "tile64"


def bar(product: Product, variant: str) -> float | Tiled:
    """As fp8_matmul's, with codes on both sides."""
    if variant in FEW_GEOMETRY:
        return STREAMING
    rows, n = product.rows, product.n
    return Tiled(rows, n, product.k, TILE_ROWS[variant], 64, 1, 1, rows * n * product.dtype.size)


def launch(product: Product, variant: str) -> list[Launch]:
    """The one dispatch of a variant; ValueError where it cannot serve the problem."""
    if 0 in (product.rows, product.n, product.k) or product.n * product.k < 8:
        raise ValueError("scaled_matmul takes no empty arrays and 8 weights at least")
    inputs: dict[str, tuple[int, ...]] = {
        "x": (product.rows, product.k),
        "w": (product.n, product.k),
        "scale_x": product.x_scale_shape or (1,),
        "scale": product.scale_shape or (1,),
    }
    if product.bias:
        inputs["bias"] = (product.n,)
    outputs = {"out": ((product.rows, product.n), product.dtype)}
    if variant in FEW_GEOMETRY:
        program = FEW_BIAS_PROGRAM if product.bias else FEW_PROGRAM
        shifts = (*SCALE_SHIFTS[product.scales], *X_SCALE_SHIFTS[product.x_scales])
        named = dict(zip((*SHIFTS, *X_SHIFTS), shifts, strict=True))
        return [few_rows(program, product, variant, inputs, outputs, named)]
    template = {
        "T": product.dtype,
        "TILE": mx.float32 if product.x_scales == 2 else mx.float16,
        "X_SCALES": product.x_scales,
        "SCALES": product.scales,
        "BLOCK": BLOCK,
    }
    program = TILED_BIAS_PROGRAM if product.bias else TILED_PROGRAM
    return [tiled(program, product, variant, inputs, outputs, template)]


def _expand_x(scale, columns: int, repeat):
    """`scale` as it multiplies x; `repeat` is NumPy's or MLX's."""
    if scale.ndim < 2 or scale.shape[1] == 1:
        return scale
    return repeat(scale, BLOCK, 1)[:, :columns]


def reference(x, w, scale_x, scale, bias=None, *, dtype: mx.Dtype) -> np.ndarray:
    """(x * scale_x) @ (w * scale).T + bias in float64, or its codes."""
    scale_x, scale = np.asarray(scale_x, np.float64), np.asarray(scale, np.float64)
    left = e4m3.widen(x) * _expand_x(scale_x, x.shape[1], np.repeat)
    out = left @ (e4m3.widen(w) * expand(scale, w.shape, BLOCK, np.repeat)).T
    out = out if bias is None else out + np.asarray(bias, np.float64)
    return e4m3.narrow(out) if dtype == mx.uint8 else out


def fallback(x, w, scale_x, scale, bias=None, *, dtype: mx.Dtype) -> mx.array:
    """Both operands in float32, with the scales of blocks; the others go onto the sums."""
    left, right = (mx.from_fp8(mx.stop_gradient(codes), mx.float32) for codes in (x, w))
    kinds = _kind(scale_x, x.shape[0]), _kind(scale, w.shape[0])
    if kinds[0] == 2:
        left = left * _expand_x(scale_x.astype(mx.float32), x.shape[1], mx.repeat)
    if kinds[1] == 2:
        right = right * expand(scale.astype(mx.float32), w.shape, BLOCK, mx.repeat)
    out = linear(left, right)
    if kinds[0] != 2:
        out = out * scale_x.astype(mx.float32)
    if kinds[1] != 2:
        out = out * scale.astype(mx.float32).reshape(1, -1)
    out = out if bias is None else out + bias.astype(mx.float32)
    return to_fp8(out) if dtype == mx.uint8 else out.astype(dtype)


def scaled_matmul(
    a: mx.array,
    b: mx.array,
    scale_a: mx.array,
    scale_b: mx.array,
    bias: mx.array | None = None,
    out_dtype: mx.Dtype = mx.bfloat16,
) -> mx.array:
    """((a @ b.T) * scale_a) * scale_b + bias for e4m3 codes, accumulated in float32.

    a [M, K], b [N, K]: uint8 codes. Scales multiply: scale_a () or [1] for all of a, [M, 1] for
    each row, [M, ceil(K / 128)] for each row and 128 columns; scale_b () or [1], [N, 1], or
    [ceil(N / 128), ceil(K / 128)] for square blocks. bias [N], any floating dtype. Returns [M, N]
    of `out_dtype`: float32, float16, bfloat16, or uint8 for e4m3 codes (saturating). The maths of
    torch.nn.functional.scaled_mm, whose mat_b is b.T and whose row scales of b are [1, N]. Raises
    ValueError for shapes that do not fit, TypeError for other dtypes.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"scaled_matmul: a {a.shape} and b {b.shape} are not [M, K] and [N, K]")
    (m, k), n = a.shape, b.shape[0]
    blocks = -(-k // BLOCK)
    _check_scale("scale_a", scale_a, (m, 1), (m, blocks))
    _check_scale("scale_b", scale_b, (n, 1), (-(-n // BLOCK), blocks))
    if bias is not None and bias.shape != (n,):
        raise ValueError(f"scaled_matmul: bias {bias.shape} is not {(n,)}")
    if a.dtype != mx.uint8 or b.dtype != mx.uint8:
        raise TypeError(f"scaled_matmul takes uint8 codes, not {a.dtype}, {b.dtype}")
    if out_dtype not in (mx.float32, mx.float16, mx.bfloat16, mx.uint8):
        raise TypeError(f"scaled_matmul gives float32, half types or codes, not {out_dtype}")
    arrays = (a, b, scale_a, scale_b) if bias is None else (a, b, scale_a, scale_b, bias)
    return KERNEL(*arrays, dtype=out_dtype)


def _check_scale(name: str, scale: mx.array, *shapes: tuple[int, ...]) -> None:
    if scale.shape not in ((), (1,), (1, 1), *shapes):
        raise ValueError(f"scaled_matmul: {name} {scale.shape} is not (), {shapes[0]}, {shapes[1]}")
    if not mx.issubdtype(scale.dtype, mx.floating):
        raise TypeError(f"scaled_matmul takes a floating {name}, not {scale.dtype}")


def scaled_matmul_as(x, w, scale_x, scale, bias=None, *, dtype: mx.Dtype) -> mx.array:
    """scaled_matmul with the names that cases use."""
    return scaled_matmul(x, w, scale_x, scale, bias, dtype)


def cost(x, w, scale_x, scale, bias=None, *, dtype: mx.Dtype) -> Cost:
    """Reads each array once, writes the result; a multiply and an add for each product."""
    read = sum(array.nbytes for array in (x, w, scale_x, scale, bias) if array is not None)
    rows, n = x.shape[0], w.shape[0]
    return Cost(bytes=read + rows * n * dtype.size, flops=2 * rows * w.size)


def small_integers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Codes of -4 to 4: their sums are exact, and so are the codes of results."""
    return e4m3.narrow(rng.integers(-4, 5, shape))


def powers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Powers of two around 1 / 16."""
    return 2.0 ** rng.integers(-6, -2, shape).astype(np.float32)


def _case(m, n, k, kinds, why, dtype=mx.bfloat16, bias=None, codes=weights, factors=scales):
    blocks = -(-k // BLOCK)
    x_scales = {"one": (), "row": (m, 1), "block": (m, blocks)}
    w_scales = {"one": (), "row": (n, 1), "block": (-(-n // BLOCK), blocks)}
    arrays = {
        "x": Spec((m, k), "uint8", codes),
        "w": Spec((n, k), "uint8", codes),
        "scale_x": Spec(x_scales[kinds[0]], "float32", factors),
        "scale": Spec(w_scales[kinds[1]], "float32", factors),
    }
    if bias is not None:
        arrays["bias"] = Spec((n,), bias)
    return Case(arrays, why, {"dtype": dtype})


ONE, ROW, BLOCKS = ("one", "one"), ("row", "row"), ("block", "block")

CASES = [
    _case(1, 512, 2048, BLOCKS, "Qwen3.6-35B-A3B k_proj, one token, DeepSeek's scales"),
    _case(3, 70, 272, ROW, "three rows, row scales", mx.float16, "float16"),
    _case(8, 4100, 32, ONE, "eight rows, many outputs", mx.float32),
    _case(5, 33, 300, BLOCKS, "K no multiple of a run nor of a block", mx.float32),
    _case(2, 3, 5, ONE, "fewer than 8 scales in constant memory, few codes", mx.float32),
    _case(65, 130, 160, BLOCKS, "just over a tile each way", mx.float32),
    _case(33, 70, 45, ROW, "tiled, odd K", mx.bfloat16, "bfloat16"),
    _case(9, 64, 128, ONE, "a tile of 32 rows", mx.float16),
    _case(7, 40, 64, ROW, "codes out", mx.uint8, "bfloat16", small_integers, powers),
    _case(40, 70, 96, ONE, "codes out, tiled", mx.uint8, None, small_integers, powers),
]

# Beyond rounding, K up to 2048; half types round once, codes are exact where sums are.
NMSE = {"float32": 2e-12, "float16": 1e-9, "bfloat16": 1e-8}

KERNEL = Kernel(
    "scaled_matmul",
    function=scaled_matmul_as,
    reference=reference,
    fallback=fallback,
    vjp=None,
    metal=Metal(VARIANTS, problem, choose, launch, bar=bar),
    cpu="scaled_matmul",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
