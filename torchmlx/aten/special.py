"""Special functions that MLX lacks, in float64 on the host, and torch.special's names for common
ones.
"""

from __future__ import annotations

import math
from functools import partial

import mlx.core as mx
import numpy as np

from .. import return_types
from ..core.op import TABLE, composite, op
from ._calling import host, host_function, is_float, to_float, torch_name
from .pointwise import HALF

everywhere = ("torch", "Tensor", "special")


def _in_float64(name: str, *slopes):
    """slopes[0] of float64 NumPy values on the host, rounded to the input's dtype; the others are
    its derivatives. Integers become floats.
    """

    def compute(values):
        with np.errstate(all="ignore"):
            return np.asarray(slopes[0](values.astype(np.float64)), np.float64)

    def gradient(primals, cotangent, output):
        slope = _in_float64(name, *slopes[1:])(primals[0])
        return cotangent * slope.astype(cotangent.dtype)

    computed = host_function(name, compute, gradient if len(slopes) > 1 else None)

    def rounded(x: mx.array) -> mx.array:
        x = to_float(x)
        return computed(x).astype(x.dtype)

    return rounded


def elementwise(function):
    """A function of math as a function of float64 arrays."""
    applied = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(applied(x), np.float64)


def register(name: str, *slopes, at=everywhere, aliases=(), half=True):
    """torch.NAME of one tensor: slopes[0], with its derivatives. The function is given back."""
    computed = _in_float64(name, *slopes)

    @op(name, at=at, pointwise=True, inplace="Tensor" in at)
    def special(input):
        if input.dtype == mx.complex64 or (input.dtype in HALF and not half):
            raise NotImplementedError(f"\"{name}\" not implemented for '{torch_name(input)}'")
        return computed(input)

    special.__doc__ = f"Elementwise {name}, in float64 on the host. torch.special.{name}."
    for alias in aliases:
        composite("special." + alias, at=("special",))(special)
    return special


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    return x if x != x else math.lgamma(x)


def digamma(x: np.ndarray) -> np.ndarray:
    """psi(x): reflection below 0, recurrence up to 10, then the asymptotic series (DLMF 5.11.2)."""
    x = np.asarray(x, np.float64)
    reflect = x < 0
    pole = reflect & (x == np.floor(x))
    y = np.where(reflect, 1.0 - x, x)
    shift = np.zeros_like(y)
    for _ in range(10):
        low = y < 10
        shift = np.where(low, shift - 1.0 / y, shift)
        y = np.where(low, y + 1.0, y)
    s = 1.0 / (y * y)
    series = s * (1 / 12 - s * (1 / 120 - s * (1 / 252 - s * (1 / 240 - s * (1 / 132)))))
    value = shift + np.log(y) - 0.5 / y - series
    value = np.where(reflect, value - np.pi / np.tan(np.pi * (x - np.floor(x))), value)
    value = np.where(x == 0, np.copysign(np.inf, -x), value)
    return np.where(pole, np.nan, value)


_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)


def hurwitz_zeta(s: float, q: np.ndarray) -> np.ndarray:
    """sum over k >= 0 of (k + q) ** -s by Euler and Maclaurin (DLMF 25.11.28); q < 0 for whole s
    only.
    """
    a = np.array(q, np.float64)
    total, infinite = np.zeros_like(a), (a <= 0) & (a == np.floor(a))
    while (low := a <= 12).any():
        total = np.where(low, total + np.where(a == 0, 1.0, a) ** -s, total)
        a = np.where(low, a + 1.0, a)
    total = total + a ** (1 - s) / (s - 1) + 0.5 * a**-s
    factor = s
    for j, b in enumerate(_BERNOULLI, 1):
        total = total + b / math.factorial(2 * j) * factor * a ** -(s + 2 * j - 1)
        factor *= (s + 2 * j - 1) * (s + 2 * j)
    return np.where(infinite, np.inf, total)


def polygamma_of(n: int, x: np.ndarray) -> np.ndarray:
    """The n-th derivative of digamma; trigamma (n = 1) below zero by reflection."""
    if n == 0:
        return digamma(x)
    value = (-1.0) ** (n + 1) * math.factorial(n) * hurwitz_zeta(n + 1, x)
    if n == 1:
        below = np.pi**2 / np.sin(np.pi * x) ** 2 - hurwitz_zeta(2, np.where(x < 0, 1 - x, 1.0))
        value = np.where(x < 0, below, value)
    value = np.where(x == 0, np.inf if n % 2 else -np.inf, value)
    return np.where(np.isinf(x), np.nan, value) if n > 1 else value  # as torch's CPU kernel


def _erfinv(x: np.ndarray) -> np.ndarray:
    """Winitzki's approximation, then Newton steps on erf (erfc in the tails)."""
    a = 0.147
    log = np.log1p(-x * x)
    half = 2 / (np.pi * a) + log / 2
    y = np.sign(x) * np.sqrt(np.sqrt(half * half - log / a) - half)
    for _ in range(4):
        error = np.where(
            np.abs(x) < 0.5,
            elementwise(math.erf)(y) - x,
            np.sign(x) * ((1 - np.abs(x)) - elementwise(math.erfc)(np.abs(y))),
        )
        step = error / (2 / np.sqrt(np.pi) * np.exp(-y * y))
        y = y - np.where(np.isfinite(step), step, 0.0)
    y = np.where(np.abs(x) == 1, np.copysign(np.inf, x), y)
    return np.where(np.abs(x) > 1, np.nan, np.where(x == 0, x, y))


