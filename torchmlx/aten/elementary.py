"""Transcendental functions. Integers become floats; half precision is computed in float32.

MLX computes some functions of float64 in float32 only; here those have a float64 route.
"""

from __future__ import annotations

import functools
import math

import mlx.core as mx
import numpy as np

from ..core import dtype as dtypes
from ..core.op import composite, op
from ._calling import is_float, torch_name
from .pointwise import BITS, in_float32, is_negative, not_bool, with_sign

_to_float = functools.partial(op, promote="input", to_float=True, inplace=True)
_pair = functools.partial(op, promote="input other", to_float=True, inplace=True)


def exp(x):
    """e ** x. mx.exp of float64 is only as exact as float32 (8e-8, mlx 0.32.4)."""
    if x.itemsize < 8 or x.dtype != mx.float64:
        return mx.exp(x)
    # e is not a double: the rest of it matters at large x.
    bounded = mx.clip(x, -800.0, 800.0)
    return mx.power(mx.array(math.e, mx.float64), x) * (1 + bounded * 5.318128e-17)


def sin(x):
    """Sine; of float64 by the tangent of the half angle, since mx.sin errs by 3e-8 there."""
    if x.dtype != mx.float64:
        return mx.sin(x) if x.dtype == mx.complex64 else mx.where(x == 0, x, mx.sin(x))
    t = mx.tan(x / 2)
    return 2 * t / (1 + t * t)


def cos(x):
    """Cosine; of float64 by the tangent of the half angle."""
    if x.dtype != mx.float64:
        return mx.cos(x)
    t = mx.tan(x / 2)
    return (1 - t * t) / (1 + t * t)


def sigmoid(x):
    """1 / (1 + e ** -x)."""
    if x.dtype in (mx.float64, mx.complex64):
        return 1 / (1 + exp(-x))
    return mx.sigmoid(x)


def expm1(x):
    """e ** x - 1."""
    return mx.exp(x) - 1 if x.dtype == mx.complex64 else mx.expm1(x)


def logaddexp(x, y):
    """log(e ** x + e ** y) without overflow."""
    if x.dtype != mx.float64:
        return mx.logaddexp(x, y)
    return _logaddexp64(*mx.broadcast_arrays(x, y))


@mx.custom_function
def _logaddexp64(x, y):
    high = mx.maximum(x, y)
    rest = mx.log1p(exp(-mx.abs(x - y)))
    return mx.where(mx.isinf(high), high, high + rest)


@_logaddexp64.vjp
def _logaddexp_slopes(primals, g, result):
    x, y = primals
    return g * sigmoid(x - y), g * sigmoid(y - x)


def erf(x):
    """The error function; mx.erf of float64 is as exact as float32 only, and gives -0 for 0."""
    if x.dtype != mx.float64:
        return mx.where(x == 0, x, mx.erf(x))
    # 2 / sqrt(pi) * x * exp(-x^2) * (1 + t/3 (1 + t/5 (1 + ...))) with t = 2 x^2: all terms are
    # positive, so nothing cancels. Beyond 6 the value is 1 in float64.
    bounded = mx.clip(x, -6.0, 6.0)
    t, series = 2 * bounded * bounded, mx.ones_like(x)
    for n in range(_ERF_TERMS, 0, -1):
        series = 1 + series * (t / (2 * n + 1))
    return 2 / math.sqrt(math.pi) * bounded * exp(-bounded * bounded) * series


_ERF_TERMS = 100  # at 6 the next term is below 1e-17 of the sum


def _elementary(name, function, *aliases):
    # in_float32, spelled out: a wrapper more would take a tenth of a small call's time, as would a
    # look at the dtype rather than at its size.
    @_to_float(name, aliases=aliases)
    def elementary(input):
        if input.itemsize == 2:
            return function(input.astype(mx.float32)).astype(input.dtype)
        return function(input)

    elementary.__doc__ = (
        f"Elementwise {name}; integers become the default float dtype. torch.{name}."
    )


for _name, _function, *_aliases in (
    ("exp", exp), ("expm1", expm1), ("log", mx.log), ("log2", mx.log2), ("log10", mx.log10),
    ("log1p", mx.log1p), ("sqrt", mx.sqrt), ("rsqrt", mx.rsqrt), ("sin", sin), ("cos", cos),
    ("tan", mx.tan), ("sinh", mx.sinh), ("cosh", mx.cosh), ("tanh", mx.tanh),
    ("asin", mx.arcsin, "arcsin"), ("acos", mx.arccos, "arccos"), ("atan", mx.arctan, "arctan"),
    ("asinh", mx.arcsinh, "arcsinh"), ("acosh", mx.arccosh, "arccosh"),
    ("atanh", mx.arctanh, "arctanh"), ("sigmoid", sigmoid), ("erf", erf),
    ("reciprocal", mx.reciprocal), ("exp2", lambda x: mx.power(mx.array(2, x.dtype), x)),
    ("deg2rad", lambda x: x * (math.pi / 180)), ("rad2deg", lambda x: x * (180 / math.pi)),
):  # fmt: skip
    _elementary(_name, _function, *_aliases)


