"""Complex numbers: conjugates, angles, signs, and questions about them.

Views of them are in shape.py.
"""

from __future__ import annotations

import math

import mlx.core as mx

from ..core.op import composite, op, view
from ._calling import is_float, to_float, wide


def _is_complex(x: mx.array) -> bool:
    return x.dtype == mx.complex64


@op("conj_physical", inplace=True, pointwise=True)
def conj_physical(input):
    """The complex conjugate; real numbers unchanged. torch.conj_physical."""
    return mx.conj(input) if _is_complex(input) else input


@view()
def conj(input):
    """The complex conjugate (a copy; torch's is a lazy view); real tensors are returned.

    torch.conj.
    """
    return conj_physical(input) if input.dtype.is_complex else input


@view(at=("Tensor", "torch"))
def adjoint(input):
    """The last two dimensions exchanged, conjugated. torch.adjoint."""
    return conj(input.transpose(-2, -1))


@view(aliases=("resolve_neg",))
def resolve_conj(input):
    """The tensor: conjugation is never pending here. torch.resolve_conj."""
    return input


@composite(aliases=("is_neg",))
def is_conj(input):
    """Whether a conjugation is pending: never. torch.is_conj."""
    return False


@op(pointwise=True)
def angle(input):
    """The argument of a complex number; 0 or pi of a real one. torch.angle."""
    if _is_complex(input):
        return mx.arctan2(mx.imag(input), mx.real(input))
    x = to_float(input)
    return mx.where(
        mx.isnan(x), x, mx.where(x < 0, mx.array(math.pi, x.dtype), mx.zeros((), x.dtype))
    )


@op(inplace=True, pointwise=True)
def sgn(input):
    """x / |x|, 0 at 0; the sign of a real number. torch.sgn."""
    if not _is_complex(input):
        return mx.sign(input)
    size = mx.abs(input)
    return mx.where(size == 0, mx.zeros((), input.dtype), input / mx.where(size == 0, 1.0, size))


@op(pointwise=True)
def isreal(input):
    """Whether the imaginary part is zero. torch.isreal."""
    return mx.imag(input) == 0 if _is_complex(input) else mx.ones(input.shape, mx.bool_)


@op(inplace=True, pointwise=True)
def nan_to_num(input, nan=0.0, posinf=None, neginf=None):
    """NaN and infinities replaced, by default by 0 and the largest finite numbers.

    torch.nan_to_num.
    """
    if not is_float(input):
        return input
    if _is_complex(input):
        parts = (_finite(f(input), nan, posinf, neginf) for f in (mx.real, mx.imag))
        real, imag = parts
        return real + 1j * imag
    return _finite(input, nan, posinf, neginf)


def _finite(x: mx.array, nan, posinf, neginf) -> mx.array:
    limits = mx.finfo(x.dtype)

    def number(value, default):
        return mx.array(default if value is None else value, x.dtype)

    x = mx.where(mx.isnan(x), number(nan, 0.0), x)
    x = mx.where(x == math.inf, number(posinf, limits.max), x)
    return mx.where(x == -math.inf, number(neginf, limits.min), x)


@composite()
def allclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Whether all elements are close, as a bool. torch.allclose."""
    if input.dtype is not other.dtype:
        raise RuntimeError(f"{_lower(input)} did not match {_lower(other)}")
    return bool(input.isclose(other, rtol, atol, equal_nan).all())


def _lower(x) -> str:
    names = {"float32": "Float", "float64": "Double", "int64": "Long"}
    return names.get(x.dtype.name, x.dtype.torch_name)


@composite()
def equal(input, other):
    """Whether shapes and all elements are equal, as a bool. torch.equal."""
    if input.shape != other.shape:
        return False
    return bool((input == other).all())


@op(promote="input other", pointwise=True, inplace=True)
def ldexp(input, other):
    """input * 2 ** other. torch.ldexp."""
    x, power = to_float(input), to_float(other)
    return (wide(x) * mx.power(mx.array(2.0, wide(power).dtype), wide(power))).astype(x.dtype)
