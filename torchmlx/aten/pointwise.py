"""Elementwise arithmetic, and the helpers that elementwise operations share."""

from __future__ import annotations

import builtins
import functools
import math

import mlx.core as mx

from ..core import dtype as dtypes
from ..core.op import checked_number, composite, op, result_type
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


_UNSIGNED = (mx.uint8, mx.uint16, mx.uint32, mx.uint64)


def is_integer(x: mx.array) -> bool:
    return x.dtype in _INTEGERS


HALF = (mx.float16, mx.bfloat16)


def _is_half(x: mx.array) -> bool:
    return x.dtype in HALF


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


@binary()
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


@op("_sub", at=(), promote="input other", pointwise=True)
def _sub(input, other, alpha=1):
    return input - other if alpha == 1 else _scaled(input, other, -alpha)


@composite(aliases=("subtract",), inplace=True)
def sub(input, other, *, alpha=1):
    """input - alpha * other; not for bool, as in torch. torch.sub."""
    _no_bools(input, other)
    return _sub(input, other, alpha)


def _scaled(input, other, alpha):
    if is_integer(input) and isinstance(alpha, float):
        raise RuntimeError(
            "For integral input tensors, argument alpha must not be a floating point number."
        )
    return in_float32(lambda x, y: x + y * mx.array(alpha, x.dtype))(input, other)


@composite()
def rsub(input, other, *, alpha=1):
    """other - alpha * input. torch.rsub."""
    _no_bools(input, other)
    return _sub(other, input, alpha)


@arithmetic(aliases=("multiply",))
def mul(input, other):
    """Product; logical and for bool. torch.mul."""
    return mx.logical_and(input, other) if input.dtype == mx.bool_ else input * other


def _no_zero_divisor(other) -> None:
    """Integer division by zero is an error in torch; MLX would answer 0."""
    if other.size and bool(mx.any(other == 0).item()):
        raise RuntimeError("ZeroDivisionError")


