"""What the convolutions share: numbers for each axis, lengths, and plain operations on arrays.

Arrays are channels last, x [B, D, H, W, C] and w [O, KD, KH, KW, C / groups] unless said otherwise.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import mlx.core as mx
import numpy as np

from .gemv import fallback as plain_linear

# MLX's products and copies on large arrays have failed at 2^31 elements (mlx#3248, #3327) and
# 2^32 (mlx#3138): plain convolutions compute pieces well below that.
PIECE = 2**28

# Beyond rounding, K up to 27,648. float32 sums err by about sqrt(K) * 6e-8. Half types sum in
# float32, then round once.
NMSE = {"float32": 1e-11, "float16": 1e-9, "bfloat16": 1e-8}

Pair = tuple[int, int]


def spread(value, n: int) -> tuple[int, ...]:
    """One number for each of n axes; ValueError for another count."""
    values = (value,) * n if isinstance(value, int) else tuple(int(v) for v in value)
    if len(values) != n:
        raise ValueError(f"{values} is not one number or {n}")
    return values


def pairs(padding, n: int) -> tuple[Pair, ...]:
    """(before, after) for each of n axes, from one number, or a number or a pair for each."""
    each = (padding,) * n if isinstance(padding, int) else tuple(padding)
    if len(each) != n:
        raise ValueError(f"padding {padding} is not one number or {n}")
    two = [(p, p) if isinstance(p, int) else tuple(map(int, p)) for p in each]
    return tuple((before, after) for before, after in two)


def less_cache(padding: Sequence[Pair], cached: int) -> tuple[Pair, ...]:
    """The padding where cached frames have taken the place of some."""
    (front, back), *others = padding
    return ((max(front - cached, 0), back), *others)


def outputs(
    x, w, cached: int, stride, padding, upsample: bool, dilation=(1, 1, 1)
) -> tuple[int, ...]:
    """Lengths of the result, 0 or less where the kernel does not fit in; x, w: shapes, 2-d too."""
    *frames, height, width = x[1:-1]
    factor = 2 if upsample else 1
    lengths = (*(n + cached for n in frames), factor * height, factor * width)
    pads = less_cache(padding, cached)
    reach = (d * (k - 1) + 1 for d, k in zip(dilation, w[1:-1], strict=False))
    each = zip(lengths, reach, stride, pads, strict=True)
    return tuple((n + before + after - k) // s + 1 for n, k, s, (before, after) in each)


def check(name: str, x, w, bias, cache, stride, padding, upsample, dilation, groups) -> None:
    """Raise ValueError or TypeError for arrays and numbers that do not fit each other."""
    if groups < 1 or w.shape[0] % groups:
        raise ValueError(f"{name}: weights {w.shape} as [O, ..] do not divide into {groups} groups")
    if x.ndim != w.ndim or x.shape[-1] != w.shape[-1] * groups:
        raise ValueError(f"{name}: x {x.shape} does not fit weights {w.shape} as [O, .., C]")
    if bias is not None and bias.shape != (w.shape[0],):
        raise ValueError(f"{name}: bias {bias.shape} does not fit weights {w.shape} as [O, .., C]")
    frame = (x.shape[0], *x.shape[2:])
    if cache is not None and (cache.ndim != 5 or (cache.shape[0], *cache.shape[2:]) != frame):
        raise ValueError(f"{name}: cache {cache.shape} does not fit x {x.shape}")
    negative = min(n for pair in padding for n in pair) < 0
    if min(*stride, *dilation) < 1 or negative or 0 in w.shape[1:-1]:
        raise ValueError(
            f"{name}: stride {stride}, padding {padding}, dilation {dilation}, weights {w.shape}"
        )
    cached = 0 if cache is None else cache.shape[1]
    if min(outputs(x.shape, w.shape, cached, stride, padding, upsample, dilation)) < 1:
        raise ValueError(f"{name}: weights {w.shape} reach over x {x.shape} with its padding")
    dtypes = {a.dtype for a in (x, w, bias, cache) if a is not None}
    if len(dtypes) > 1 or not mx.issubdtype(x.dtype, mx.floating):
        raise TypeError(f"{name} takes one floating dtype, not {', '.join(map(str, dtypes))}")


def wide(x: mx.array) -> mx.array:
    """Half types as float32, others as they are."""
    return x.astype(mx.float32) if x.dtype in (mx.float16, mx.bfloat16) else x


def whole_image(numpy: Any, x, cache, padding, upsample: bool):
    """The image that the kernel slides over, made by `numpy`'s or mlx.core's functions."""
    whole = x if cache is None else numpy.concatenate([cache, x], axis=1)
    if upsample:
        whole = numpy.repeat(numpy.repeat(whole, 2, axis=2), 2, axis=3)
    pads = less_cache(padding, 0 if cache is None else cache.shape[1])
    return numpy.pad(whole, [(0, 0), *pads, (0, 0)]) if any(map(any, pads)) else whole


def window(tap, stride, dilation, sizes) -> tuple[slice, ...]:
    """The values of [B, D, H, W, C] that a tap meets, for `sizes` outputs."""
    each = zip(tap, stride, dilation, sizes, strict=True)
    return (slice(None), *(slice(t * d, t * d + (n - 1) * s + 1, s) for t, s, d, n in each))


def plain(x, w, bias, stride, dilation, groups: int, sizes) -> mx.array:
    """Convolution of x, padded, with w in the dtype to compute in; the result in x's dtype."""
    if groups == 1:
        return _by_rows(x, w, bias, stride, dilation, sizes)
    if w.shape[-1] == 1:
        total = _by_channels(x, w, stride, dilation, groups, sizes)
        return (total if bias is None else total + bias.astype(w.dtype)).astype(x.dtype)
    if mx.default_device().type == mx.gpu and w.shape[1] == stride[0] == 1:
        frames = x.astype(w.dtype).flatten(0, 1)
        total = mx.conv_general(frames, w[:, 0], stride[1:], 0, dilation[1:], groups=groups)
        total = total.reshape(*x.shape[:2], *total.shape[1:])
        return (total if bias is None else total + bias.astype(w.dtype)).astype(x.dtype)
    biases = [None] * groups if bias is None else mx.split(bias, groups)
    parts = zip(mx.split(x, groups, -1), mx.split(w, groups, 0), biases, strict=True)
    each = [_by_rows(a, b, c, stride, dilation, sizes) for a, b, c in parts]
    return mx.concatenate(each, axis=-1)


