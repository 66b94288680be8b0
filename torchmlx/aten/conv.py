"""Convolutions: torch's channels first outside, channels last inside, accumulated in float32.

On the CPU a convolution is a sum of matrix products, one a kernel tap (0.19 s where MLX's own takes
0.47 s: 64 -> 64 channels, 3x3x3 on 4x32x32, 2 cores, 2026-12-02); the GPU has kernels/conv2d.py
and conv3d.py.
"""

from __future__ import annotations

import itertools
import math

import mlx.core as mx

from ..core.op import op
from ..kernels.conv2d import conv2d
from ..kernels.conv3d import conv3d
from ..kernels.gemv import linear as product
from ..kernels.matmul import matmul
from ._calling import is_float, wide
from .linear import c_name

# Below this many input channels a tap's product is too thin, so all taps are gathered into one
# product.
THIN_CHANNELS = 32


def spread(value, n: int, name: str) -> tuple[int, ...]:
    """One number for every spatial dimension, or one each."""
    if isinstance(value, int):
        return (value,) * n
    value = tuple(int(v) for v in value)
    if len(value) == 1:
        return value * n
    if len(value) != n:
        raise RuntimeError(
            f"expected {name} to be a single integer value or a list of {n} values to match the "
            f"convolution dimensions, but got {name}={list(value)}"
        )
    return value


def _batched(name: str, x: mx.array, n: int) -> mx.array:
    if x.ndim not in (n + 1, n + 2):
        raise RuntimeError(
            f"Expected {n + 1}D (unbatched) or {n + 2}D (batched) input to {name}, but got input "
            "of "
            f"size: {list(x.shape)}"
        )
    return x if x.ndim == n + 2 else x[None]


def _check_types(x, weight, bias) -> None:
    for label, other in (("weight", weight), ("bias", bias)):
        if other is not None and other.dtype != x.dtype:
            raise RuntimeError(
                f"Input type ({c_name(x)}) and {label} type ({c_name(other)}) should be the same"
            )


def _check(x, weight, bias, groups: int, channels: int) -> None:
    _check_types(x, weight, bias)
    if weight.shape[0] % groups or weight.shape[0] < groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be at least {groups} at dimension 0, but "
            "got "
            f"weight of size {list(weight.shape)} instead"
        )
    if x.shape[1] != channels:
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected input"
            f"{list(x.shape)} to have {channels} channels, but got {x.shape[1]} channels instead"
        )
    if bias is not None and bias.shape != (weight.shape[0],):
        raise RuntimeError(
            f"Given weight of size {list(weight.shape)}, expected bias to be 1-dimensional with "
            f"{weight.shape[0]} elements, but got bias of size {list(bias.shape)} instead"
        )


def _channels_last(x: mx.array) -> mx.array:
    return mx.moveaxis(x, 1, -1)


def _channels_first(x: mx.array) -> mx.array:
    return mx.moveaxis(x, -1, 1)


def _computed(x: mx.array) -> mx.array:
    """Half precision as float32; integers as float64, in which sums below 2^53 are exact."""
    return wide(x) if is_float(x) else x.astype(mx.float64)


def _windows(x, kernel, stride, dilation, outputs):
    """For each tap, the elements of channels-last x that it meets: (tap, [N, *outputs, C])."""
    for tap in itertools.product(*map(range, kernel)):
        index = tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s)
            for t, d, s, o in zip(tap, dilation, stride, outputs, strict=True)
        )
        yield tap, x[(slice(None), *index)]


def _matrix_product(rows: mx.array, w: mx.array) -> mx.array:
    return rows @ w.T if rows.dtype == mx.complex64 else product(rows, w, None)


def _by_taps(x, w, stride, dilation, groups, outputs):
    """x [N, *spatial, C] padded, w [O, *kernel, C / groups]: [N, *outputs, O]."""
    kernel = w.shape[1:-1]
    batch, depth, width = x.shape[0], x.shape[-1] // groups, w.shape[0] // groups
    windows = _windows(x, kernel, stride, dilation, outputs)
    if depth == 1 and groups > 1:
        # Depthwise: one channel in, `width` out, no product to make.
        total = sum(
            p[..., None] * w[(slice(None), *t, 0)].reshape(groups, width) for t, p in windows
        )
        return total.reshape(batch, *outputs, w.shape[0])  # type: ignore[union-attr]
    if groups > 1:
        parts = [
            _by_taps(xg, wg, stride, dilation, 1, outputs)
            for xg, wg in zip(mx.split(x, groups, -1), mx.split(w, groups, 0), strict=True)
        ]
        return mx.concatenate(parts, axis=-1)
    rows = batch * math.prod(outputs)
    if depth < THIN_CHANNELS:
        gathered = mx.stack([p for _, p in windows], axis=-2).reshape(rows, -1)
        return _matrix_product(gathered, w.reshape(width, -1)).reshape(batch, *outputs, width)
    total = sum(_matrix_product(p.reshape(rows, depth), w[(slice(None), *t)]) for t, p in windows)
    return total.reshape(batch, *outputs, width)  # type: ignore[union-attr]


