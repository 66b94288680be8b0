"""Incomplete gamma and beta functions in float64 on the host, and by them how samples follow their
parameters (implicit reparameterisation, Figurnov et al. 2018).
"""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

from ..core.op import composite, op
from ._calling import from_host, host_function, is_float, torch_name
from .special import elementwise

_lgamma = elementwise(math.lgamma)
_STEPS = 3000  # terms; a series of a = 1e5 needs about 2000
_TINY = 1e-300


def _series(a, x):
    """Sum of x^k / ((a + 1) ... (a + k)), k from 0: P(a, x) is it times `front` / a."""
    term, total = np.ones_like(x), np.ones_like(x)
    for k in range(1, _STEPS):
        term = term * x / (a + k)
        total = total + term
        if (term <= 1e-17 * total).all():
            break
    return total


def _fraction(a, x):
    """Legendre's continued fraction by Lentz's method: Q(a, x) is it times `front` (DLMF 8.9.2)."""
    b = x + 1 - a
    c, d = np.full_like(x, 1 / _TINY), 1 / np.where(b == 0, _TINY, b)
    h = d
    for k in range(1, _STEPS):
        n = -k * (k - a)
        b = b + 2
        d, c = n * d + b, b + n / c
        d = 1 / np.where(np.abs(d) < _TINY, _TINY, d)
        c = np.where(np.abs(c) < _TINY, _TINY, c)
        h = h * d * c
        if (np.abs(d * c - 1) < 1e-16).all():
            break
    return h


def gamma_tails(a: np.ndarray, x: np.ndarray):
    """(P, Q): the regularised incomplete gamma functions; small ones keep their digits."""
    with np.errstate(all="ignore"):
        inside = (a > 0) & (x > 0) & np.isfinite(x) & np.isfinite(a)
        u, v = np.where(inside, a, 1.0), np.where(inside, x, 1.0)
        front = np.exp(u * np.log(v) - v - _lgamma(u))
        low = v < u + 1
        p = front / u * _series(u, np.where(low, v, 0.0))
        q = front * _fraction(np.where(low, 1.0, u), np.where(low, 3.0, v))
        p, q = np.where(low, p, 1 - q), np.where(low, 1 - p, q)
    return _at_the_ends(a, x, inside, p, q)


def _at_the_ends(a, x, inside, p, q):
    ones = ((a == 0) & (x > 0)) | (np.isinf(x) & np.isfinite(a) & (a >= 0))
    zeros = ((x == 0) & (a > 0)) | (np.isinf(a) & (a > 0) & np.isfinite(x) & (x >= 0))
    edge = np.where(ones, 1.0, np.where(zeros, 0.0, np.nan))
    return np.where(inside, p, edge), np.where(inside, q, 1 - edge)


def _by_parameter(tail, a, *rest):
    """The slope of tail(a, *rest) by a: a central difference, exact to about 1e-9."""
    h = 1e-4 * a
    return (tail(a + h, *rest) - tail(a - h, *rest)) / (2 * h)