def _floor_quotient(input, other):
    if not is_integer(input):
        not_complex(input, "div_floor")
        return in_float32(_floored)(input, other)
    not_bool(input, "div_floor")
    _no_zero_divisor(other)
    if other.dtype not in (mx.int32, mx.int64):
        return input // other
    # The least integer divided by -1 overflows: a trap of the processor, which ends the process.
    minus = other == -1
    return mx.where(minus, -input, input // mx.where(minus, mx.array(1, other.dtype), other))


def _floored(x, y):
    """floor(x / y) by way of the exact remainder, so that it is rounded once (c10::div_floor)."""
    left = _fmod(x, y)
    quotient = (x - left) / y
    quotient = quotient - ((left != 0) & ((y < 0) != (left < 0))).astype(x.dtype)
    floor = mx.floor(quotient)
    floor = floor + (quotient - floor > 0.5).astype(x.dtype)
    floor = mx.where(quotient != 0, floor, with_sign(mx.zeros_like(quotient), x / y))
    return mx.where(y == 0, x / y, floor)


def _trunc_quotient(input, other):
    if not is_integer(input):
        not_complex(input, "div_trunc")
        return mx.trunc(input / other)
    floor = _floor_quotient(input, other)
    return floor + ((floor < 0) & (floor * other != input)).astype(input.dtype)


@arithmetic(to_float=True)
def true_divide(input, other):
    """Quotient as a floating point number. torch.true_divide."""
    return input / other


@op("_div_rounded", at=(), promote="input other", opmath=True, pointwise=True)
def _div_rounded(input, other, rounding_mode):
    return (_floor_quotient if rounding_mode == "floor" else _trunc_quotient)(input, other)


@composite(aliases=("divide",), inplace=True)
def div(input, other, *, rounding_mode=None):
    """Quotient; rounding_mode None (true division), "floor" or "trunc". torch.div."""
    if rounding_mode is None:
        return true_divide(input, other)
    if rounding_mode not in ("floor", "trunc"):
        raise RuntimeError(
            "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found "
            f"'{rounding_mode}'"
        )
    return _div_rounded(input, other, rounding_mode)


@arithmetic()
def floor_divide(input, other):
    """Quotient rounded towards minus infinity. torch.floor_divide."""
    return _floor_quotient(input, other)


@binary()
def remainder(input, other):
    """Python's modulus: the sign of the divisor. torch.remainder."""
    if is_integer(input):
        return input - _floor_quotient(input, other) * other
    not_complex(input, "remainder")
    left = _fmod(input, other)
    return mx.where((left != 0) & ((left < 0) != (other < 0)), left + other, left)


def _fmod(input, other):
    not_bool(input, "fmod")
    if is_integer(input):
        return input - _trunc_quotient(input, other) * other
    magnitude = mx.remainder(mx.abs(input), mx.abs(other))
    magnitude = mx.where(mx.isinf(other) & mx.isfinite(input), mx.abs(input), magnitude)
    undefined = mx.isinf(input) | (other == 0)
    return mx.where(undefined, mx.array(math.nan, input.dtype), with_sign(magnitude, input))


@binary()
def fmod(input, other):
    """C's modulus: the sign of the dividend. torch.fmod."""
    not_complex(input, "fmod")
    return _fmod(input, other)


BITS = {2: mx.int16, 4: mx.int32, 8: mx.int64}


def is_negative(x):
    """Whether the sign is set, of -0.0 and NaN too."""
    return x < 0 if is_integer(x) else mx.view(x, BITS[x.itemsize]) < 0


def with_sign(magnitude, x):
    """`magnitude` (not negative) with the sign of x."""
    return mx.where(is_negative(x), -magnitude, magnitude)


@op("_pow", at=(), promote="input exponent", pointwise=True)
def _pow(input, exponent):
    if is_integer(input):
        return _integer_power(input, exponent)
    return in_float32(mx.power)(input, exponent)


@composite(inplace=True)
def pow(input, exponent):
    """input ** exponent. Negative integer powers of integers are an error. torch.pow."""
    if not isinstance(exponent, Tensor):
        if _is_integral(input) and isinstance(exponent, int) and exponent < 0:
            raise RuntimeError("Integers to negative integer powers are not allowed.")
        checked_number(exponent, result_type(input, exponent))
        if exponent == 0.5 and input.dtype in (dtypes.float32, dtypes.float64, dtypes.bfloat16):
            return input.sqrt()
    return _pow(input, exponent)


def _is_integral(x) -> bool:
    return isinstance(x, Tensor) and x.dtype.category < dtypes.FLOAT


def _integer_power(base, exponent):
    """Powers that wrap around; a negative exponent leaves 1 and -1, and 0 otherwise."""
    if base.dtype == mx.bool_:
        return base | ~exponent
    if base.dtype in _UNSIGNED:
        return mx.power(base, exponent)
    odd = (exponent & 1) != 0
    unit = mx.where(odd, base, mx.ones_like(base))
    reciprocal = mx.where(mx.abs(base) == 1, unit, mx.zeros_like(base))
    power = mx.power(base, mx.maximum(exponent, mx.array(0, exponent.dtype)))
    return mx.where(exponent < 0, reciprocal, power)


@op("_lerp", at=(), promote="input end weight", opmath=True, pointwise=True)
@in_float32
def _lerp(input, end, weight):
    difference = end - input
    near = input + weight * difference
    return mx.where(mx.abs(weight) < 0.5, near, end - difference * (1 - weight))


@composite(inplace=True)
def lerp(input, end, weight):
    """input + weight * (end - input), exact at both ends; one dtype. torch.lerp."""
    for name, other in (("end", end), ("weight", weight)):
        if isinstance(other, Tensor) and other.dtype is not input.dtype:
            raise RuntimeError(
                f"expected dtype {input.dtype} for `{name}` but got dtype {other.dtype}"
            )
    if input.dtype.category < dtypes.FLOAT:
        raise NotImplementedError(
            f"\"lerp_kernel_scalar\" not implemented for '{input.dtype.torch_name}'"
        )
    return _lerp(input, end, weight)


@op(promote="input tensor1 tensor2", inplace=True, tensors=True)
def addcmul(input, tensor1, tensor2, *, value=1):
    """input + value * tensor1 * tensor2. torch.addcmul."""
    not_bool(input, "addcmul")
    return in_float32(lambda a, b, c: a + _times(b, value) * c)(input, tensor1, tensor2)


@op("_addcdiv", at=(), promote="input tensor1 tensor2", pointwise=True)
def _addcdiv(input, tensor1, tensor2, value=1):
    return in_float32(lambda a, b, c: a + _times(b, value) / c)(input, tensor1, tensor2)


@composite(inplace=True)
def addcdiv(input, tensor1, tensor2, *, value=1):
    """input + value * tensor1 / tensor2; floating point only. torch.addcdiv."""
    if all(t.dtype.category < dtypes.FLOAT for t in (tensor1, tensor2)):
        raise RuntimeError(
            "Integer division with addcdiv is no longer supported, and in a future  release "
            "addcdiv will perform a true division of tensor1 and tensor2."
        )
    return _addcdiv(input, tensor1, tensor2, value)


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
    not_bool(input, "abs")
    return mx.abs(input)


@unary()
def sign(input):
    """-1, 0 or 1; not for complex numbers (torch.sgn). torch.sign."""
    not_complex(input, "sign")
    return mx.sign(input)


@unary()
def positive(input):
    """The input itself; not for bool. torch.positive."""
    if input.dtype == mx.bool_:
        raise RuntimeError("The `+` operator, on a bool tensor is not supported.")
    return input


def not_complex(input, name: str) -> None:
    if input.dtype == mx.complex64:
        raise NotImplementedError(f"\"{name}_cpu\" not implemented for 'ComplexFloat'")


def not_bool(input, name: str) -> None:
    """torch's error of operations that have no bool variant."""
    if input.dtype == mx.bool_:
        raise NotImplementedError(f"\"{name}_cpu\" not implemented for 'Bool'")


def _clamp_bounds(input, min, max):
    not_complex(input, "clamp")
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    if min is not None:
        input = mx.maximum(input, min)
    return input if max is None else mx.minimum(input, max)


@op(promote="input min max", inplace=True, fits=True, aliases=("clip",))
def clamp(input, min=None, max=None):
    """Elements limited to [min, max]; NaN stays NaN. torch.clamp."""
    return _clamp_bounds(input, min, max)


@op(promote="input min", inplace=True, fits=True)
def clamp_min(input, min):
    """Elements at least `min`. torch.clamp_min."""
    return _clamp_bounds(input, min, None)


@op(promote="input max", inplace=True, fits=True)
def clamp_max(input, max):
    """Elements at most `max`. torch.clamp_max."""
    return _clamp_bounds(input, None, max)


def _no_complex_order(input, name: str) -> None:
    if input.dtype == mx.complex64:
        raise RuntimeError(f"{name} not implemented for complex tensors.")


@op(promote="input other", pointwise=True, tensors=True)
def maximum(input, other):
    """The larger element; NaN if either is. torch.maximum."""
    _no_complex_order(input, "maximum")
    return mx.maximum(input, other)


@op(promote="input other", pointwise=True, tensors=True)
def minimum(input, other):
    """The smaller element; NaN if either is. torch.minimum."""
    _no_complex_order(input, "minimum")
    return mx.minimum(input, other)


@op(promote="input other", pointwise=True, tensors=True)
def fmax(input, other):
    """The larger element, the other one where one is NaN. torch.fmax."""
    _no_complex_order(input, "fmax")
    if is_integer(input):
        return mx.maximum(input, other)
    return mx.where(
        mx.isnan(input), other, mx.where(mx.isnan(other), input, mx.maximum(input, other))
    )


@op(promote="input other", pointwise=True, tensors=True)
def fmin(input, other):
    """The smaller element, the other one where one is NaN. torch.fmin."""
    _no_complex_order(input, "fmin")
    if is_integer(input):
        return mx.minimum(input, other)
    return mx.where(
        mx.isnan(input), other, mx.where(mx.isnan(other), input, mx.minimum(input, other))
    )


def _rounding(name, function):
    @unary(name)
    def rounding(input):
        not_bool(input, name)
        not_complex(input, name)
        return input if is_integer(input) else function(input)

    rounding.__doc__ = f"torch.{name}: integers are returned unchanged."


for _name, _function in (("floor", mx.floor), ("ceil", mx.ceil), ("trunc", mx.trunc)):
    _rounding(_name, _function)


@unary()
def round(input, *, decimals=0):
    """Nearest integer, ties to even, at `decimals` decimal places. torch.round."""
    not_bool(input, "round")
    not_complex(input, "round")
    if is_integer(input):
        return input
    if decimals == 0:
        return mx.round(input)
    scale = 10.0 ** builtins.abs(decimals)
    if decimals > 0:
        return in_float32(lambda x: mx.round(x * scale) / scale)(input)
    return in_float32(lambda x: mx.round(x / scale) * scale)(input)


@unary()
def frac(input):
    """The fractional part, with the input's sign. torch.frac."""
    if is_integer(input):
        name = dtypes.from_mx(input.dtype).torch_name
        raise NotImplementedError(f"\"frac_cpu\" not implemented for '{name}'")
    not_complex(input, "frac")
    return input - mx.trunc(input)
