"""Gradients written by hand: those that are used most, and where torch answers otherwise than MLX.

Each takes the cotangent and the operation's own arguments; of tensors that are not saved it gets
shape and dtype. Sums over broadcast dimensions and casts are the tape's.
"""

from __future__ import annotations

import functools
import math

import mlx.core as mx

from ..aten import elementary
from ..aten._calling import kept, wide
from ..aten.elementary import cos, sigmoid, sin
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


@derivative("_select", saves="condition")
def select(g, condition, input, other):
    return None, kept(condition, g), kept(mx.logical_not(condition), g)


@derivative("_masked_fill", saves="mask")
def masked_fill(g, input, mask, value):
    return kept(mx.logical_not(mask), g), None, kept(mask, g)


@derivative("index_fill", saves="written")
def index_fill(g, input, value, written):
    return kept(mx.logical_not(written), g), kept(written, g)


@derivative("tril")
def tril(g, input, diagonal=0):
    return TABLE["tril"].function(g, diagonal)


@derivative("triu")
def triu(g, input, diagonal=0):
    return TABLE["triu"].function(g, diagonal)


@derivative("threshold", saves="input")
def threshold(g, input, threshold, value):
    return kept(mx.logical_not(input <= threshold), g)


@derivative("hardshrink", "softshrink", saves="input")
def shrink(g, input, lambd=0.5):
    return kept(mx.logical_not(mx.abs(input) <= lambd), g)


@derivative("hardsigmoid", saves="input")
def hardsigmoid(g, input):
    return kept((input > -3) & (input < 3), g / 6)


@derivative("hardswish", saves="input")
def hardswish(g, input):
    x = wide(input)
    inside = mx.where(x < 3, wide(g) * (x / 3 + 0.5), wide(g))
    return kept(mx.logical_not(x <= -3), inside).astype(g.dtype)


@derivative("leaky_relu", saves="input")
def leaky_relu(g, input, negative_slope=0.01):
    return mx.where(input > 0, g, (wide(g) * negative_slope).astype(g.dtype))


@derivative("_prelu", saves="input weight")
def prelu(g, input, weight):
    a, x = wide(g), wide(input)
    below = mx.where(x > 0, a, a * wide(weight))
    return below.astype(g.dtype), kept(mx.logical_not(x > 0), a * x)


@derivative("silu", saves="input")
def silu(g, input):
    x = wide(input)
    y = sigmoid(x)
    return (wide(g) * _conj(y * (1 + x * (1 - y)))).astype(g.dtype)


@derivative("logsigmoid", saves="input")
def logsigmoid(g, input):
    return (wide(g) * sigmoid(-wide(input))).astype(g.dtype)


@derivative("angle", saves="input")
def angle(g, input):
    if input.dtype != mx.complex64:
        return mx.zeros(g.shape, g.dtype)
    square = mx.square(mx.real(input)) + mx.square(mx.imag(input))
    slope = 1j * input / mx.where(square == 0, 1, square)
    return kept(square != 0, g * slope)


@derivative("diag_embed")
def diag_embed(g, input, offset=0, dim1=-2, dim2=-1):
    return mx.diagonal(g, offset, dim1, dim2)


@derivative("fmax", saves="input other")
def fmax(g, input, other):
    first = (input >= other) | mx.isnan(other)
    return kept(first, g), kept(mx.logical_not(first), g)


@derivative("fmin", saves="input other")
def fmin(g, input, other):
    first = (input <= other) | mx.isnan(other)
    return kept(first, g), kept(mx.logical_not(first), g)


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


def _by_own_slope(*names: str) -> None:
    """The gradient of elementwise functions as the cotangent times their slope, in torch's way:
    MLX's sum of two products would be NaN of an infinite cotangent.
    """
    for name in names:

        @derivative(name, saves="input")
        def gradient(g, input, *args, _name=name, **kwargs):
            x = wide(input)
            function = functools.partial(TABLE[_name].function, **kwargs)
            slope = mx.vjp(lambda x: function(x, *args), [x], [mx.ones_like(x)])[1][0]
            return (wide(g) * slope).astype(g.dtype)


_by_own_slope("celu", "elu", "gelu", "mish", "selu", "sinc", "softplus")
_by_input("erf", lambda x: 2 / math.sqrt(math.pi) * elementary.exp(-x * x))
_by_input("entr", lambda x: -mx.log(x) - 1)


@derivative("logit", saves="input")
def logit(g, input, eps=None):
    x = wide(input)
    low, high = (0, 1) if eps is None else (eps, 1 - eps)
    outside = mx.array(math.nan if eps is None else 0, x.dtype)
    return mx.where((x >= low) & (x <= high), wide(g) / (x * (1 - x)), outside).astype(g.dtype)


@derivative("atan2", "arctan2", saves="input other")
def atan2(g, input, other):
    y, x = wide(input), wide(other)
    square = mx.square(x) + mx.square(y)
    g = kept(square != 0, wide(g) / square)
    return g * x, -g * y


@derivative("hypot", saves="input other result")
def hypot(g, input, other, *, result):
    g, length = wide(g), wide(result)
    return g * (wide(input) / length), g * (wide(other) / length)


def _times_log(name: str, log, zero: float) -> None:
    """The gradient of x * log(y), whose logarithm is -inf at `zero`."""

    @derivative(name, saves="input other")
    def gradient(g, input, other):
        g, x, y = wide(g), wide(input), wide(other)
        by_other = g * x / (y - zero)
        return kept(mx.logical_not((x == 0) & (y <= zero)), g * log(y)), by_other


_times_log("xlogy", mx.log, 0)
_times_log("xlog1py", mx.log1p, -1)


@derivative("_pow", saves="input exponent")
def pow(g, input, exponent):
    """A power of 0 has slope 0, also at 0; so has any power of 0 by its exponent."""
    a, x, e = wide(g), wide(input), wide(exponent)
    slope = _conj(e * mx.power(x, e - 1))
    still = (x == 0) & ((mx.real(e) if e.dtype == mx.complex64 else e) >= 0)
    growth = mx.power(x, e) * mx.log(mx.where(x == 0, mx.array(1, x.dtype), x))
    return kept(e != 0, a * slope), kept(mx.logical_not(still), a * _conj(growth))


@derivative("_lerp", saves="input:weight end:weight weight")
def lerp(g, input, end, weight):
    a, w = wide(g), _conj(wide(weight))
    of_weight = None if type(input) is Like else a * _conj(wide(end) - wide(input))
    return a * (1 - w), a * w, of_weight


@derivative("relu", saves="result")
def relu(g, input, *, result):
    return kept(mx.logical_not(result <= 0), g)


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
    return tuple(kept(part, g) for part in (inside, below, above))


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
    return kept((input > min_val) & (input < max_val), g)


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
    slope = mx.where(zero, 0, result / mx.where(zero, 1, input))
    return g * slope, mx.zeros(g.shape, g.dtype)


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
