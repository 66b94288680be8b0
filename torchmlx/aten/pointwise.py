"""Elementwise operations: arithmetic, comparison, logic, transcendental functions."""

from __future__ import annotations

import builtins
import functools
import math

import mlx.core as mx

from ..core import dtype as dtypes
from ..core.op import composite, op
from ..core.tensor import Tensor

binary = functools.partial(op, promote="input other", inplace=True)
arithmetic = functools.partial(op, promote="input other", inplace=True, opmath=True)
unary = functools.partial(op, promote="input", inplace=True)
to_float = functools.partial(op, promote="input", to_float=True, inplace=True)

_INTEGERS = (
    mx.bool_,
    mx.int8,
    mx.int16,
    mx.int32,
    mx.int64,
    mx.uint8,
    mx.uint16,
    mx.uint32,
    mx.uint64,
)


def _is_integer(x: mx.array) -> bool:
    return x.dtype in _INTEGERS


def _is_half(x: mx.array) -> bool:
    return x.dtype in (mx.float16, mx.bfloat16)


def in_float32(function):
    """Compute half-precision inputs in float32 and round once, as torch's CPU kernels do."""

    @functools.wraps(function)
    def wrapped(input, *args, **kwargs):
        if not _is_half(input):
            return function(input, *args, **kwargs)
        wide = [a.astype(mx.float32) if isinstance(a, mx.array) else a for a in (input, *args)]
        kwargs = {
            k: a.astype(mx.float32) if isinstance(a, mx.array) else a for k, a in kwargs.items()
        }
        return function(*wide, **kwargs).astype(input.dtype)

    return wrapped


# ---- arithmetic


@arithmetic()
def add(input, other, *, alpha=1):
    """input + alpha * other. torch.add."""
    return input + other if alpha == 1 else _scaled(input, other, alpha)


def _no_bools(*operands) -> None:
    """Subtraction is refused for bool operands, of whatever dtype the other one is."""
    kinds = [x.dtype is dtypes.bool_ if isinstance(x, Tensor) else x is True or x is False
             for x in operands]  # fmt: skip
    if all(kinds):
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or "
            "`logical_xor()` operator instead."
        )
    if any(kinds):
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying "
            "to invert a mask, use the `~` or `logical_not()` operator instead."
        )


@op("_sub", at=(), promote="input other", opmath=True, pointwise=True)
def _sub(input, other, alpha=1):
    return input - other if alpha == 1 else _scaled(input, other, -alpha)


@composite(aliases=("subtract",), inplace=True)
def sub(input, other, *, alpha=1, out=None):
    """input - alpha * other; not for bool, as in torch. torch.sub."""
    _no_bools(input, other)
    return _sub(input, other, alpha, out=out)


def _scaled(input, other, alpha):
    if _is_integer(input) and isinstance(alpha, float):
        raise RuntimeError(
            "For integral input tensors, argument alpha must not be a floating point number."
        )
    if _is_half(input):
        wide = input.astype(mx.float32) + other.astype(mx.float32) * alpha
        return wide.astype(input.dtype)
    return input + other * mx.array(alpha, input.dtype)


@composite()
def rsub(input, other, *, alpha=1):
    """other - alpha * input. torch.rsub."""
    _no_bools(input, other)
    return _sub(other, input, alpha)


@arithmetic(aliases=("multiply",))
def mul(input, other):
    """Product; logical and for bool. torch.mul."""
    return mx.logical_and(input, other) if input.dtype == mx.bool_ else input * other


def _true_divide(input, other):
    if _is_integer(input):
        input, other = input.astype(mx.float32), other.astype(mx.float32)
    return input / other


def _no_zero_divisor(other) -> None:
    """Integer division by zero is an error in torch; MLX would answer 0."""
    if _is_integer(other) and other.size and bool(mx.any(other == 0).item()):
        raise RuntimeError("ZeroDivisionError")