def _on_gpu(x: mx.array) -> bool:
    return mx.default_device().type == mx.gpu and x.dtype == mx.float32


def _by_kernel(x, w, bias, stride, pads):
    """One dense kernel without dilation; it pads by itself and sums half precision in float32."""
    kernel = conv2d if x.ndim == 4 else conv3d
    return kernel(_channels_last(x), _channels_last(w), bias, stride, pads)


def _convolved(x, w, stride, dilation, groups, outputs):
    """x [N, *spatial, C] already padded; w [O, *kernel, C / groups]."""
    if not _on_gpu(x):
        return _by_taps(x, w, stride, dilation, groups, outputs)
    if groups > 1 and x.ndim == 5:  # MLX has groups in 1-D and 2-D only
        parts = zip(mx.split(x, groups, -1), mx.split(w, groups, 0), strict=True)
        each = [mx.conv_general(a, b, stride, 0, dilation) for a, b in parts]
        return mx.concatenate(each, axis=-1)
    return mx.conv_general(x, w, stride, 0, dilation, groups=groups)


def _pads(padding, kernel, dilation, stride) -> list[tuple[int, int]]:
    n = len(kernel)
    if padding == "valid":
        return [(0, 0)] * n
    if padding == "same":
        if any(s != 1 for s in stride):
            raise RuntimeError("padding='same' is not supported for strided convolutions")
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return [(t // 2, t - t // 2) for t in totals]
    if isinstance(padding, str):
        raise RuntimeError("Invalid padding string: '" + padding + "'")
    padding = spread(padding, n, "padding")
    if any(p < 0 for p in padding):
        raise RuntimeError("negative padding is not supported")
    return [(p, p) for p in padding]


def _output_sizes(spatial, pads, kernel, stride, dilation) -> tuple[int, ...]:
    if any(s <= 0 for s in stride):
        raise RuntimeError("non-positive stride is not supported")
    if any(d <= 0 for d in dilation):
        raise RuntimeError("dilation should be greater than zero")
    padded = [n + a + b for n, (a, b) in zip(spatial, pads, strict=True)]
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    if any(p < r for p, r in zip(padded, reach, strict=True)):
        raise RuntimeError(
            f"Calculated padded input size per channel: ({' x '.join(map(str, padded))}). Kernel "
            "size: "
            f"({' x '.join(map(str, reach))}). Kernel size can't be greater than actual input size"
        )
    return tuple((p - r) // s + 1 for p, r, s in zip(padded, reach, stride, strict=True))


def convolve(n: int, input, weight, bias, stride, padding, dilation, groups):
    """Convolution over n spatial dimensions; input [N, C, *spatial] or [C, *spatial]."""
    name = f"conv{n}d"
    x = _batched(name, input, n)
    if weight.ndim != n + 2:
        raise RuntimeError(
            f"Given weight of size {list(weight.shape)}, expected a {n + 2}-dimensional weight"
        )
    _check(x, weight, bias, groups, weight.shape[1] * groups)
    kernel = weight.shape[2:]
    stride, dilation = spread(stride, n, "stride"), spread(dilation, n, "dilation")
    pads = _pads(padding, kernel, dilation, stride)
    outputs = _output_sizes(x.shape[2:], pads, kernel, stride, dilation)
    dense = n > 1 and groups == 1 and set(dilation) == {1} and 0 not in (*x.shape, *weight.shape)
    if dense and mx.default_device().type == mx.gpu and is_float(x) and x.dtype != mx.complex64:
        return _finished(_by_kernel(x, weight, bias, stride, pads), None, input, n)
    wide_x, w = _channels_last(_computed(x)), _channels_last(_computed(weight))
    if any(p != (0, 0) for p in pads):
        wide_x = mx.pad(wide_x, [(0, 0), *pads, (0, 0)])
    if 0 in wide_x.shape or 0 in w.shape:
        result = mx.zeros((x.shape[0], *outputs, weight.shape[0]), wide_x.dtype)
    else:
        result = _convolved(wide_x, w, stride, dilation, groups, outputs)
    return _finished(result, bias, input, n)


def _finished(result, bias, input, n: int):
    if bias is not None:
        result = result + bias.astype(result.dtype)
    result = _channels_first(result).astype(input.dtype)
    return result if input.ndim == n + 2 else result[0]


def _transposed_by_taps(x, w, stride, dilation, groups, full):
    """x [N, *spatial, C], w [C, *kernel, O / groups]: every product added where it lands in [N,
    *full, O].
    """
    kernel, spatial = w.shape[1:-1], x.shape[1:-1]
    batch, depth, width = x.shape[0], x.shape[-1] // groups, w.shape[-1]
    rows = x.reshape(-1, groups, depth).swapaxes(0, 1)  # [G, rows, C / G]
    w = w.reshape(groups, depth, *kernel, width)
    total = mx.zeros((batch, *full, groups * width), x.dtype)
    for tap in itertools.product(*map(range, kernel)):
        part = matmul(rows, w[(slice(None), slice(None), *tap)])  # [G, rows, O / G]
        part = part.swapaxes(0, 1).reshape(batch, *spatial, groups * width)
        where = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, s, n in zip(tap, dilation, stride, spatial, strict=True)
        )
        total = total.at[(slice(None), *where)].add(part)
    return total


def _transposed_on_gpu(x, w, stride, dilation, groups):
    kernel = w.shape[1:-1]
    n = len(kernel)
    padding = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    parts = []
    for xg, wg in zip(mx.split(x, groups, -1), mx.split(w, groups, 0), strict=True):
        wg = wg.transpose(n + 1, *range(1, n + 1), 0)  # [O / groups, *kernel, C / groups]
        parts.append(mx.conv_general(xg, wg, 1, padding, dilation, stride, flip=True))
    return parts[0] if groups == 1 else mx.concatenate(parts, axis=-1)


def convolve_transposed(
    n: int, input, weight, bias, stride, padding, output_padding, groups, dilation
):
    """The gradient of a convolution as an operation; weight [C, O / groups, *kernel]."""
    x = _batched(f"conv_transpose{n}d", input, n)
    _check_types(x, weight, bias)
    if x.shape[1] != weight.shape[0]:
        raise RuntimeError(
            f"Given transposed=1, weight of size {list(weight.shape)}, expected "
            f"input{list(x.shape)} to "
            f"have {weight.shape[0]} channels, but got {x.shape[1]} channels instead"
        )
    if bias is not None and bias.shape != (weight.shape[1] * groups,):
        raise RuntimeError(
            f"Given transposed=1, weight of size {list(weight.shape)}, expected bias to be "
            f"1-dimensional with {weight.shape[1] * groups} elements, but got bias of size "
            f"{list(bias.shape)} instead"
        )
    kernel = weight.shape[2:]
    stride, dilation = spread(stride, n, "stride"), spread(dilation, n, "dilation")
    padding = spread(padding, n, "padding")
    extra = spread(output_padding, n, "output_padding")
    if any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)):
        raise RuntimeError(
            "output padding must be smaller than either stride or dilation, but got "
            "output_padding: "
            f"{list(extra)}, stride: {list(stride)}, dilation: {list(dilation)}"
        )
    sizes = zip(x.shape[2:], stride, dilation, kernel, strict=True)
    full = tuple((m - 1) * s + d * (k - 1) + 1 for m, s, d, k in sizes)
    wide_x, w = _channels_last(_computed(x)), _channels_last(_computed(weight))
    if 0 in wide_x.shape or 0 in w.shape:
        result = mx.zeros((x.shape[0], *full, weight.shape[1] * groups), wide_x.dtype)
    elif _on_gpu(wide_x):
        result = _transposed_on_gpu(wide_x, w, stride, dilation, groups)
    else:
        result = _transposed_by_taps(wide_x, w, stride, dilation, groups, full)
    outputs = tuple(f - 2 * p + e for f, p, e in zip(full, padding, extra, strict=True))
    if any(o <= 0 for o in outputs):
        raise RuntimeError(
            f"Given input size per channel: ({' x '.join(map(str, x.shape[2:]))}). Calculated "
            "output "
            f"size per channel: ({' x '.join(map(str, outputs))}). Output size is too small"
        )
    result = _cropped(result, padding, outputs)
    return _finished(result, bias, input, n)


