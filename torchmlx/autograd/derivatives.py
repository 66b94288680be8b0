"""Gradients written by hand: those that are used most, and where torch answers otherwise than MLX.

Each takes the cotangent and the operation's own arguments; of tensors that are not saved it gets
shape and dtype. Sums over broadcast dimensions and casts are the tape's.
"""

from __future__ import annotations

import math

import mlx.core as mx

from ..aten import elementary
from ..aten._calling import wide
from ..aten.elementary import cos, sin
from ..core.op import TABLE
from ..core.record import NAMES, READS, derivative, reads
from ..core.tape import Like
from ..kernels.softmax import vjp as _softmax_vjp

# Linear in their floating point tensors, or flat: of those the gradient reads only the shapes.
READS.update(dict.fromkeys((
    "_concat", "_im2col", "_resize", "ceil", "floor", "frac", "round", "sign", "trunc",
    "_to_copy", "clone", "cumsum", "flip", "gather", "index",
    "index_add", "index_copy", "index_put", "index_select", "mean",
    "repeat", "reshape", "roll", "scatter", "scatter_add", "sum", "take",
), reads("")))  # fmt: skip
# Linear in one tensor and in another: each one's gradient reads the other.
READS.update({
    "_addcdiv": reads("tensor1:tensor2 tensor2"),
    "_lerp": reads("input:weight end:weight weight"),
    "_normalised_by": reads("input mean variance weight"),
    "addbmm": reads("batch1:batch2 batch2:batch1"),
    "addcmul": reads("tensor1:tensor2 tensor2:tensor1"),
    "addmm": reads("mat1:mat2 mat2:mat1"),
    "addmv": reads("mat:vec vec:mat"),
    "baddbmm": reads("batch1:batch2 batch2:batch1"),
    "bmm": reads("input:mat2 mat2:input"),
    "linear": reads("input:weight weight:input"),
    "matmul": reads("input:other other:input"),
    "outer": reads("input:vec2 vec2:input"),
    **{
        f"{name}{n}d": reads("input:weight weight:input")
        for name in ("conv", "conv_transpose") for n in (1, 2, 3)
    },
})  # fmt: skip


@derivative("add")
def add(g, input, other, *, alpha=1):
    return g, g if alpha == 1 else g * alpha


def _where(condition, g):
    """g where the condition holds. MLX's own gradient of `where` multiplies: NaN and infinities of
    what was not chosen come through as NaN.
    """
    return mx.where(condition, g, mx.array(0, g.dtype))


@derivative("_select", saves="condition")
def select(g, condition, input, other):
    return None, _where(condition, g), _where(mx.logical_not(condition), g)


@derivative("_masked_fill", saves="mask")
def masked_fill(g, input, mask, value):
    return _where(mx.logical_not(mask), g), None, _where(mask, g)


@derivative("index_fill", saves="written")
def index_fill(g, input, value, written):
    return _where(mx.logical_not(written), g), _where(written, g)


@derivative("tril")
def tril(g, input, diagonal=0):
    return TABLE["tril"].function(g, diagonal)


@derivative("triu")
def triu(g, input, diagonal=0):
    return TABLE["triu"].function(g, diagonal)


@derivative("threshold", saves="input")
def threshold(g, input, threshold, value):
    return _where(mx.logical_not(input <= threshold), g)


@derivative("hardshrink", "softshrink", saves="input")
def shrink(g, input, lambd=0.5):
    return _where(mx.logical_not(mx.abs(input) <= lambd), g)


@derivative("hardsigmoid", saves="input")
def hardsigmoid(g, input):
    return _where((input > -3) & (input < 3), g / 6)


@derivative("fmax", saves="input other")
def fmax(g, input, other):
    first = (input >= other) | mx.isnan(other)
    return _where(first, g), _where(mx.logical_not(first), g)


@derivative("fmin", saves="input other")
def fmin(g, input, other):
    first = (input <= other) | mx.isnan(other)
    return _where(first, g), _where(mx.logical_not(first), g)


@derivative("_sub")
def sub(g, input, other, alpha=1):
    return g, -g if alpha == 1 else g * -alpha


@derivative("mul", saves="input:other other:input")
def mul(g, input, other):
    return _times(g, other), _times(g, input)


def _times(g, x):
    return None if type(x) is Like else g * _conj(x)


@derivative("true_divide", saves="input:other other")
def true_divide(g, input, other):
    slope = g / _conj(other)
    return slope, None if type(input) is Like else -slope * _conj(input / other)


@derivative("neg")
def neg(g, input):
    return -g


@derivative("exp", saves="result")
def exp(g, input, *, result):
    return g * _conj(result)


def _by_result(name: str, slope) -> None:
    """The gradient of an elementwise function whose slope is a function of its result."""

    @derivative(name, saves="result")
    def gradient(g, input, *, result):
        return (wide(g) * _conj(slope(wide(result)))).astype(g.dtype)


def _by_input(name: str, slope) -> None:
    """The gradient of an elementwise function whose slope is a function of its input."""

    @derivative(name, saves="input")
    def gradient(g, input):
        return (wide(g) * _conj(slope(wide(input)))).astype(g.dtype)


# By mx.vjp each of these took 25 us more on the tape (4x4, 2 busy cores, 2026-12-02).
_by_result("sqrt", lambda y: 0.5 / y)
_by_result("rsqrt", lambda y: -0.5 * y * y * y)
_by_result("reciprocal", lambda y: -y * y)
_by_result("tanh", lambda y: 1 - y * y)
_by_result("sigmoid", lambda y: y * (1 - y))
_by_result("expm1", lambda y: y + 1)
_by_result("tan", lambda y: 1 + y * y)
_by_input("log", lambda x: 1 / x)
_by_input("log1p", lambda x: 1 / (1 + x))
_by_input("sin", cos)
_by_input("cos", lambda x: -sin(x))
_by_input("square", lambda x: 2 * x)