def _floor_quotient(input, other):
    if _is_integer(input):
        _no_zero_divisor(other)
        if other.dtype not in (mx.int32, mx.int64):
            return input // other
        # The least integer divided by -1 overflows: a trap of the processor, which ends the process.
        minus = other == -1
        return mx.where(minus, -input, input // mx.where(minus, mx.array(1, other.dtype), other))
    return in_float32(lambda x, y: mx.floor(x / y))(input, other)


@arithmetic(aliases=("divide",))
def div(input, other, *, rounding_mode=None):
    """Quotient; rounding_mode None (true division), "floor" or "trunc". torch.div."""
    if rounding_mode is None:
        return _true_divide(input, other)
    if rounding_mode == "floor":
        return _floor_quotient(input, other)
    if rounding_mode != "trunc":
        raise RuntimeError(
            "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found "
            f"'{rounding_mode}'"
        )
    return _trunc_quotient(input, other)


def _trunc_quotient(input, other):
    if not _is_integer(input):
        return mx.trunc(input / other)
    floor = _floor_quotient(input, other)
    return floor + ((floor < 0) & (floor * other != input)).astype(input.dtype)


@arithmetic()
def true_divide(input, other):
    """Quotient as a floating point number. torch.true_divide."""
    return _true_divide(input, other)


@binary()
def floor_divide(input, other):
    """Quotient rounded towards minus infinity. torch.floor_divide."""
    return _floor_quotient(input, other)


@binary()
def remainder(input, other):
    """Python's modulus: the sign of the divisor. torch.remainder."""
    if _is_integer(input):
        return input - _floor_quotient(input, other) * other
    left = _fmod(input, other)
    return mx.where((left != 0) & ((left < 0) != (other < 0)), left + other, left)


def _fmod(input, other):
    if _is_integer(input):
        return input - _trunc_quotient(input, other) * other
    magnitude = mx.remainder(mx.abs(input), mx.abs(other))
    magnitude = mx.where(mx.isinf(other) & mx.isfinite(input), mx.abs(input), magnitude)
    result = mx.where(input < 0, -magnitude, magnitude)
    return mx.where(mx.isinf(input) | (other == 0), mx.array(math.nan, input.dtype), result)


@binary()
def fmod(input, other):
    """C's modulus: the sign of the dividend. torch.fmod."""
    return _fmod(input, other)


@op(promote="input exponent", inplace=True, opmath=True)
def pow(input, exponent):
    """input ** exponent. Negative integer powers of integers are an error. torch.pow."""
    if _is_integer(input):
        return _integer_power(input, exponent)
    return in_float32(mx.power)(input, exponent)


def _integer_power(base, exponent):
    if base.dtype == mx.bool_:
        base, exponent = base.astype(mx.int64), exponent.astype(mx.int64)
    if exponent.size and bool(mx.any(exponent < 0).item()):
        if exponent.ndim == 0:
            raise RuntimeError("Integers to negative integer powers are not allowed.")
        magnitude_one = mx.abs(base) == 1
        odd = (exponent % 2) != 0
        reciprocal = mx.where(magnitude_one, mx.where(odd, base, mx.ones_like(base)), 0)
        return mx.where(exponent < 0, reciprocal, mx.power(base, mx.maximum(exponent, 0)))
    return mx.power(base, exponent)


@op(promote="input end weight", inplace=True)
def lerp(input, end, weight):
    """input + weight * (end - input), exact at both ends. torch.lerp."""
    return _lerp(input, end, weight)


@in_float32
def _lerp(start, end, weight):
    near = start + weight * (end - start)
    return mx.where(mx.abs(weight) < 0.5, near, end - (end - start) * (1 - weight))


@op(promote="input tensor1 tensor2", inplace=True)
def addcmul(input, tensor1, tensor2, *, value=1):
    """input + value * tensor1 * tensor2. torch.addcmul."""
    return in_float32(lambda a, b, c: a + _times(b, value) * c)(input, tensor1, tensor2)


@op(promote="input tensor1 tensor2", inplace=True)
def addcdiv(input, tensor1, tensor2, *, value=1):
    """input + value * tensor1 / tensor2; floating point only. torch.addcdiv."""
    if _is_integer(input):
        raise RuntimeError(
            "Integer division with addcdiv is no longer supported, and in a future release addcdiv "
            "will perform a true division of tensor1 and tensor2."
        )
    return in_float32(lambda a, b, c: a + _times(b, value) / c)(input, tensor1, tensor2)


def _times(x, value):
    return x if value == 1 else x * mx.array(value, x.dtype)


@unary(aliases=("negative",))
def neg(input):
    """-input; not for bool. torch.neg."""
    if input.dtype == mx.bool_:
        raise RuntimeError(
            "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to "
            "invert a mask, use the `~` or `logical_not()` operator instead."
        )
    return -input


@op(promote="input", inplace=True, aliases=("absolute",))
def abs(input):
    """Magnitude; a real number for complex input. torch.abs."""
    return mx.abs(input)


@unary()
def sign(input):
    """-1, 0 or 1. torch.sign."""
    return mx.sign(input)


@unary()
def positive(input):
    """The input itself; not for bool. torch.positive."""
    if input.dtype == mx.bool_:
        raise RuntimeError("The `+` operator, on a bool tensor is not supported.")
    return input


def _not_complex(input, name: str) -> None:
    if input.dtype == mx.complex64:
        raise NotImplementedError(f"{name} is not supported for complex types")


def _clamp_bounds(input, min, max):
    _not_complex(input, "clamp")
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    if min is not None:
        input = mx.maximum(input, min)
    return input if max is None else mx.minimum(input, max)


@op(promote="input min max", inplace=True, aliases=("clip",))
def clamp(input, min=None, max=None):
    """Elements limited to [min, max]; NaN stays NaN. torch.clamp."""
    return _clamp_bounds(input, min, max)


@op(promote="input min", inplace=True)
def clamp_min(input, min):
    """Elements at least `min`. torch.clamp_min."""
    return mx.maximum(input, min)


@op(promote="input max", inplace=True)
def clamp_max(input, max):
    """Elements at most `max`. torch.clamp_max."""
    return mx.minimum(input, max)


@op(promote="input other", pointwise=True)
def maximum(input, other):
    """The larger element; NaN if either is. torch.maximum."""
    return mx.maximum(input, other)


@op(promote="input other", pointwise=True)
def minimum(input, other):
    """The smaller element; NaN if either is. torch.minimum."""
    return mx.minimum(input, other)


@op(promote="input other", pointwise=True)
def fmax(input, other):
    """The larger element, the other one where one is NaN. torch.fmax."""
    if _is_integer(input):
        return mx.maximum(input, other)
    return mx.where(
        mx.isnan(input), other, mx.where(mx.isnan(other), input, mx.maximum(input, other))
    )


@op(promote="input other", pointwise=True)
def fmin(input, other):
    """The smaller element, the other one where one is NaN. torch.fmin."""
    if _is_integer(input):
        return mx.minimum(input, other)
    return mx.where(
        mx.isnan(input), other, mx.where(mx.isnan(other), input, mx.minimum(input, other))
    )


def _rounding(name, function):
    @unary(name)
    def rounding(input):
        return input if _is_integer(input) else function(input)

    rounding.__doc__ = f"torch.{name}: integers are returned unchanged."


for _name, _function in (("floor", mx.floor), ("ceil", mx.ceil), ("trunc", mx.trunc)):
    _rounding(_name, _function)


@unary()
def round(input, *, decimals=0):
    """Nearest integer, ties to even, at `decimals` decimal places. torch.round."""
    if _is_integer(input):
        return input
    if decimals == 0:
        return mx.round(input)
    scale = 10.0 ** builtins.abs(decimals)
    if decimals > 0:
        return in_float32(lambda x: mx.round(x * scale) / scale)(input)
    return in_float32(lambda x: mx.round(x / scale) * scale)(input)


@to_float()
def frac(input):
    """The fractional part, with the input's sign. torch.frac."""
    return input - mx.trunc(input)


# ---- comparison and logic


def _comparison(name, function, *aliases):
    @op(name, promote="input other", pointwise=True, aliases=aliases)
    def compare(input, other):
        return function(input, other)

    compare.__doc__ = f"Elementwise comparison, a bool tensor. torch.{name}."


for _name, _function, *_aliases in (
    ("eq", mx.equal),
    ("ne", mx.not_equal, "not_equal"),
    ("lt", mx.less, "less"),
    ("le", mx.less_equal, "less_equal"),
    ("gt", mx.greater, "greater"),
    ("ge", mx.greater_equal, "greater_equal"),
):
    _comparison(_name, _function, *_aliases)


def _logical(name, function):
    @op(name, pointwise=True)
    def logical(input, other):
        return function(input, other)

    logical.__doc__ = f"Elementwise, a bool tensor; nonzero is true. torch.{name}."


_logical("logical_and", mx.logical_and)
_logical("logical_or", mx.logical_or)
_logical("logical_xor", lambda a, b: (a != 0) != (b != 0))


@op(pointwise=True)
def logical_not(input):
    """True where the input is zero. torch.logical_not."""
    return mx.logical_not(input)


def _bitwise(name, on_bool, on_integers):
    @binary(name)
    def bitwise(input, other):
        if not _is_integer(input):
            raise NotImplementedError(f"\"{name}_cpu\" not implemented for '{_torch_name(input)}'")
        return on_bool(input, other) if input.dtype == mx.bool_ else on_integers(input, other)

    bitwise.__doc__ = f"torch.{name}: integers and bool."


def _torch_name(x: mx.array) -> str:
    return dtypes.from_mx(x.dtype).torch_name


_bitwise("bitwise_and", mx.logical_and, mx.bitwise_and)
_bitwise("bitwise_or", mx.logical_or, mx.bitwise_or)
_bitwise("bitwise_xor", mx.not_equal, mx.bitwise_xor)


@binary(aliases=("__lshift__",))
def bitwise_left_shift(input, other):
    """input << other. torch.bitwise_left_shift."""
    return mx.left_shift(input, other)


@binary(aliases=("__rshift__",))
def bitwise_right_shift(input, other):
    """input >> other, arithmetic. torch.bitwise_right_shift."""
    return mx.right_shift(input, other)


@unary()
def bitwise_not(input):
    """~input; logical not for bool. torch.bitwise_not."""
    if not _is_integer(input):
        raise NotImplementedError(f"\"bitwise_not_cpu\" not implemented for '{_torch_name(input)}'")
    return mx.logical_not(input) if input.dtype == mx.bool_ else mx.bitwise_invert(input)


def _predicate(name, on_floats, on_integers):
    @op(name, pointwise=True)
    def predicate(input):
        return mx.full(input.shape, on_integers) if _is_integer(input) else on_floats(input)

    predicate.__doc__ = f"Elementwise test, a bool tensor. torch.{name}."


_predicate("isnan", mx.isnan, False)
_predicate("isinf", mx.isinf, False)
_predicate("isfinite", mx.isfinite, True)
_predicate("isposinf", mx.isposinf, False)
_predicate("isneginf", mx.isneginf, False)


@op(promote="input other", pointwise=True)
def isclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """|input - other| <= atol + rtol * |other|. torch.isclose."""
    if _is_integer(input):
        input, other = input.astype(mx.float64), other.astype(mx.float64)
    return mx.isclose(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan)


@op("_select", at=(), promote="input other", pointwise=True)
def _select(condition, input, other):
    return mx.where(condition, input, other)


@composite()
def where(condition, input=None, other=None):
    """`input` where `condition` holds, else `other`; with the condition alone, its nonzero indices.

    torch.where.
    """
    if input is None:
        return condition.nonzero(as_tuple=True)
    return _select(condition, input, other)


# ---- transcendental: integers become floats


def _elementary(name, function, *aliases, wide=True):
    @to_float(name, aliases=aliases)
    def elementary(input):
        return in_float32(function)(input) if wide else function(input)

    elementary.__doc__ = (
        f"Elementwise {name}; integers become the default float dtype. torch.{name}."
    )


for _name, _function, *_aliases in (
    ("exp", mx.exp), ("expm1", mx.expm1), ("log", mx.log), ("log2", mx.log2), ("log10", mx.log10),
    ("log1p", mx.log1p), ("sqrt", mx.sqrt), ("rsqrt", mx.rsqrt), ("sin", mx.sin), ("cos", mx.cos),
    ("tan", mx.tan), ("sinh", mx.sinh), ("cosh", mx.cosh), ("tanh", mx.tanh),
    ("asin", mx.arcsin, "arcsin"), ("acos", mx.arccos, "arccos"), ("atan", mx.arctan, "arctan"),
    ("asinh", mx.arcsinh, "arcsinh"), ("acosh", mx.arccosh, "arccosh"),
    ("atanh", mx.arctanh, "arctanh"), ("sigmoid", mx.sigmoid), ("erf", mx.erf),
    ("reciprocal", mx.reciprocal),
):  # fmt: skip
    _elementary(_name, _function, *_aliases)
