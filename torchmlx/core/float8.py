"""float8 storage: bytes to float32 and back, with torch's bits."""

from __future__ import annotations

import math

import mlx.core as mx

from ..kernels.fp8_cast import from_fp8, to_fp8
from .dtype import dtype, float8_e4m3fn, float8_e8m0fnu


def decode(array: mx.array, source: dtype) -> mx.array:
    """The float32 values of float8 bytes."""
    if source is float8_e4m3fn:
        return from_fp8(array, mx.float32)
    if source is float8_e8m0fnu:
        # An exponent byte: 2^(b-127), 255 is NaN, 0 is 2^-127 (subnormal in float32).
        bits = array.astype(mx.uint32)
        normal = mx.view(mx.left_shift(bits, mx.array(23, mx.uint32)), mx.float32)
        value = mx.where(bits == 0, mx.array(2.0**-127, mx.float32), normal)
        return mx.where(bits == 255, mx.array(math.nan, mx.float32), value)
    # e5m2 is the upper byte of a float16.
    wide = mx.left_shift(array.astype(mx.uint16), mx.array(8, mx.uint16))
    return mx.view(wide, mx.float16).astype(mx.float32)


def encode(array: mx.array, target: dtype) -> mx.array:
    """float32 values as float8 bytes; e4m3fn only."""
    if target is not float8_e4m3fn:
        raise NotImplementedError(f"conversion to {target} is not supported; float8_e4m3fn is")
    return to_fp8(array)
