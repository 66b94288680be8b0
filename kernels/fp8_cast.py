"""Casts to and from float8 e4m3, with torch's bits."""

from dataclasses import dataclass
from math import prod

import mlx.core as mx
import numpy as np

from . import e4m3
from .kernel import Kernel
from .spec import FALLBACK, Case, Chip, Cost, Launch, Metal, Program, Spec

# Each access of a simdgroup takes 32 neighbours; four of them keep more bytes in flight.
SOURCE = """
    // x, out: [n]; a simdgroup 128 elements
    uint n = x_shape[0];
    ulong first = ulong(thread_position_in_grid.x / 32) * 128 + thread_index_in_simdgroup;
    for (ulong i = first; i < metal::min(first + 128, ulong(n)); i += 32) {
        out[i] = Narrow<T>::of(widen(x[i]));
    }
"""

PROGRAM = Program("fp8_cast", ("x",), ("out",), SOURCE, e4m3.READ + e4m3.WRITE)

VARIANTS = {"flat": "four elements a thread"}

FLOATS = (mx.float32, mx.float16, mx.bfloat16)


@dataclass(frozen=True)
class Cast:
    """An array of `shape` from one dtype to another; uint8 stands for e4m3."""

    shape: tuple[int, ...]
    source: mx.Dtype
    target: mx.Dtype


def problem(x: mx.array, dtype: mx.Dtype) -> Cast:
    """Describe the cast."""
    return Cast(x.shape, x.dtype, dtype)


def choose(cast: Cast, chip: Chip) -> str:
    """The one variant, but for nothing to do and for float64."""
    known = {cast.source, cast.target} <= {*FLOATS, mx.uint8}
    return "flat" if known and 0 < prod(cast.shape) < 2**31 else FALLBACK


def launch(cast: Cast, variant: str) -> list[Launch]:
    """The one dispatch; ValueError for an empty array or one beyond 32-bit lengths."""
    size = prod(cast.shape)
    if not 0 < size < 2**31:
        raise ValueError(f"fp8_cast takes 1 to 2**31 - 1 elements, not {size}")
    return [
        Launch(
            PROGRAM,
            inputs={"x": (size,)},
            outputs={"out": (cast.shape, cast.target)},
            grid=(32 * -(-size // 128), 1, 1),
            threadgroup=(256, 1, 1),
            template=(("T", cast.target),),
        )
    ]


def reference(x: np.ndarray, dtype: mx.Dtype) -> np.ndarray:
    """Codes of values, or float64 values of codes."""
    return e4m3.narrow(x) if dtype == mx.uint8 else e4m3.widen(x)


def fallback(x: mx.array, dtype: mx.Dtype) -> mx.array:
    """MLX's casts, but for NaN, whose code there is that of 448, and for float64, which comes out
    wrong (mlx 0.32.4).
    """
    if dtype != mx.uint8:
        return mx.from_fp8(x, mx.float32 if dtype == mx.float64 else dtype).astype(dtype)
    narrow = x.astype(mx.float32) if x.dtype == mx.float64 else x
    bits = narrow.view(mx.uint32 if narrow.itemsize == 4 else mx.uint16)
    nan = (bits >> (8 * narrow.itemsize - 8) & 0x80 | 0x7F).astype(mx.uint8)
    return mx.where(mx.isnan(narrow), nan, mx.to_fp8(narrow))


def to_fp8(x: mx.array) -> mx.array:
    """The e4m3 codes (uint8) of x: to nearest even, saturating at +-448; NaN keeps its sign.

    x: any shape, float32, float16, bfloat16, and float64 on the CPU (by way of float32, as in
    torch). Raises TypeError for another dtype.
    """
    if not mx.issubdtype(x.dtype, mx.floating):
        raise TypeError(f"to_fp8 takes a floating dtype, not {x.dtype}")
    return KERNEL(x, dtype=mx.uint8)


def from_fp8(x: mx.array, dtype: mx.Dtype = mx.bfloat16) -> mx.array:
    """The values of e4m3 codes x (uint8, any shape) as `dtype`: exact; 0x7f and 0xff are NaN.

    Raises TypeError for other codes than uint8 or another dtype than a floating one.
    """
    if x.dtype != mx.uint8 or not mx.issubdtype(dtype, mx.floating):
        raise TypeError(f"from_fp8 takes uint8 and gives a floating dtype, not {x.dtype}, {dtype}")
    return KERNEL(x, dtype=dtype)


def cast_fp8(x: mx.array, dtype: mx.Dtype) -> mx.array:
    """Cast to e4m3 codes where `dtype` is uint8, else from codes to `dtype`."""
    return to_fp8(x) if dtype == mx.uint8 else from_fp8(x, dtype)


def cost(x: mx.array, dtype: mx.Dtype) -> Cost:
    """Reads x, writes as many elements; one operation each."""
    return Cost(bytes=x.nbytes + x.size * dtype.size, flops=x.size)


def codes(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """All 256 codes in order, over and over."""
    return np.resize(np.arange(256, dtype=np.uint8), shape)


def edges(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Every code's value, the midpoints between neighbours, and what saturates, both signs."""
    middle = (e4m3.FINITE[1:] + e4m3.FINITE[:-1]) / 2
    beyond = [448, 463, 464, 465, 480, 1e4, np.inf, 2.0**-10, 2.0**-11, 1e-7, np.nan]
    values = np.concatenate([e4m3.FINITE, middle, beyond])
    return np.resize(np.concatenate([values, -values]), shape).astype(np.float32)


CASES = [
    Case({"x": Spec((3, 1000))}, "rows of activations", {"dtype": mx.uint8}),
    Case({"x": Spec((600,), fill=edges)}, "values, ties, overflow, NaN", {"dtype": mx.uint8}),
    Case({"x": Spec((2, 77), scale=2.0**-8)}, "subnormals", {"dtype": mx.uint8}),
    Case({"x": Spec((3,))}, "fewer than 8 elements: constant memory", {"dtype": mx.uint8}),
    Case({"x": Spec((33, 5), layout="transposed")}, "transposed", {"dtype": mx.uint8}),
    *(
        Case({"x": Spec(shape, "uint8", codes, layout)}, why, {"dtype": dtype})
        for dtype in FLOATS
        for shape, layout, why in (
            ((1, 256), "contiguous", "every code"),
            ((513,), "offset", "starts one element into its buffer: unaligned"),
        )
    ),
    Case({"x": Spec((1, 1), "uint8", codes)}, "one code, in constant memory", {"dtype": FLOATS[1]}),
]

# Casts are exact.
NMSE = {"float32": 0.0, "float16": 0.0, "bfloat16": 0.0}

KERNEL = Kernel(
    "fp8_cast",
    function=cast_fp8,
    reference=reference,
    fallback=fallback,
    vjp=None,
    metal=Metal(VARIANTS, problem, choose, launch),
    cpu="fp8_cast",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