@_to_float()
def logit(input, eps=None):
    """log(x / (1 - x)), x limited to [eps, 1 - eps] where eps is given. torch.logit."""

    def logit(x):
        x = x if eps is None else mx.clip(x, eps, 1 - eps)
        return mx.log(x / (1 - x))

    return in_float32(logit)(input)


@_to_float()
def sinc(input):
    """sin(pi x) / (pi x), 1 at 0. torch.sinc."""

    def sinc(x):
        angle = math.pi * x
        return mx.where(x == 0, mx.ones_like(x), sin(angle) / mx.where(x == 0, 1, angle))

    return in_float32(sinc)(input)


@op(promote="input", inplace=True)
def square(input):
    """input * input. torch.square."""
    if input.dtype == mx.bool_:
        input = input.astype(mx.int64)
    return input * input


@_pair(aliases=("arctan2",), tensors=True)
def atan2(input, other):
    """The angle of the point (other, input). torch.atan2."""
    return in_float32(mx.arctan2)(input, other)


@op(promote="input other", inplace=True, tensors=True)
def hypot(input, other):
    """sqrt(input ** 2 + other ** 2) without overflow. torch.hypot."""
    not_bool(input, "hypot")

    def hypot(x, y):
        x, y = mx.abs(x), mx.abs(y)
        high, low = mx.maximum(x, y), mx.minimum(x, y)
        ratio = low / mx.where(high == 0, mx.ones_like(high), high)
        infinite = mx.isinf(x) | mx.isinf(y)
        return mx.where(infinite, mx.array(math.inf, x.dtype), high * mx.sqrt(1 + ratio * ratio))

    return in_float32(hypot)(input, other)


@_pair()
def copysign(input, other):
    """The magnitude of input with the sign of other. torch.copysign."""
    return with_sign(mx.abs(input), other)


@op(pointwise=True)
def signbit(input):
    """Whether the sign bit is set, of -0.0 too. torch.signbit."""
    return is_negative(input) if input.dtype != mx.bool_ else mx.zeros_like(input)


@_pair()
def xlogy(input, other):
    """input * log(other), 0 where input is 0 (and other is not NaN). torch.xlogy."""

    def xlogy(x, y):
        zero = (x == 0) & ~mx.isnan(y)
        return mx.where(zero, mx.zeros_like(x), x * mx.log(y))

    return in_float32(xlogy)(input, other)


@op("logaddexp", promote="input other", pointwise=True, tensors=True)
def _logaddexp(input, other):
    """log(e ** input + e ** other). torch.logaddexp."""
    return in_float32(logaddexp)(input, other)


@op(promote="input other", pointwise=True, tensors=True)
def logaddexp2(input, other):
    """log2(2 ** input + 2 ** other). torch.logaddexp2."""
    two = math.log(2)
    return in_float32(lambda x, y: logaddexp(x * two, y * two) / two)(input, other)


@op(promote="input values", inplace=True, tensors=True)
def heaviside(input, values):
    """0 below zero, 1 above, `values` at zero. torch.heaviside."""
    step = mx.where(input == 0, values, (input > 0).astype(input.dtype))
    return mx.where(input != input, mx.zeros_like(input), step)


def _on_host(name: str, function):
    """An operation without an MLX counterpart: NumPy, on evaluated values."""

    @op(name, promote="input other", inplace=True, tensors=True)
    def operation(input, other):
        not_bool(input, name)
        if is_float(input):
            raise NotImplementedError(f"\"{name}_cpu\" not implemented for '{torch_name(input)}'")
        return mx.array(np.asarray(function(np.array(input), np.array(other))), dtype=input.dtype)

    operation.__doc__ = f"torch.{name}, computed by NumPy on the host."


_on_host("gcd", np.gcd)
_on_host("lcm", np.lcm)


@op(promote="input other", inplace=True, tensors=True)
def nextafter(input, other):
    """The next representable number from input towards other. torch.nextafter."""
    if not is_float(input):
        raise NotImplementedError(f"\"nextafter_cpu\" not implemented for '{torch_name(input)}'")
    bits = mx.view(input, BITS[input.itemsize])
    one = mx.array(1, bits.dtype)
    # The bits of floats of one sign are ordered as their magnitudes are.
    grows = (input < other) == (input > 0)
    step = mx.view(mx.where(grows, bits + one, bits - one), input.dtype)
    least = with_sign(mx.view(mx.broadcast_to(one, bits.shape), input.dtype), other)
    step = mx.where(input == 0, least, step)
    nan = mx.isnan(input) | mx.isnan(other)
    return mx.where(nan, input + other, mx.where(input == other, other, step))


@composite()
def float_power(input, exponent):
    """input ** exponent in float64. torch.float_power."""
    wide = [x.double() if hasattr(x, "double") else x for x in (input, exponent)]
    return wide[0] ** wide[1]


@composite("Tensor.float_power_", at=("Tensor",))
def _float_power_(self, exponent):
    """In-place `float_power`, of a float64 tensor. Tensor.float_power_."""
    if self.dtype is not dtypes.float64:
        raise RuntimeError(
            f"the base given to float_power_ has dtype {self.dtype.torch_name} but the "
            "operation's result requires dtype Double"
        )
    return self.pow_(exponent)
