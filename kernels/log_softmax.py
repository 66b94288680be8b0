"""Logarithm of softmax along one axis, accumulated in float32.

Softmax's programs and geometry; each element becomes x - maximum - log(sum) instead.
"""

import mlx.core as mx
import numpy as np

from . import softmax as plain
from .kernel import Kernel
from .spec import Launch, Metal

FUNCTIONS = """
inline float keep(float shifted, thread float& sum) {
    sum += metal::precise::exp(shifted);
    return shifted;
}

inline float rest(float sum) {
    return metal::precise::log(sum);
}

inline float finish(float kept, float rest_of_row) {
    return kept - rest_of_row;
}
"""

PROGRAMS = plain.programs("log_softmax", FUNCTIONS)


def launch(rows: plain.Rows, variant: str) -> list[Launch]:
    """Softmax's dispatches with our programs; ValueError where a variant cannot serve."""
    return plain.launch(rows, variant, PROGRAMS)


def reference(x: np.ndarray, axis: int) -> np.ndarray:
    """In float64; a row of -inf, or one that holds NaN or +inf, is NaN."""
    x = np.asarray(x, np.float64)
    if x.size == 0:
        return x
    with np.errstate(invalid="ignore"):
        shifted = x - x.max(axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def fallback(x: mx.array, axis: int) -> mx.array:
    """In float32, the sum in blocks where MLX's CPU would add one by one."""
    if x.size == 0:
        return x
    if x.dtype in (mx.float16, mx.bfloat16):
        return fallback(x.astype(mx.float32), axis).astype(x.dtype)
    shifted = x - mx.stop_gradient(x.max(axis=axis, keepdims=True))
    return shifted - mx.log(plain.blocked_sum(plain.exponential(shifted), axis))


def vjp(primals, cotangent: mx.array, output: mx.array, axis: int) -> tuple[mx.array]:
    """g - softmax(x) sum(g), computed in float32 for half types.

    From x, not from the exponential of the output: a bfloat16 of -12 is off by 3 %.
    """
    (x,) = primals
    wide = mx.float64 if x.dtype == mx.float64 else mx.float32
    y, g = plain.softmax(x.astype(wide), axis), cotangent.astype(wide)
    return ((g - y * plain.blocked_sum(g, axis)).astype(x.dtype),)


def log_softmax(x: mx.array, axis: int = -1) -> mx.array:
    """log(softmax(x)) along `axis`, accumulated in float32, in x's shape and dtype.

    x: any shape, 0-d and empty included; float32, float16, bfloat16, and float64 on the CPU. A
    row of -inf gives NaN, as in torch. Raises TypeError for another dtype, ValueError for an axis
    out of range.
    """
    return plain.along(KERNEL, x, axis)


CASES = [
    plain.case((1, 151_936), "Qwen vocabulary: one long row, 75 chunks"),
    plain.case((2, 49_152), "SmolLM2 vocabulary, peaked as logits are", scale=4.0),
    plain.case((2, 2049), "just split; the last chunk has one column"),
    plain.case((257, 2050), "many long rows are not split"),
    plain.case((7, 1025), "just over a simdgroup's registers"),
    plain.case((9, 1024), "just within a simdgroup's registers"),
    plain.case((2, 4, 33, 65), "rows not a multiple of a threadgroup"),
    plain.case((3, 40), "far apart: probabilities below the least float32", scale=100.0),
    plain.case((3, 1), "one column gives exactly 0"),
    plain.case((1, 3), "fewer than 8 elements arrive in constant memory"),
    plain.case((4, 37, 50), "middle axis, inner not a multiple of 32", axis=1),
    plain.case((1030, 3), "first axis, long, few columns", axis=0),
    plain.case((6, 40), "special values, short rows", fill="specials"),
    plain.case((6, 1500), "special values, looped", fill="specials"),
    plain.case((6, 5000), "special values, whole chunks of -inf beside others", fill="specials"),
    plain.case((40, 6), "special values, first axis", axis=0, fill="specials"),
    plain.case((6, 100), "transposed in memory", layout="transposed"),
    plain.case((3, 2500), "starts one element into its buffer: unaligned", layout="offset"),
    plain.case((3, 2500), "every other element of a buffer", layout="strided"),
]

# Beyond rounding. float32: x - maximum is off by half an ulp, the logarithm and the sum by 2.
# Half types compute in float32, then round once.
NMSE = {"float32": 1e-12, "float16": 1e-9, "bfloat16": 1e-8}

KERNEL = Kernel(
    "log_softmax",
    function=log_softmax,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=Metal(plain.VARIANTS, plain.problem, plain.choose, launch, bar=plain.bar),
    cpu="log_softmax",
    cases=CASES,
    nmse=NMSE,
    cost=plain.cost,
)
