"""Channels and space exchanged: pixel and channel shuffles, windows as columns (unfold) and back
(fold).
"""

from __future__ import annotations

import itertools
import math

import mlx.core as mx

from ..core.op import composite, op
from ._calling import wide


@composite(at=("torch", "F"))
def pixel_shuffle(input, upscale_factor):
    """[..., C r², H, W] -> [..., C, H r, W r]. torch.pixel_shuffle."""
    if input.ndim < 3:
        raise RuntimeError(
            "pixel_shuffle expects input to have at least 3 dimensions, but got input with "
            f"{input.ndim} dimension(s)"
        )
    if upscale_factor <= 0:
        raise RuntimeError(
            f"pixel_shuffle expects a positive upscale_factor, but got {upscale_factor}"
        )
    r = upscale_factor
    *lead, channels, height, width = input.shape
    if channels % (r * r):
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square "
            "of "
            f"upscale_factor, but input.size(-3)={channels} is not divisible by {r * r}"
        )
    n = len(lead)
    parts = input.reshape(*lead, channels // (r * r), r, r, height, width)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return parts.permute(order).reshape(*lead, channels // (r * r), height * r, width * r)


@composite(at=("torch", "F"))
def pixel_unshuffle(input, downscale_factor):
    """[..., C, H r, W r] -> [..., C r², H, W]. torch.pixel_unshuffle."""
    if input.ndim < 3:
        raise RuntimeError(
            "pixel_unshuffle expects input to have at least 3 dimensions, but got input with "
            f"{input.ndim} dimension(s)"
        )
    r = downscale_factor
    if r <= 0:
        raise RuntimeError(f"pixel_unshuffle expects a positive downscale_factor, but got {r}")
    *lead, channels, height, width = input.shape
    for name, size, dim in (("height", height, -2), ("width", width, -1)):
        if size % r:
            raise RuntimeError(
                f"pixel_unshuffle expects {name} to be divisible by downscale_factor, but "
                f"input.size({dim})={size} is not divisible by {r}"
            )
    n = len(lead)
    parts = input.reshape(*lead, channels, height // r, r, width // r, r)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return parts.permute(order).reshape(*lead, channels * r * r, height // r, width // r)


@composite(at=("torch", "F"), aliases=("native_channel_shuffle",))
def channel_shuffle(input, groups):
    """Channels [g, C / g] reordered to [C / g, g]. torch.channel_shuffle."""
    if input.ndim < 3:
        raise RuntimeError(
            f"channel_shuffle expects input with > 2 dims, but got input with sizes "
            f"{list(input.shape)}"
        )
    batch, channels, *spatial = input.shape
    if groups <= 0:
        raise RuntimeError(
            f"Number of groups to divide channels in must be positive. Value of groups:{groups}"
        )
    if channels % groups:
        raise RuntimeError(
            f"Number of channels must be divisible by groups. Got {channels} channels and {groups} "
            "groups."
        )
    parts = input.reshape(batch, groups, channels // groups, *spatial)
    return parts.transpose(1, 2).reshape(input.shape)


def _pair(value) -> tuple[int, int]:
    value = (value, value) if isinstance(value, int) else tuple(value)
    return value * 2 if len(value) == 1 else value


class _Windows:
    """Sliding windows over [H, W]: how many fit, and where each tap meets the input."""

    def __init__(self, size, kernel_size, dilation, padding, stride):
        self.size, self.kernel, self.dilation = _pair(size), _pair(kernel_size), _pair(dilation)
        self.padding, self.stride = _pair(padding), _pair(stride)
        self.outputs = tuple(
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, p, d, k, s in zip(
                self.size, self.padding, self.dilation, self.kernel, self.stride, strict=True
            )
        )
        if any(o <= 0 for o in self.outputs):
            raise RuntimeError(
                f"Given input with spatial size {self.size}, kernel_size={self.kernel}, "
                f"dilation={self.dilation}, padding={self.padding}, calculated shape of the "
                "array of "
                f"sliding blocks as {self.outputs}, but its components must be at least one."
            )

    def tile(self) -> bool:
        """Whether each element lies in exactly one window."""
        covered = tuple(o * k for o, k in zip(self.outputs, self.kernel, strict=True))
        plain = self.dilation == (1, 1) and self.padding == (0, 0) and self.stride == self.kernel
        return plain and covered == self.size

    def taps(self):
        """For each tap, the slices of the padded input that it meets."""
        for tap in itertools.product(*map(range, self.kernel)):
            settings = zip(tap, self.dilation, self.outputs, self.stride, strict=True)
            yield tuple(slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, o, s in settings)


@op("_im2col", at=())
def _im2col(input, kernel_size, dilation, padding, stride):
    batch, channels, *size = input.shape
    windows = _Windows(size, kernel_size, dilation, padding, stride)
    x = mx.pad(input, [(0, 0), (0, 0), *((p, p) for p in windows.padding)])
    columns = mx.stack([x[(..., *tap)] for tap in windows.taps()], axis=2)
    return columns.reshape(batch, channels * math.prod(windows.kernel), math.prod(windows.outputs))


@op("_col2im", at=())
def _col2im(input, output_size, kernel_size, dilation, padding, stride):
    windows = _Windows(output_size, kernel_size, dilation, padding, stride)
    taps, blocks = math.prod(windows.kernel), math.prod(windows.outputs)
    batch, rows, columns = input.shape
    if rows % taps:
        raise RuntimeError(
            "Expected size of input's dimension 1 to be divisible by the product of kernel_size, "
            "but "
            f"got input.size(1)={rows} and kernel_size={windows.kernel}."
        )
    if columns != blocks:
        raise RuntimeError(
            f"Given output_size={windows.size}, kernel_size={windows.kernel}, "
            f"dilation={windows.dilation}, padding={windows.padding}, stride={windows.stride}, "
            "expected size of input's dimension 2 to match the calculated number of sliding "
            "blocks "
            f"{windows.outputs[0]} * {windows.outputs[1]} = {blocks}, but got "
            f"input.size(2)={columns}."
        )
    if windows.tile():
        x = input.reshape(batch, rows // taps, *windows.kernel, *windows.outputs)
        return x.transpose(0, 1, 4, 2, 5, 3).reshape(batch, rows // taps, *windows.size)
    x = input.reshape(batch, rows // taps, taps, *windows.outputs)
    padded = [n + 2 * p for n, p in zip(windows.size, windows.padding, strict=True)]
    total = wide(mx.zeros((batch, rows // taps, *padded), x.dtype))
    for i, tap in enumerate(windows.taps()):
        total = total.at[(slice(None), slice(None), *tap)].add(wide(x[:, :, i]))
    crop = (slice(p, p + n) for p, n in zip(windows.padding, windows.size, strict=True))
    return total[(..., *crop)].astype(input.dtype)


@composite("_unfold_windows", at=())
def unfold_windows(input, kernel_size, dilation=1, padding=0, stride=1):
    """Windows of [N, C, H, W] as columns [N, C kh kw, L]. torch.nn.functional.unfold."""
    if input.ndim not in (3, 4):
        raise RuntimeError(
            "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero "
            f"dimensions for input, but got: {list(input.shape)}"
        )
    x = input if input.ndim == 4 else input.unsqueeze(0)
    result = _im2col(x, kernel_size, dilation, padding, stride)
    return result if input.ndim == 4 else result.squeeze(0)


@composite(at=("F",))
def fold(input, output_size, kernel_size, dilation=1, padding=0, stride=1):
    """Columns [N, C kh kw, L] added up in [N, C, *output_size]. torch.nn.functional.fold."""
    if input.ndim not in (2, 3):
        raise RuntimeError(
            "Expected 2D or 3D (batch mode) tensor for input with possibly 0 batch size and "
            "non-zero "
            f"dimensions for input, but got: {list(input.shape)}"
        )
    x = input if input.ndim == 3 else input.unsqueeze(0)
    result = _col2im(x, output_size, kernel_size, dilation, padding, stride)
    return result if input.ndim == 3 else result.squeeze(0)