def _cropped(x, start, sizes):
    """x[:, start : start + size, ..., :] of each spatial dimension, zeros beyond the end."""
    missing = [max(0, a + o - n) for a, o, n in zip(start, sizes, x.shape[1:-1], strict=True)]
    if any(missing):
        x = mx.pad(x, [(0, 0), *((0, m) for m in missing), (0, 0)])
    return x[(slice(None), *(slice(a, a + o) for a, o in zip(start, sizes, strict=True)))]


def _register(n: int) -> None:
    @op(f"conv{n}d", at=("torch", "F"))
    def conv(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        return convolve(n, input, weight, bias, stride, padding, dilation, groups)

    @op(f"conv_transpose{n}d", at=("torch", "F"))
    def conv_transpose(
        input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
    ):
        return convolve_transposed(
            n, input, weight, bias, stride, padding, output_padding, groups, dilation
        )

    shape = "[N, C, " + ", ".join("DHW"[3 - n :]) + "]"
    conv.__doc__ = f"Cross-correlation of {shape} with [O, C / groups, ...]. torch.conv{n}d."
    conv_transpose.__doc__ = (
        f"Transposed convolution of {shape} with [C, O / groups, ...]. torch.conv_transpose{n}d."
    )


for _n in (1, 2, 3):
    _register(_n)