@derivative("relu", saves="result")
def relu(g, input, *, result):
    return mx.where(result <= 0, mx.array(0, g.dtype), g)


def _between(g, input, low, high):
    """(gradient inside the bounds, which count as inside; what goes to low and to high)."""
    inside = mx.array(True)
    below = above = mx.array(False)
    if low is not None:
        inside, below = inside & (input >= low), input < low
    if high is not None:
        inside, above = inside & (input <= high), input > high
    if low is not None and high is not None:
        below, above = below & (low < high), above | (high < low)
    zero = mx.array(0, g.dtype)
    return tuple(mx.where(part, g, zero) for part in (inside, below, above))


@derivative("clamp", "clip", saves="input min max")
def clamp(g, input, min=None, max=None):
    return _between(g, input, min, max)


@derivative("clamp_min", saves="input min")
def clamp_min(g, input, min):
    return _between(g, input, min, None)[:2]


@derivative("clamp_max", saves="input max")
def clamp_max(g, input, max):
    inside, _, above = _between(g, input, None, max)
    return inside, above


@derivative("hardtanh", saves="input")
def hardtanh(g, input, min_val=-1.0, max_val=1.0):
    """torch counts the bounds themselves as outside here."""
    return mx.where((input > min_val) & (input < max_val), g, mx.array(0, g.dtype))


def _shared(g, first, equal):
    """Gradients of the chosen of two operands; equal ones share it."""
    half = mx.where(equal, g / 2, mx.array(0, g.dtype))
    return mx.where(first, g, half), mx.where(first | equal, half, g)


@derivative("maximum", saves="input other")
def maximum(g, input, other):
    return _shared(g, input > other, input == other)


@derivative("minimum", saves="input other")
def minimum(g, input, other):
    return _shared(g, input < other, input == other)


@derivative("_rows", saves="indices")
def rows(g, weight, indices, padding_idx=-1, by_frequency=False):
    wide = mx.float32 if g.dtype in (mx.float16, mx.bfloat16) else g.dtype
    where, parts = mx.reshape(indices, (-1,)), mx.reshape(g, (-1, weight.shape[1])).astype(wide)
    if by_frequency:
        count = mx.zeros((weight.shape[0],), wide).at[where].add(mx.ones(where.shape, wide))
        parts = parts / count[where][:, None]
    if padding_idx >= 0:
        parts = mx.where((where == padding_idx)[:, None], mx.array(0, wide), parts)
    return mx.zeros(weight.shape, wide).at[where].add(parts), None


@derivative("complex")
def complex_(g, real, imag):
    return mx.real(g), mx.imag(g)


@derivative("_div_rounded")
def div_rounded(g, input, other, rounding_mode):
    zero = mx.zeros(g.shape, g.dtype)
    return zero, zero


@derivative("remainder", saves="input:other other:other")
def remainder(g, input, other):
    return g, None if type(input) is Like else -g * mx.floor(input / other)


@derivative("fmod", saves="input:other other:other")
def fmod(g, input, other):
    if type(input) is Like:
        return g, None
    quotient = input / other
    return g, -g * mx.where(quotient < 0, mx.ceil(quotient), mx.floor(quotient))


@derivative("copysign", saves="input result")
def copysign(g, input, other, *, result):
    zero = input == 0
    return mx.where(zero, 0, g * (result / mx.where(zero, 1, input))), mx.zeros(g.shape, g.dtype)


@derivative("ndtri", saves="result")
def ndtri(g, input, *, result):
    return g * math.sqrt(2 * math.pi) * elementary.exp(mx.square(result) / 2)


@derivative("_ctc", saves="log_probs labels skip input_lengths target_lengths")
def ctc(g, log_probs, labels, skip, input_lengths, target_lengths):
    """torch's: for logarithms of probabilities that add up to one, whose share it adds."""
    rest = (labels, skip, input_lengths, target_lengths)
    function = TABLE["_ctc"].function
    _, (slope,) = mx.vjp(lambda x: function(x, *rest), [log_probs], [g])
    steps = mx.arange(log_probs.shape[0])[:, None, None]
    alive = mx.isfinite(function(log_probs, *rest))[None, :, None] & (
        steps < input_lengths[None, :, None]
    )
    share = elementary.exp(log_probs) * g[None, :, None]
    return slope + mx.where(alive, share, 0), None, None, None, None


@derivative("softmax", saves="result")
def softmax(g, input, dim=-1, dtype=None, *, axis=None, result):
    """The kernel's own, by the result that is there: `mx.vjp` would compute it again."""
    if result.size == 0 or result.ndim == 0:
        return mx.zeros(result.shape, result.dtype)
    (slope,) = _softmax_vjp((result,), g, result, dim if axis is None else axis)
    return slope


def _conj(x):
    return mx.conj(x) if isinstance(x, mx.array) and x.dtype == mx.complex64 else x


NAMES.update({
    "_sub": "SubBackward0", "true_divide": "DivBackward0", "div": "DivBackward0",
    "linear": "AddmmBackward0", "_rows": "EmbeddingBackward0", "matmul": "MmBackward0",
    "_concat": "CatBackward0", "_mse_loss": "MseLossBackward0",
    "_select": "WhereBackward0", "_attend": "ScaledDotProductAttentionBackward0",
})  # fmt: skip
