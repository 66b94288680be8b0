"""float8 storage: bytes to float32 and back, with torch's bits."""

from __future__ import annotations

import math

import mlx.core as mx

from ..kernels.fp8_cast import from_fp8, to_fp8
from .dtype import dtype, float8_e4m3fn, float8_e5m2, float8_e8m0fnu


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
    """float32 values as float8 bytes, rounded to the nearest, ties to even."""
    if target is float8_e4m3fn:
        return to_fp8(array)
    if target is float8_e5m2:
        return _encode_e5m2(array)
    if target is float8_e8m0fnu:
        return _encode_e8m0(array)
    raise NotImplementedError(
        f"conversion to {target} is not supported; float8_e4m3fn, float8_e5m2 and float8_e8m0fnu "
        "are"
    )


def _u32(value: int) -> mx.array:
    return mx.array(value, mx.uint32)


def _encode_e5m2(array: mx.array) -> mx.array:
    """By the bits of float32: by way of float16 it would round twice. Overflow gives infinity."""
    bits = mx.view(array, mx.uint32)
    sign = mx.right_shift(mx.bitwise_and(bits, _u32(1 << 31)), _u32(24))
    size = mx.bitwise_and(bits, _u32(0x7FFFFFFF))
    odd = mx.bitwise_and(mx.right_shift(size, _u32(21)), _u32(1))
    # 15 - 127 moves the exponent's zero; the rest rounds what the shift cuts off.
    normal = mx.right_shift(size + odd + _u32(0xFFFFF - (112 << 23) & 0xFFFFFFFF), _u32(21))
    small = mx.abs(array) < 2.0**-14
    steps = mx.round(mx.where(small, mx.abs(array), 0) * 2.0**16).astype(mx.uint32)
    code = mx.where(small, steps, normal)
    code = mx.where(size >= _u32(143 << 23), _u32(0x7C), code)
    return mx.bitwise_or(sign, mx.where(mx.isnan(array), _u32(0x7F), code)).astype(mx.uint8)


def _encode_e8m0(array: mx.array) -> mx.array:
    """The exponent, one more from 1.5 times a power of two on; the sign is dropped, as in torch."""
    bits = mx.view(array, mx.uint32)
    exponent = mx.bitwise_and(mx.right_shift(bits, _u32(23)), _u32(0xFF))
    fraction = mx.bitwise_and(bits, _u32(0x7FFFFF))
    half = _u32(1 << 22)
    up = mx.where(exponent > _u32(0), fraction >= half, fraction > half)
    return mx.where(up & (exponent < _u32(255)), exponent + _u32(1), exponent).astype(mx.uint8)
