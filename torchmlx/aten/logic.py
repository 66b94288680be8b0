"""Elementwise comparison, logic, bits and tests, and `where`."""

from __future__ import annotations

import mlx.core as mx

from ..core import dtype as dtypes
from ..core.op import checked_number, composite, op, result_type
from .pointwise import binary, is_integer, not_complex, unary


def _comparison(name, function, *aliases):
    @op(name, promote="input other", inplace=True, aliases=aliases)
    def compare(input, other):
        if name not in ("eq", "ne"):
            not_complex(input, name)
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
    @op(name, inplace=True)
    def logical(input, other):
        return function(input, other)

    logical.__doc__ = f"Elementwise, a bool tensor; nonzero is true. torch.{name}."


_logical("logical_and", mx.logical_and)
_logical("logical_or", mx.logical_or)
_logical("logical_xor", lambda a, b: (a != 0) != (b != 0))


@op(inplace=True)
def logical_not(input):
    """True where the input is zero. torch.logical_not."""
    return mx.logical_not(input)


def _bitwise(name, on_bool, on_integers):
    @binary(name)
    def bitwise(input, other):
        if not is_integer(input):
            raise NotImplementedError(f"\"{name}_cpu\" not implemented for '{_torch_name(input)}'")
        return on_bool(input, other) if input.dtype == mx.bool_ else on_integers(input, other)

    bitwise.__doc__ = f"torch.{name}: integers and bool."


def _torch_name(x: mx.array) -> str:
    return dtypes.from_mx(x.dtype).torch_name


_bitwise("bitwise_and", mx.logical_and, mx.bitwise_and)
_bitwise("bitwise_or", mx.logical_or, mx.bitwise_or)
_bitwise("bitwise_xor", mx.not_equal, mx.bitwise_xor)


def _shift(name: str, function):
    @binary(name)
    def shift(input, other):
        if not is_integer(input) or input.dtype == mx.bool_:
            raise NotImplementedError(f"\"{name}_cpu\" not implemented for '{_torch_name(input)}'")
        bits = 8 * input.itemsize
        return function(input, other, (other >= 0) & (other < bits))

    shift.__doc__ = f"torch.{name}: integers; shifting by all the bits or more leaves the sign."


def _right_shift(x, n, inside):
    shifted = mx.right_shift(x, mx.where(inside, n, mx.zeros_like(n)))
    return mx.where(inside, shifted, -(x < 0).astype(x.dtype))


_shift(
    "bitwise_left_shift",
    lambda x, n, inside: mx.where(
        inside, mx.left_shift(x, mx.where(inside, n, mx.zeros_like(n))), mx.zeros_like(x)
    ),
)
_shift("bitwise_right_shift", _right_shift)


@unary()
def bitwise_not(input):
    """~input; logical not for bool. torch.bitwise_not."""
    if not is_integer(input):
        raise NotImplementedError(f"\"bitwise_not_cpu\" not implemented for '{_torch_name(input)}'")
    return mx.logical_not(input) if input.dtype == mx.bool_ else mx.bitwise_invert(input)


def _predicate(name, on_floats, on_integers):
    @op(name, pointwise=True)
    def predicate(input):
        return mx.full(input.shape, on_integers) if is_integer(input) else on_floats(input)

    predicate.__doc__ = f"Elementwise test, a bool tensor. torch.{name}."


_predicate("isnan", mx.isnan, False)
_predicate("isinf", mx.isinf, False)
_predicate("isfinite", mx.isfinite, True)
_predicate("isposinf", mx.isposinf, False)
_predicate("isneginf", mx.isneginf, False)


@op("_isclose", at=(), pointwise=True)
def _isclose(input, other, rtol, atol, equal_nan):
    close = input == other
    if equal_nan and not is_integer(input):
        close = close | (mx.isnan(input) & mx.isnan(other))
    if rtol == atol == 0:  # exact, where differences of large integers round to nothing
        return close
    if is_integer(input):
        input, other = input.astype(mx.float32), other.astype(mx.float32)
    allowed = mx.abs(other * mx.array(rtol, other.dtype)) + atol
    error = mx.abs(input - other)
    return close | (mx.isfinite(error) & (error <= allowed))


@composite()
def isclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """|input - other| <= atol + rtol * |other|, of one dtype. torch.isclose."""
    if input.dtype is not other.dtype:
        raise RuntimeError(f"{input.dtype.torch_name} did not match {other.dtype.torch_name}")
    for name, limit in (("rtol", rtol), ("atol", atol)):
        if limit < 0:
            raise RuntimeError(f"{name} must be greater than or equal to zero, but got {limit}")
    return _isclose(input, other, rtol, atol, equal_nan)


@op("_select", at=(), promote="input other", pointwise=True)
def _select(condition, input, other):
    return mx.where(condition, input, other)


@composite(at=("torch",))
def where(condition, input=None, other=None):
    """`input` where `condition` holds, else `other`; with the condition alone, its nonzero indices.

    torch.where.
    """
    if input is None:
        return condition.nonzero(as_tuple=True)
    for number in (input, other):
        if isinstance(number, int) and result_type(input, other).category == dtypes.INTEGER:
            checked_number(number, result_type(input, other))  # it does not wrap around here
    return _select(condition, input, other)


@composite("Tensor.where", at=("Tensor",))
def _where(self, condition, other):
    """Its elements where `condition` holds, else `other`. Tensor.where."""
    return _select(condition, self, other)
