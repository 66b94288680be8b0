"""How alike two clips are: PSNR, SSIM, a sheet of both. Frames [T, H, W, 3] in uint8."""

import math
from collections.abc import Sequence

import numpy as np


def psnr(first: np.ndarray, second: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB; infinite where nothing differs."""
    error = np.mean([_square(a, b) for a, b in zip(first, second, strict=True)])
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)


def _square(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.mean((a.astype(np.float64) - b) ** 2))


def ssim(first: np.ndarray, second: np.ndarray) -> float:
    """Structural similarity of the frames' channels, 1 for equal ones.

    Gaussian window of 11 pixels, sigma 1.5, without borders. Wang et al., 2004.
    """
    pairs = zip(first, second, strict=True)
    return float(np.mean([_ssim(a.astype(np.float64), b.astype(np.float64)) for a, b in pairs]))


def _ssim(a: np.ndarray, b: np.ndarray) -> float:
    means = _smooth(a), _smooth(b)
    squares = means[0] ** 2, means[1] ** 2, means[0] * means[1]
    spread = [_smooth(x) - m for x, m in zip((a * a, b * b, a * b), squares, strict=True)]
    small = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    light = (2 * squares[2] + small[0]) / (squares[0] + squares[1] + small[0])
    return float((light * (2 * spread[2] + small[1]) / (spread[0] + spread[1] + small[1])).mean())


def _smooth(x: np.ndarray) -> np.ndarray:
    size = min(11, *x.shape[:2])
    weights = np.exp(-((np.arange(size) - (size - 1) / 2) ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    for axis in (0, 1):
        count = x.shape[axis] - size + 1
        parts = (w * x.take(range(n, n + count), axis) for n, w in enumerate(weights))
        x = sum(parts)  # type: ignore[assignment]
    return x


def sheet(rows: Sequence[np.ndarray], columns: int = 4) -> np.ndarray:
    """Some frames of each clip beside each other, a row a clip, with white lines between."""
    picks = np.linspace(0, len(rows[0]) - 1, min(columns, len(rows[0]))).round().astype(int)
    padded = [
        np.pad(row[picks], ((0, 0), (2, 2), (2, 2), (0, 0)), constant_values=255) for row in rows
    ]
    return np.concatenate([np.concatenate(list(row), 1) for row in padded], 0)
