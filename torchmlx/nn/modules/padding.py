"""Padding layers."""

from __future__ import annotations

from .. import functional as F
from .module import Module


class _Pad(Module):
    """Pads n dimensions by one number, or by (before, after) from the last dimension backwards."""

    __constants__ = ["padding"]
    n: int
    mode: str

    def __init__(self, padding):
        super().__init__()
        self.padding = (
            tuple(padding) if isinstance(padding, (list, tuple)) else (padding,) * (2 * self.n)
        )

    def forward(self, input):
        return F.pad(input, self.padding, self.mode)

    def extra_repr(self):
        return f"{self.padding}"


class _ConstantPad(_Pad):
    __constants__ = ["padding", "value"]

    def __init__(self, padding, value):
        super().__init__(padding)
        self.value = value

    def forward(self, input):
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self):
        return f"padding={self.padding}, value={self.value}"


class _CircularPad(_Pad):
    mode = "circular"

    def forward(self, input):
        if input.ndim not in (self.n + 1, self.n + 2):
            raise ValueError(
                f"expected {self.n + 1}D or {self.n + 2}D input (got {input.ndim}D input)"
            )
        return super().forward(input)


class _ReflectionPad(_Pad):
    mode = "reflect"


class _ReplicationPad(_Pad):
    mode = "replicate"


class ConstantPad1d(_ConstantPad):
    """A constant around the last 1 dimension. torch.nn.ConstantPad1d."""

    n = 1


class ConstantPad2d(_ConstantPad):
    """A constant around the last 2 dimensions. torch.nn.ConstantPad2d."""

    n = 2


class ConstantPad3d(_ConstantPad):
    """A constant around the last 3 dimensions. torch.nn.ConstantPad3d."""

    n = 3


class CircularPad1d(_CircularPad):
    """The other end around the last 1 dimension. torch.nn.CircularPad1d."""

    n = 1


class CircularPad2d(_CircularPad):
    """The other end around the last 2 dimensions. torch.nn.CircularPad2d."""

    n = 2


class CircularPad3d(_CircularPad):
    """The other end around the last 3 dimensions. torch.nn.CircularPad3d."""

    n = 3


class ReflectionPad1d(_ReflectionPad):
    """The mirror image around the last 1 dimension. torch.nn.ReflectionPad1d."""

    n = 1


class ReflectionPad2d(_ReflectionPad):
    """The mirror image around the last 2 dimensions. torch.nn.ReflectionPad2d."""

    n = 2


class ReflectionPad3d(_ReflectionPad):
    """The mirror image around the last 3 dimensions. torch.nn.ReflectionPad3d."""

    n = 3


class ReplicationPad1d(_ReplicationPad):
    """The edge around the last 1 dimension. torch.nn.ReplicationPad1d."""

    n = 1


class ReplicationPad2d(_ReplicationPad):
    """The edge around the last 2 dimensions. torch.nn.ReplicationPad2d."""

    n = 2


class ReplicationPad3d(_ReplicationPad):
    """The edge around the last 3 dimensions. torch.nn.ReplicationPad3d."""

    n = 3


class ZeroPad1d(ConstantPad1d):
    """Zeros around the last 1 dimension. torch.nn.ZeroPad1d."""

    def __init__(self, padding):
        super().__init__(padding, 0.0)

    def extra_repr(self):
        return f"{self.padding}"


class ZeroPad2d(ConstantPad2d):
    """Zeros around the last 2 dimensions. torch.nn.ZeroPad2d."""

    def __init__(self, padding):
        super().__init__(padding, 0.0)

    def extra_repr(self):
        return f"{self.padding}"


class ZeroPad3d(ConstantPad3d):
    """Zeros around the last 3 dimensions. torch.nn.ZeroPad3d."""

    def __init__(self, padding):
        super().__init__(padding, 0.0)

    def extra_repr(self):
        return f"{self.padding}"
