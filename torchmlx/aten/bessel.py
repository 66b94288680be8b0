"""Bessel functions of orders 0 and 1 in torch.special, in float64 on the host. Not differentiable,
as in torch.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from ..core.op import composite
from .special import bessel_i, register

# J_m is an integral over [0, pi] that the trapezoidal rule gives to all digits (DLMF 10.9.2), a sum
# of c_m J_m the same integral with their cosines summed. Beyond FAR an asymptotic series has them.
NODES, FAR = 128, 25.0
ANGLES = np.arange(NODES + 1) * (math.pi / NODES)
WEIGHTS = np.where((ANGLES == 0) | (np.arange(NODES + 1) == NODES), 0.5, 1.0) / NODES


def _neumann(x: np.ndarray, n: int, coefficients: dict[int, float]) -> np.ndarray:
    """The sum of c_m J_m(x) for |x| <= FAR; the m are even as n is, or odd."""
    wave = np.sin if n % 2 else np.cos
    weights = WEIGHTS * sum(c * wave(m * ANGLES) for m, c in coefficients.items())
    return sum(
        (w * wave(x * math.sin(a)) for w, a in zip(weights, ANGLES, strict=True)),
        np.zeros_like(x),
    )


def _hankel(x: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(J_n, Y_n) for x >= FAR (DLMF 10.17.3)."""
    term, p, q = np.ones_like(x), np.ones_like(x), np.zeros_like(x)
    for k in range(1, 22):
        term = term * (4 * n * n - (2 * k - 1) ** 2) / (8 * k * x)
        sign = -1 if k // 2 % 2 else 1
        if k % 2:
            q = q + sign * term
        else:
            p = p + sign * term
    phase, size = x - (2 * n + 1) * math.pi / 4, np.sqrt(2 / (math.pi * x))
    cos, sin = np.cos(phase), np.sin(phase)
    return size * (p * cos - q * sin), size * (p * sin + q * cos)


def _j(n: int, x: np.ndarray) -> np.ndarray:
    size = np.abs(x)
    far = _hankel(np.maximum(size, FAR), n)[0] * (np.sign(x) ** n)
    return np.where(size > FAR, far, _neumann(np.clip(x, -FAR, FAR), n, {n: 1.0}))


def _y(n: int, x: np.ndarray) -> np.ndarray:
    """Neumann's series (Abramowitz, Stegun 9.1.88)."""
    near = np.clip(x, 0.0, FAR)
    coefficients = {n + 2 * k: (-1) ** k * (n + 2 * k) / (k * (n + k)) for k in range(1, 45)}
    value = 2 * (np.log(near / 2) + np.euler_gamma - n) * _j(n, near)
    value = (value - 2 * _neumann(near, n, coefficients)) / math.pi
    if n:
        value = value - 2 / (math.pi * near) * _j(0, near)
    value = np.where(x > FAR, _hankel(np.maximum(x, FAR), n)[1], value)
    return np.where(x < 0, math.nan, np.where(x == 0, -math.inf, value))


def _ke(n: int, x: np.ndarray) -> np.ndarray:
    """exp(x) K_n(x): its integral by the trapezoidal rule (DLMF 10.32.9), below 1 its series
    (10.31.1, 10.31.2).
    """
    above, below = np.maximum(x, 1.0), np.clip(x, 0.0, 1.0)
    end = 2 * np.arcsinh(np.sqrt(20 / above))  # where exp(-x (cosh t - 1)) is exp(-40)
    total = np.full_like(x, 0.5)
    for k in range(1, 65):
        t = end * (k / 64)
        total = total + np.exp(-2 * above * np.sinh(t / 2) ** 2) * np.cosh(n * t)
    half, log, harmonic = below / 2, np.log(below / 2) + np.euler_gamma, 0.0
    series, term = np.zeros_like(x), np.ones_like(x)
    for k in range(12):
        both = 2 * harmonic + (1 / (k + 1) if n else 0.0)  # psi(k + 1) + psi(k + n + 1), less gamma
        series = series + (-1) ** n * term * (both / 2 - log)
        harmonic += 1 / (k + 1)
        term = term * half**2 / ((k + 1) * (k + 1 + n))
    if n:
        series = 1 / below + half * series
    value = np.where(x < 1, series * np.exp(below), total * end / 64)
    value = np.where(np.isinf(x), 0.0, np.where(x == 0, math.inf, value))
    return np.where(x < 0, math.nan, value)


def _k(n: int, x: np.ndarray) -> np.ndarray:
    return _ke(n, x) * np.exp(-np.abs(x))


def _register(name: str, function) -> None:
    computed = register(name, function, at=(), half=False)

    @composite("special." + name, at=("special",))
    def bessel(input):
        return computed(input.detach())

    bessel.__doc__ = f"Elementwise {name}, in float64 on the host. torch.special.{name}."


for _n in (0, 1):
    _register(f"bessel_j{_n}", partial(_j, _n))
    _register(f"bessel_y{_n}", partial(_y, _n))
    _register(f"modified_bessel_i{_n}", partial(bessel_i, _n))
    _register(f"modified_bessel_k{_n}", partial(_k, _n))
    _register(f"scaled_modified_bessel_k{_n}", partial(_ke, _n))
_register("spherical_bessel_j0", lambda x: np.where(np.isinf(x), 0.0, np.sinc(x / math.pi)))
