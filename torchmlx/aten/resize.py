"""Resizing: nearest, linear and cubic interpolation, one dimension at a time, with torch's index
arithmetic.
"""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

from ..core.op import op
from ._calling import from_host, is_float, torch_name, wide


def _ratio(inputs: int, outputs: int, scale, kind) -> np.floating:
    """Input elements an output element spans: from the given scale factor if it is to be used."""
    return kind(1.0 / scale) if scale and scale > 0 else kind(kind(inputs) / kind(outputs))


def _nearest(inputs: int, outputs: int, scale, offset: float) -> np.ndarray:
    """Source index of each output. torch computes it in float32 whatever the tensor's type."""
    if inputs == outputs and offset == 0.0:
        return np.arange(outputs)
    ratio = _ratio(inputs, outputs, scale, np.float32)
    where = (np.arange(outputs, dtype=np.float32) + np.float32(offset)) * ratio
    return np.minimum(np.floor(where).astype(np.int64), inputs - 1)


def _sources(inputs: int, outputs: int, scale, align_corners: bool, kind) -> np.ndarray:
    """Where each output lies on the input's axis, in input elements."""
    position = np.arange(outputs).astype(kind)
    if align_corners:
        ratio = kind(inputs - 1) / kind(outputs - 1) if outputs > 1 else kind(0)
        return position * kind(ratio)
    ratio = _ratio(inputs, outputs, scale, kind)
    return ratio * (position + kind(0.5)) - kind(0.5)


def _column(weights: np.ndarray, x: mx.array, axis: int) -> mx.array:
    return from_host(weights).astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1 - axis))


def _linear(x: mx.array, axis: int, outputs: int, scale, align_corners: bool) -> mx.array:
    inputs = x.shape[axis]
    if inputs == outputs:
        return x
    kind = np.float64 if x.dtype == mx.float64 else np.float32
    where = np.maximum(_sources(inputs, outputs, scale, align_corners, kind), 0)
    low = np.minimum(where.astype(np.int64), inputs - 1)
    high = np.minimum(low + 1, inputs - 1)
    weight = np.clip(where - low.astype(kind), 0, 1)
    left, right = (mx.take(x, mx.array(i), axis=axis) for i in (low, high))
    return left * _column(1 - weight, x, axis) + right * _column(weight, x, axis)


CUBIC = -0.75  # torch's coefficient of Keys' kernel


def _cubic_weights(t: np.ndarray) -> list[np.ndarray]:
    """Weights of the four neighbours at distances 1 + t, t, 1 - t, 2 - t (Keys 1981)."""

    def near(d):
        return ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1

    def far(d):
        return ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _cubic(x: mx.array, axis: int, outputs: int, scale, align_corners: bool) -> mx.array:
    inputs = x.shape[axis]
    kind = np.float64 if x.dtype == mx.float64 else np.float32
    where = _sources(inputs, outputs, scale, align_corners, kind)
    base = np.floor(where)
    total = mx.zeros((), x.dtype)
    for shift, weight in zip((-1, 0, 1, 2), _cubic_weights(where - base), strict=True):
        index = np.clip(base.astype(np.int64) + shift, 0, inputs - 1)
        total = total + mx.take(x, mx.array(index), axis=axis) * _column(weight, x, axis)
    return total


@op("_resize", at=())
def resize(input, sizes, mode, scales, align_corners):
    """input [N, C, *spatial] resized to `sizes`; scales hold a factor to use, or None, for each
    dimension.
    """
    first = input.ndim - len(sizes)
    if mode in ("nearest", "nearest-exact"):
        offset = 0.5 if mode == "nearest-exact" else 0.0
        for i, (outputs, scale) in enumerate(zip(sizes, scales, strict=True)):
            where = _nearest(input.shape[first + i], outputs, scale, offset)
            input = mx.take(input, mx.array(where), axis=first + i)
        return input
    if not is_float(input) and input.dtype != mx.uint8:
        kind = "cubic" if mode == "bicubic" else "linear"
        raise NotImplementedError(
            f"\"compute_indices_weights_{kind}\" not implemented for '{torch_name(input)}'"
        )
    x = wide(input) if is_float(input) else input.astype(mx.float32)
    one = _cubic if mode == "bicubic" else _linear
    # The last dimension first, as torch nests its sums.
    for i in reversed(range(len(sizes))):
        x = one(x, first + i, sizes[i], scales[i], align_corners)
    if not is_float(input):
        x = mx.clip(mx.floor(x + 0.5), 0, 255)
    return x.astype(input.dtype)


MODES = {"linear": 3, "bilinear": 4, "bicubic": 4, "trilinear": 5}


def output_sizes(spatial, size, scale_factor, recompute: bool | None):
    """(sizes, scales to compute indices with) of what F.interpolate was given."""
    n = len(spatial)
    if size is not None and scale_factor is not None:
        raise ValueError("only one of size or scale_factor should be defined")
    if size is not None:
        sizes = (size,) * n if isinstance(size, int) else tuple(int(s) for s in size)
        if len(sizes) != n:
            raise ValueError(
                "Input and output must have the same number of spatial dimensions, but got input "
                "with "
                f"spatial dimensions of {list(spatial)} and output size of {size}. Please provide "
                "input tensor in (N, C, d1, d2, ...,dK) format and output size in (o1, o2, ...,oK) "
                "format."
            )
        return sizes, (None,) * n
    if scale_factor is None:
        raise ValueError("either size or scale_factor should be defined")
    factors = (
        tuple(scale_factor) if isinstance(scale_factor, (list, tuple)) else (scale_factor,) * n
    )
    if len(factors) != n:
        raise ValueError(
            "Input and scale_factor must have the same number of spatial dimensions, but got "
            "input with "
            f"spatial dimensions of {list(spatial)} and scale_factor of shape {scale_factor}. "
            "Please "
            "provide input tensor in (N, C, d1, d2, ...,dK) format and scale_factor in (s1, s2, "
            "...,sK) "
            "format."
        )
    sizes = tuple(math.floor(float(s) * f) for s, f in zip(spatial, factors, strict=True))
    return sizes, (None,) * n if recompute else factors
