"""torch.signal.windows: weights of the samples of a signal, computed in float64 on the host."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..aten.fft import rounded
from ..core import dtype as dtypes
from ..core.device import device as Device
from ..core.dtype import dtype as Dtype
from ..core.tensor import Tensor
from ..runtime import layout as Layout
from ..runtime import strided


def _window(formula: Callable[..., np.ndarray]) -> Callable[..., Tensor]:
    """`formula(points 0, 1, ..., M - 1, the length after which they repeat, its own settings)` with
    torch's arguments.
    """
    name = formula.__name__

    def window(
        M: int,
        *,
        sym: bool = True,
        dtype: Dtype | None = None,
        layout: Layout = strided,
        device: Device | None = None,
        requires_grad: bool = False,
        **settings: Any,
    ) -> Tensor:
        if M < 0:
            raise ValueError(f"{name} requires non-negative window length, got M={M}")
        if layout is not strided:
            raise ValueError(f"{name} is implemented for strided tensors only, got: {layout}")
        kind = dtype or dtypes.get_default_dtype()
        if kind not in (dtypes.float32, dtypes.float64):
            raise ValueError(f"{name} expects float32 or float64 dtypes, got: {kind}")
        if sym and settings.get("center") is not None:
            raise ValueError("Center must be None for symmetric windows")
        values = formula(np.arange(M), M - 1 if sym or M == 1 else M, **settings)
        return rounded(values, kind, device, requires_grad)

    common = list(inspect.signature(window).parameters.values())[:-1]
    own = list(inspect.signature(formula).parameters.values())[2:]
    window.__signature__ = inspect.Signature(common[:1] + own + common[1:])  # type: ignore[attr-defined]
    window.__name__ = window.__qualname__ = name
    window.__doc__ = f"{formula.__doc__} torch.signal.windows.{name}."
    return window


def _share(points: np.ndarray, length: int) -> np.ndarray:
    """Where the points are between 0 and 1; a single one is in the middle."""
    return points / length if length else np.full(points.shape, 0.5)


def _cosines(points: np.ndarray, length: int, a) -> np.ndarray:
    angle = 2 * math.pi * _share(points, length)
    return sum(((-1) ** i * c * np.cos(i * angle) for i, c in enumerate(a)), np.zeros(points.shape))


@_window
def exponential(points, length, *, center=None, tau=1.0):
    """exp(-|n - center| / tau)."""
    if tau <= 0:
        raise ValueError(f"Tau must be positive, got: {tau} instead.")
    return np.exp(-np.abs(points - (length / 2 if center is None else center)) / tau)


@_window
def cosine(points, length):
    """Half a period of the sine."""
    return np.sin(math.pi * (points + 0.5) / (length + 1))


@_window
def gaussian(points, length, *, std=1.0):
    """The density of a normal distribution, of `std` points, over its maximum."""
    if std <= 0:
        raise ValueError(f"Standard deviation must be positive, got: {std} instead.")
    return np.exp(-(((points - length / 2) / std) ** 2) / 2)


@_window
def kaiser(points, length, *, beta=12.0):
    """I_0(beta sqrt(1 - x^2)) / I_0(beta), x from -1 to 1."""
    if beta < 0:
        raise ValueError(f"beta must be non-negative, got: {beta} instead.")
    x = 2 * _share(points, length) - 1
    return np.i0(beta * np.sqrt(np.maximum(0, 1 - x * x))) / np.i0(beta)


@_window
def bartlett(points, length):
    """A triangle."""
    return 1 - np.abs(2 * _share(points, length) - 1)


@_window
def general_cosine(points, length, *, a):
    """The sum of (-1)^i a_i cos(2 pi i n / length)."""
    if not np.iterable(a):
        raise TypeError("Coefficients must be a list/tuple")
    if not a:
        raise ValueError("Coefficients cannot be empty")
    return _cosines(points, length, a) if length else np.ones(points.shape)


@_window
def general_hamming(points, length, *, alpha=0.54):
    """alpha - (1 - alpha) cos(2 pi n / length)."""
    return _cosines(points, length, (alpha, 1 - alpha))


@_window
def hamming(points, length):
    """0.54 - 0.46 cos(2 pi n / length)."""
    return _cosines(points, length, (0.54, 0.46))


@_window
def hann(points, length):
    """0.5 - 0.5 cos(2 pi n / length)."""
    return _cosines(points, length, (0.5, 0.5))


@_window
def blackman(points, length):
    """0.42 - 0.5 cos(2 pi n / length) + 0.08 cos(4 pi n / length)."""
    return _cosines(points, length, (0.42, 0.5, 0.08))


@_window
def nuttall(points, length):
    """Nuttall's four terms with a continuous first derivative."""
    return _cosines(points, length, (0.3635819, 0.4891775, 0.1365995, 0.0106411))