def erfcx(x: np.ndarray) -> np.ndarray:
    """exp(x^2) erfc(x); beyond 25 by its asymptotic series (DLMF 7.12.1), where erfc is 0."""
    t = 1 / (2 * np.where(x > 25, x, 25.0) ** 2)
    far = (1 - t * (1 - 3 * t * (1 - 5 * t))) / (np.where(x > 25, x, 25.0) * math.sqrt(math.pi))
    near = np.minimum(x, 25.0)
    return np.where(x > 25, far, np.exp(near * near) * elementwise(math.erfc)(near))


def log_ndtr(x: np.ndarray) -> np.ndarray:
    """log of the normal distribution's integral up to x."""
    low = np.minimum(x, -1.0)
    tail = np.log(0.5 * erfcx(-low / math.sqrt(2))) - low * low / 2
    above = np.log1p(-0.5 * elementwise(math.erfc)(np.maximum(x, -1.0) / math.sqrt(2)))
    return np.where(x < -1, tail, above)


def _mills(x: np.ndarray) -> np.ndarray:
    """The slope of log_ndtr: density over integral."""
    return math.sqrt(2 / math.pi) / erfcx(-x / math.sqrt(2))


def _normal(x: np.ndarray) -> np.ndarray:
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def bessel_ie(n: int, x: np.ndarray) -> np.ndarray:
    """exp(-|x|) I_n(x): its integral by the trapezoidal rule (DLMF 10.32.3), below 0.03 its series
    (10.25.2), beyond 500 the asymptotic one (10.40.1).
    """
    size = np.abs(x)
    near, nodes, total = np.minimum(size, 500.0), 128, np.zeros_like(size)
    for k in range(nodes + 1):
        angle = math.pi * k / nodes
        weight = (0.5 if k in (0, nodes) else 1.0) * math.cos(n * angle) / nodes
        total = total + weight * np.exp(near * (math.cos(angle) - 1))
    term, far = np.ones_like(size), np.ones_like(size)
    for k in range(1, 12):
        term = -term * (4 * n * n - (2 * k - 1) ** 2) / (8 * k * np.maximum(size, 500.0))
        far = far + term
    far = far / np.sqrt(2 * math.pi * np.maximum(size, 500.0))
    little = np.minimum(size, 0.03) / 2
    series = sum(
        little ** (n + 2 * k) / math.factorial(k) / math.factorial(k + n) for k in range(4)
    )
    total = np.where(size < 0.03, series * np.exp(-2 * little), total)
    value = np.where(size > 500, far, total)
    return np.where(np.isnan(x), x, np.where(x < 0, (-1) ** n * value, value))


def bessel_i(n: int, x: np.ndarray) -> np.ndarray:
    """I_n(x)."""
    return bessel_ie(n, x) * np.exp(np.abs(x))


_SLOPE = 2 / math.sqrt(math.pi)
register(
    "erfc", elementwise(math.erfc),
    lambda x: -_SLOPE * np.exp(-x * x),
    lambda x: 2 * _SLOPE * x * np.exp(-x * x),
    lambda x: 2 * _SLOPE * (1 - 2 * x * x) * np.exp(-x * x),
)  # fmt: skip
register(
    "erfinv", _erfinv,
    lambda x: np.exp(_erfinv(x) ** 2) / _SLOPE,
    lambda x: 2 * _erfinv(x) * (np.exp(_erfinv(x) ** 2) / _SLOPE) ** 2,
)  # fmt: skip
_GAMMAS = [partial(polygamma_of, n) for n in range(8)]
register("lgamma", elementwise(_lgamma), *_GAMMAS[:4], at=("torch", "Tensor"), aliases=("gammaln",))
register("digamma", *_GAMMAS[:5], aliases=("psi",))
register(
    "i0", partial(bessel_i, 0), partial(bessel_i, 1),
    lambda x: (bessel_i(0, x) + bessel_i(2, x)) / 2,
)  # fmt: skip
register(
    "i0e", partial(bessel_ie, 0),
    lambda x: bessel_ie(1, x) - np.sign(x) * bessel_ie(0, x),
    lambda x: 1.5 * bessel_ie(0, x) + 0.5 * bessel_ie(2, x) - 2 * np.sign(x) * bessel_ie(1, x),
    at=("special",),
)  # fmt: skip
register(
    "i1", partial(bessel_i, 1),
    lambda x: (bessel_i(0, x) + bessel_i(2, x)) / 2,
    lambda x: (3 * bessel_i(1, x) + bessel_i(3, x)) / 4,
    at=("special",),
)  # fmt: skip
register(
    "i1e", partial(bessel_ie, 1),
    lambda x: (bessel_ie(0, x) + bessel_ie(2, x)) / 2 - np.sign(x) * bessel_ie(1, x),
    lambda x: (7 * bessel_ie(1, x) + bessel_ie(3, x)) / 4
    - np.sign(x) * (bessel_ie(0, x) + bessel_ie(2, x)),
    at=("special",),
)  # fmt: skip
register(
    "ndtr", lambda x: 0.5 * elementwise(math.erfc)(-x / math.sqrt(2)),
    _normal, lambda x: -x * _normal(x), lambda x: (x * x - 1) * _normal(x),
    at=("special",),
)  # fmt: skip
register(
    "log_ndtr",
    log_ndtr,
    _mills,
    lambda x: -_mills(x) * (x + _mills(x)),
    at=("special",),
    half=False,
)
register("ndtri", lambda p: math.sqrt(2) * _erfinv(2 * p - 1), at=("special",))
register(
    "erfcx", erfcx,
    lambda x: 2 * x * erfcx(x) - _SLOPE,
    lambda x: (2 + 4 * x * x) * erfcx(x) - 2 * x * _SLOPE,
    at=("special",), half=False,
)  # fmt: skip


