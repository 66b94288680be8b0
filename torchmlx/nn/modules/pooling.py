"""Pooling layers."""

from __future__ import annotations

from .. import functional as F
from .conv import sizes
from .module import Module


class _MaxPool(Module):
    __constants__ = ["kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode"]
    n: int

    def __init__(
        self, kernel_size, stride=None, padding=0, dilation=1, return_indices=False,
        ceil_mode=False,
    ):  # fmt: skip
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input):
        pool = getattr(F, f"max_pool{self.n}d")
        return pool(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
            self.return_indices,
        )  # fmt: skip

    def extra_repr(self):
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class _AvgPool(Module):
    __constants__ = ["kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"]
    n: int

    def __init__(
        self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True,
        divisor_override=None,
    ):  # fmt: skip
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, input):
        pool = getattr(F, f"avg_pool{self.n}d")
        return pool(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad, self.divisor_override,
        )  # fmt: skip

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _LPPool(Module):
    __constants__ = ["norm_type", "kernel_size", "stride", "ceil_mode"]
    n: int

    def __init__(self, norm_type, kernel_size, stride=None, ceil_mode=False):
        super().__init__()
        self.norm_type, self.kernel_size = norm_type, kernel_size
        self.stride, self.ceil_mode = stride, ceil_mode

    def forward(self, input):
        pool = getattr(F, f"lp_pool{self.n}d")
        return pool(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self):
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class _Adaptive(Module):
    __constants__ = ["output_size"]
    n: int

    def __init__(self, output_size):
        super().__init__()
        self.output_size = output_size

    def extra_repr(self):
        return f"output_size={self.output_size}"


class _AdaptiveAvgPool(_Adaptive):
    def forward(self, input):
        return getattr(F, f"adaptive_avg_pool{self.n}d")(input, self.output_size)


class _AdaptiveMaxPool(_Adaptive):
    def __init__(self, output_size, return_indices=False):
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input):
        pool = getattr(F, f"adaptive_max_pool{self.n}d")
        return pool(input, self.output_size, self.return_indices)


class MaxPool1d(_MaxPool):
    """Maximum over windows of [N, C, L]. torch.nn.MaxPool1d."""

    n = 1


class MaxPool2d(_MaxPool):
    """Maximum over windows of [N, C, H, W]. torch.nn.MaxPool2d."""

    n = 2


class MaxPool3d(_MaxPool):
    """Maximum over windows of [N, C, D, H, W]. torch.nn.MaxPool3d."""

    n = 3


class AvgPool1d(_AvgPool):
    """Mean over windows of [N, C, L]. torch.nn.AvgPool1d."""

    n = 1

    def __init__(
        self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True
    ):
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        self.kernel_size, self.stride = sizes(self.kernel_size, 1), sizes(self.stride, 1)
        self.padding = sizes(self.padding, 1)

    def forward(self, input):
        return F.avg_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad,
        )  # fmt: skip


class AvgPool2d(_AvgPool):
    """Mean over windows of [N, C, H, W]. torch.nn.AvgPool2d."""

    n = 2


class AvgPool3d(_AvgPool):
    """Mean over windows of [N, C, D, H, W]. torch.nn.AvgPool3d."""

    n = 3


class LPPool1d(_LPPool):
    """Norm of windows of [N, C, L]. torch.nn.LPPool1d."""

    n = 1


class LPPool2d(_LPPool):
    """Norm of windows of [N, C, H, W]. torch.nn.LPPool2d."""

    n = 2


class LPPool3d(_LPPool):
    """Norm of windows of [N, C, D, H, W]. torch.nn.LPPool3d."""

    n = 3


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Mean over regions of [N, C, L]. torch.nn.AdaptiveAvgPool1d."""

    n = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Mean over regions of [N, C, H, W]. torch.nn.AdaptiveAvgPool2d."""

    n = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Mean over regions of [N, C, D, H, W]. torch.nn.AdaptiveAvgPool3d."""

    n = 3


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """Maximum over regions of [N, C, L]. torch.nn.AdaptiveMaxPool1d."""

    n = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """Maximum over regions of [N, C, H, W]. torch.nn.AdaptiveMaxPool2d."""

    n = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """Maximum over regions of [N, C, D, H, W]. torch.nn.AdaptiveMaxPool3d."""

    n = 3


class _MaxUnpool(Module):
    n: int

    def __init__(self, kernel_size, stride=None, padding=0):
        super().__init__()
        self.kernel_size = sizes(kernel_size, self.n)
        self.stride = sizes(kernel_size if stride is None else stride, self.n)
        self.padding = sizes(padding, self.n)

    def forward(self, input, indices, output_size=None):
        unpool = getattr(F, f"max_unpool{self.n}d")
        return unpool(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """Maxima [N, C, L] put back where they came from. torch.nn.MaxUnpool1d."""

    n = 1


class MaxUnpool2d(_MaxUnpool):
    """Maxima [N, C, H, W] put back where they came from. torch.nn.MaxUnpool2d."""

    n = 2


class MaxUnpool3d(_MaxUnpool):
    """Maxima [N, C, D, H, W] put back where they came from. torch.nn.MaxUnpool3d."""

    n = 3