def gamma_density(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """x^(a - 1) e^-x / Gamma(a)."""
    with np.errstate(all="ignore"):
        return np.exp((a - 1) * np.log(x) - x - _lgamma(np.where(a > 0, a, 1.0)))


def _incomplete(name: str, which: int):
    def in_float64(function):
        def compute(a, x):
            return function(a.astype(np.float64), x.astype(np.float64))

        return host_function(name, compute)

    def tail(a, x):
        return gamma_tails(a, x)[which]

    by_parameter = in_float64(lambda a, x: _by_parameter(tail, a, x))
    density = in_float64(lambda a, x: gamma_density(a, x) * (1 if which == 0 else -1))

    def gradient(primals, c, output):
        slopes = by_parameter(*primals), density(*primals)
        return tuple(c * s.astype(c.dtype) for s in slopes)

    computed = host_function(
        name, lambda a, x: tail(a.astype(np.float64), x.astype(np.float64)), gradient
    )

    @op(name, at=("torch", "Tensor"), promote="input other", inplace=True, tensors=True)
    def incomplete(input, other):
        if not is_float(input):
            raise NotImplementedError(f"\"{name}_cpu\" not implemented for '{torch_name(input)}'")
        return computed(*mx.broadcast_arrays(input, other)).astype(input.dtype)

    incomplete.__doc__ = f"The regularised incomplete gamma function. torch.{name}."
    alias = "gammainc" if which == 0 else "gammaincc"
    composite("special." + alias, at=("special",))(incomplete)


_incomplete("igamma", 0)
_incomplete("igammac", 1)


def gamma_slope(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """How a gamma number x follows its concentration a: -(dP/da) / density."""
    with np.errstate(all="ignore"):
        # Of the smaller tail, whose digits are all there.
        by_p = _by_parameter(lambda a, x: gamma_tails(a, x)[0], a, x)
        by_q = _by_parameter(lambda a, x: gamma_tails(a, x)[1], a, x)
        return np.where(x < a, -by_p, by_q) / gamma_density(a, x)


def _beta_fraction(a, b, x):
    """The continued fraction of the incomplete beta function (DLMF 8.17.22), x below the mean."""
    c, d = np.ones_like(x), 1 / (1 - (a + b) * x / (a + 1))
    h = d
    for k in range(1, _STEPS):
        for n in (
            k * (b - k) * x / ((a + 2 * k - 1) * (a + 2 * k)),
            -(a + k) * (a + b + k) * x / ((a + 2 * k) * (a + 2 * k + 1)),
        ):
            d, c = 1 + n * d, 1 + n / c
            d = 1 / np.where(np.abs(d) < _TINY, _TINY, d)
            c = np.where(np.abs(c) < _TINY, _TINY, c)
            h = h * d * c
        if (np.abs(d * c - 1) < 1e-16).all():
            break
    return h


def _log_beta_front(a, b, x):
    return a * np.log(x) + b * np.log1p(-x) + _lgamma(a + b) - _lgamma(a) - _lgamma(b)


def dirichlet_slope(a: np.ndarray, total: np.ndarray, x: np.ndarray) -> np.ndarray:
    """-(dI_x(a, b)/da) / density / (1 - x) for b = total - a: torch._dirichlet_grad."""
    b = total - a
    with np.errstate(all="ignore"):
        low = x < (a + 1) / (a + b + 2)

        def below(a, b, x):
            return np.exp(_log_beta_front(a, b, x)) / a * _beta_fraction(a, b, x)

        def above(a, b, x):
            return np.exp(_log_beta_front(a, b, x)) / b * _beta_fraction(b, a, 1 - x)

        middle = 0.5 * (a / (a + b))
        of_low = _by_parameter(below, a, b, np.where(low, x, middle))
        of_high = _by_parameter(above, a, b, np.where(low, 0.5 + middle, x))
        density = np.exp(_log_beta_front(a, b, x)) / (x * (1 - x))
        return np.where(low, -of_low, of_high) / density / (1 - x)


def _follow(name: str, slope):
    """sample(parameters, drawn): the drawn numbers, which follow the parameters by `slope`."""

    def gradient(primals, cotangent, output):
        a, x = (np.asarray(p.astype(mx.float64, stream=mx.cpu)) for p in primals)
        found = slope(a, x, np.asarray(cotangent.astype(mx.float64, stream=mx.cpu)))
        return from_host(found).astype(primals[0].dtype), mx.zeros_like(primals[1])

    return host_function(name, lambda a, x: x, gradient)


gamma_sample = _follow("_standard_gamma", lambda a, x, g: g * gamma_slope(a, x))
dirichlet_sample = _follow(
    "_sample_dirichlet",
    lambda a, x, g: (
        dirichlet_slope(a, a.sum(-1, keepdims=True), x) * (g - (x * g).sum(-1, keepdims=True))
    ),
)
