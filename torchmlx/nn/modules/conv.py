"""Convolution layers."""

from __future__ import annotations

import math

from .. import functional as F
from .. import init
from .linear import empty
from .module import Module


def sizes(value, n: int) -> tuple:
    """One number n times, or the n given."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,) * n


def same_padding(kernel, dilation) -> list[int]:
    """Padding "same" as F.pad takes it: (before, after) from the last dimension backwards."""
    pads = []
    for k, d in zip(reversed(kernel), reversed(dilation), strict=True):
        pads += [d * (k - 1) // 2, d * (k - 1) - d * (k - 1) // 2]
    return pads


class _Convolution(Module):
    """What convolutions and transposed convolutions share; subclasses set `n` and `transposed`."""

    __constants__ = [
        "stride", "padding", "dilation", "groups", "padding_mode", "output_padding", "in_channels",
        "out_channels", "kernel_size",
    ]  # fmt: skip
    n: int
    transposed = False

    def _set(
        self, in_channels, out_channels, kernel_size, stride, padding, dilation, output_padding,
        groups, bias, padding_mode, device, dtype,
    ):  # fmt: skip
        n = self.n
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if in_channels % groups:
            raise ValueError("in_channels must be divisible by groups")
        if out_channels % groups:
            raise ValueError("out_channels must be divisible by groups")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = sizes(kernel_size, n), sizes(stride, n)
        self.padding = padding if isinstance(padding, str) else sizes(padding, n)
        self.dilation, self.output_padding = sizes(dilation, n), sizes(output_padding, n)
        self.padding_mode = padding_mode
        self._check_padding()
        self._reversed_padding_repeated_twice = self._edges()
        first, second = in_channels, out_channels // groups
        if not self.transposed:
            first, second = out_channels, in_channels // groups
        self.weight = empty(first, second, *self.kernel_size, device=device, dtype=dtype)
        own_bias = empty(out_channels, device=device, dtype=dtype) if bias else None
        self.register_parameter("bias", own_bias)
        self.reset_parameters()

    def _check_padding(self) -> None:
        if isinstance(self.padding, str):
            if self.padding not in ("same", "valid"):
                raise ValueError(
                    f"Invalid padding string {self.padding!r}, should be one of "
                    f"{ {'same', 'valid'} }"
                )
            if self.padding == "same" and any(s != 1 for s in self.stride):
                raise ValueError("padding='same' is not supported for strided convolutions")
        modes = ("zeros", "reflect", "replicate", "circular")
        if self.padding_mode not in modes:
            raise ValueError(
                f"padding_mode must be one of {set(modes)}, but got "
                f"padding_mode='{self.padding_mode}'"
            )

    def _edges(self) -> list[int]:
        if self.padding == "same":
            return same_padding(self.kernel_size, self.dilation)
        if self.padding == "valid":
            return [0] * 2 * self.n
        return [p for p in reversed(self.padding) for _ in range(2)]  # type: ignore[misc]

    def reset_parameters(self) -> None:
        """Uniform in ±1/sqrt(fan_in), weight and bias."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = init._calculate_fan_in_and_fan_out(self.weight)
            if fan_in:
                init.uniform_(self.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))

    def extra_repr(self):
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}"
        )
        if self.padding != (0,) * len(self.padding):
            text += f", padding={self.padding}"
        if self.dilation != (1,) * self.n:
            text += f", dilation={self.dilation}"
        if self.output_padding != (0,) * self.n:
            text += f", output_padding={self.output_padding}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        return (
            text if self.padding_mode == "zeros" else text + f", padding_mode={self.padding_mode}"
        )


class _Conv(_Convolution):
    def __init__(
        self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1,
        bias=True, padding_mode="zeros", device=None, dtype=None,
    ):  # fmt: skip
        super().__init__()
        self._set(
            in_channels, out_channels, kernel_size, stride, padding, dilation, 0, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip

    def _conv_forward(self, input, weight, bias):
        padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        convolve = getattr(F, f"conv{self.n}d")
        return convolve(input, weight, bias, self.stride, padding, self.dilation, self.groups)

    def forward(self, input):
        return self._conv_forward(input, self.weight, self.bias)


class Conv1d(_Conv):
    """Convolution of [N, C, L]. torch.nn.Conv1d."""

    n = 1


class Conv2d(_Conv):
    """Convolution of [N, C, H, W]. torch.nn.Conv2d."""

    n = 2


class Conv3d(_Conv):
    """Convolution of [N, C, D, H, W]. torch.nn.Conv3d."""

    n = 3


class _ConvTranspose(_Convolution):
    transposed = True

    def __init__(
        self, in_channels, out_channels, kernel_size, stride=1, padding=0, output_padding=0,
        groups=1, bias=True, dilation=1, padding_mode="zeros", device=None, dtype=None,
    ):  # fmt: skip
        super().__init__()
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        self._set(
            in_channels, out_channels, kernel_size, stride, padding, dilation, output_padding,
            groups, bias, padding_mode, device, dtype,
        )  # fmt: skip

    def _output_padding(self, input, output_size) -> tuple[int, ...]:
        """What must be added to reach the requested output size."""
        if output_size is None:
            return self.output_padding
        n, lead = self.n, input.ndim - self.n
        output_size = list(output_size)
        if len(output_size) == lead + n:
            output_size = output_size[lead:]
        if len(output_size) != n:
            raise ValueError(
                f"ConvTranspose{n}D: for {input.ndim}D input, output_size must have {n} or "
                f"{lead + n} "
                f"elements (got {len(output_size)})"
            )
        settings = zip(
            input.shape[lead:], self.stride, self.padding, self.dilation, self.kernel_size,
            strict=True,
        )  # fmt: skip
        least = [(m - 1) * s - 2 * p + d * (k - 1) + 1 for m, s, p, d, k in settings]
        most = [m + s - 1 for m, s in zip(least, self.stride, strict=True)]
        if any(not a <= o <= b for a, o, b in zip(least, output_size, most, strict=True)):
            raise ValueError(
                f"requested an output size of {output_size}, but valid sizes range from {least} to "
                f"{most} (for an input of {input.shape[2:]})"
            )
        return tuple(o - a for o, a in zip(output_size, least, strict=True))

    def forward(self, input, output_size=None):
        extra = self._output_padding(input, output_size)
        convolve = getattr(F, f"conv_transpose{self.n}d")
        return convolve(
            input, self.weight, self.bias, self.stride, self.padding, extra, self.groups,
            self.dilation,
        )  # fmt: skip


class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution of [N, C, L]. torch.nn.ConvTranspose1d."""

    n = 1


class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution of [N, C, H, W]. torch.nn.ConvTranspose2d."""

    n = 2


class ConvTranspose3d(_ConvTranspose):
    """Transposed convolution of [N, C, D, H, W]. torch.nn.ConvTranspose3d."""

    n = 3