@op("_polygamma", at=(), pointwise=True)
def _polygamma(input, n):
    if n < 0:
        raise RuntimeError("polygamma(n, x) does not support negative n.")
    return _in_float64("polygamma", *(partial(polygamma_of, n + k) for k in range(4)))(input)


@composite(at=("torch", "special"))
def polygamma(n, input):
    """The n-th derivative of digamma. torch.polygamma."""
    return _polygamma(input, n)


@composite("Tensor.polygamma", at=("Tensor",), inplace=True)
def _polygamma_method(self, n):
    """The n-th derivative of digamma. Tensor.polygamma."""
    return _polygamma(self, n)


@composite(at=everywhere, inplace=True)
def mvlgamma(input, p):
    """The logarithm of the multivariate gamma function of dimension p. torch.mvlgamma."""
    if bool((input <= (p - 1) / 2).any()):
        raise RuntimeError("All elements must be greater than (p-1)/2")
    constant = p * (p - 1) / 4 * math.log(math.pi)
    terms = (TABLE["lgamma"].call(input - j / 2) for j in range(p))
    return sum(terms) + constant


@op()
def frexp(input):
    """(mantissa, exponent) with input = mantissa * 2 ** exponent, exponent int32. torch.frexp."""
    if not is_float(input):
        raise RuntimeError("torch.frexp() only supports floating-point dtypes")
    exponent = mx.array(np.asarray(np.frexp(host(mx.stop_gradient(input)))[1], np.int32))
    # Halved twice: 2 ** -exponent itself may overflow.
    half = exponent // 2
    two = mx.array(2.0, mx.float32 if input.dtype != mx.float64 else mx.float64)
    scaled = input.astype(two.dtype) * mx.power(two, -half) * mx.power(two, half - exponent)
    mantissa = mx.where(mx.isfinite(input), scaled.astype(input.dtype), input)
    return return_types.make("frexp", mantissa, exponent)


@op(at=("special",), promote="input other", to_float=True, pointwise=True)
def xlog1py(input, other):
    """input * log1p(other), 0 where input is 0. torch.special.xlog1py."""
    product = input * mx.log1p(other)
    return mx.where((input == 0) & ~mx.isnan(other), mx.zeros((), input.dtype), product)


@op(at=("special",), promote="input", to_float=True)
def entr(input):
    """-x log x, 0 at 0, -inf below. torch.special.entr."""
    value = -input * mx.log(mx.where(input > 0, input, mx.ones((), input.dtype)))
    value = mx.where(input < 0, mx.array(-math.inf, input.dtype), value)
    return mx.where(mx.isnan(input), input, value)


@composite(at=("special",))
def zeta(input, other):
    """The Hurwitz zeta function for input > 1, other > 0. torch.special.zeta."""
    return _zeta(input, other)


@op("_zeta", at=(), promote="input other", to_float=True)
def _zeta(input, other):
    s, q = np.broadcast_arrays(host(input).astype(np.float64), host(other).astype(np.float64))
    flat = [
        hurwitz_zeta(a, b) if a > 1 else math.nan for a, b in zip(s.ravel(), q.ravel(), strict=True)
    ]
    return mx.array(np.array(flat).reshape(s.shape), dtype=mx.float64).astype(input.dtype)


_SPECIAL = {
    "expit": "sigmoid", "logit": "logit", "exp2": "exp2", "expm1": "expm1", "log1p": "log1p",
    "sinc": "sinc", "xlogy": "xlogy", "erf": "erf", "round": "round",
    "multigammaln": "mvlgamma",
}  # fmt: skip


def _alias(name: str, own: str) -> None:
    def called(*args, **kwargs):
        return TABLE[own].call(*args, **kwargs)

    called.__doc__ = f"torch.{own} under SciPy's name. torch.special.{name}."
    composite("special." + name, at=("special",))(called)


for _name, _own in _SPECIAL.items():
    _alias(_name, _own)
