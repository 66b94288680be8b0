"""A clip drawn by code for the demo: shapes that move over a gradient.

Slow, and in the colours of old film: wan22-mini sees little more than brightness.
"""

import numpy as np

ABOVE, BELOW = (0.25, 0.26, 0.27), (0.47, 0.45, 0.38)
BAR, SQUARE, DISC = (0.60, 0.58, 0.50), (0.14, 0.14, 0.15), (0.88, 0.84, 0.72)
SOFT = 5.0  # pixels from outside to inside


def moving_shapes(frames: int, height: int, width: int) -> np.ndarray:
    """Frames [T, H, W, 3] in uint8: a disc that falls, a square that turns, a bar that sweeps."""
    rows, columns = np.mgrid[:height, :width] / height
    aspect = width / height
    clip = np.empty((frames, height, width, 3), np.uint8)
    for t in range(frames):
        time = t / 64
        picture = np.array(ABOVE) * (1 - rows[..., None]) + np.array(BELOW) * rows[..., None]
        picture = _painted(picture, np.abs(columns - aspect * (0.1 + time)) - 0.07, BAR)
        right, down = columns - 0.72 * aspect, rows - 0.36
        turned = np.exp(-2j * time) * (right + 1j * down)
        square = np.maximum(np.abs(turned.real), np.abs(turned.imag)) - 0.18
        picture = _painted(picture, square, SQUARE)
        x, y = aspect * (0.28 + 0.6 * time), 0.35 + 5 * time**2
        picture = _painted(picture, np.hypot(columns - x, rows - y) - 0.17, DISC)
        clip[t] = np.round(255 * picture)
    return clip


def _painted(picture: np.ndarray, distance: np.ndarray, colour: tuple) -> np.ndarray:
    """The colour where the distance from a shape, in heights, is below 0."""
    inside = np.clip(0.5 - distance * len(picture) / SOFT, 0, 1)[..., None]
    return picture + inside * (np.array(colour) - picture)