def _by_channels(x, w, stride, dilation, groups: int, sizes) -> mx.array:
    """A channel in: a product a tap and element."""
    total = None
    for tap in np.ndindex(*w.shape[1:-1]):
        met = x[window(tap, stride, dilation, sizes)].astype(w.dtype)[..., None]
        part = met * w[(slice(None), *tap, 0)].reshape(groups, -1)
        total = part if total is None else total + part
    assert total is not None
    return total.reshape(x.shape[0], *sizes, w.shape[0])


def _by_rows(x, w, bias, stride, dilation, sizes) -> mx.array:
    """A product for each row of the kernel, whose columns are gathered; pieces when large.

    On the CPU this took 39 ms where MLX's own conv3d took 103 ms (64 -> 64 channels, 3x3x3 on
    1x32x32, AMD EPYC, 2026-12-02); that one also adds the depth taps in the output's dtype, and its
    kin go wrong when large (mlx#3138, #3979).
    """
    batch, (*kernel, columns), channels = x.shape[0], w.shape[1:4], w.shape[4]
    rows = batch * prod(sizes)
    pieces = list(_halves(x, w.shape, stride, dilation, sizes))
    if rows * max(columns * channels, w.shape[0]) > PIECE and pieces:
        axis = pieces[0][0]
        parts = [_by_rows(part, w, bias, stride, dilation, size) for _, part, size in pieces]
        return mx.concatenate(parts, axis=axis)
    total = None
    for tap in np.ndindex(*kernel):
        met = [x[window((*tap, c), stride, dilation, sizes)] for c in range(columns)]
        gathered = mx.concatenate(met, axis=-1).reshape(rows, columns * channels)
        weights = w[(slice(None), *tap)].reshape(w.shape[0], columns * channels)
        product = plain_linear(gathered.astype(w.dtype), weights)
        total = product if total is None else total + product
    if total is None or 0 in (channels, columns):
        total = mx.zeros((rows, w.shape[0]), w.dtype)
    total = total if bias is None else total + bias.astype(w.dtype)
    return total.astype(x.dtype).reshape(batch, *sizes, w.shape[0])


def _halves(x, w, stride, dilation, sizes) -> Iterator[tuple[int, mx.array, tuple[int, ...]]]:
    """(axis, input, outputs) of both halves of the first axis that has more than one output."""
    lengths = (x.shape[0], *sizes)
    axis = next((i for i, n in enumerate(lengths) if n > 1), None)
    if axis is None:
        return
    step, reach = 1, 1
    if axis:
        step, reach = stride[axis - 1], dilation[axis - 1] * (w[axis] - 1) + 1
    middle = lengths[axis] // 2
    for first, last in ((0, middle), (middle, lengths[axis])):
        span = slice(first * step, (last - 1) * step + reach)
        lengths = (*lengths[:axis], last - first, *lengths[axis + 1 :])
        yield axis, x[(*(slice(None),) * axis, span)], lengths[1:]


def bias_gradient(cotangent: mx.array) -> mx.array:
    """The sum over all pixels, in float32 for half types."""
    g = wide(cotangent)
    return g.reshape(prod(g.shape[:-1]), g.shape[-1]).sum(axis=0).astype(cotangent.dtype)
