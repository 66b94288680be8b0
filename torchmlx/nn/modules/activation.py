"""Activation functions as modules; attention.py holds MultiheadAttention, which torch puts here."""

from __future__ import annotations

from .. import functional as F
from .. import init as initial
from .attention import MultiheadAttention as MultiheadAttention
from .linear import empty
from .module import Module


class _InPlace(Module):
    """An activation with the option `inplace`, after settings that `repr` shows first."""

    __constants__ = ["inplace"]
    shown: tuple[str, ...] = ()

    def __init__(self, inplace: bool = False):
        super().__init__()
        self.inplace = inplace

    def extra_repr(self):
        settings = [f"{name}={getattr(self, name)}" for name in self.shown]
        return ", ".join([*settings, *(["inplace=True"] if self.inplace else [])])


class _Dim(Module):
    """An activation along one dimension."""

    __constants__ = ["dim"]

    def __init__(self, dim: int | None = None):
        super().__init__()
        self.dim = dim

    def extra_repr(self):
        return f"dim={self.dim}"


class _Plain(Module):
    """An activation without settings; torch takes and ignores any arguments."""

    def __init__(self, *args, **kwargs):
        super().__init__()


class Threshold(_InPlace):
    """input where it exceeds the threshold, else value. torch.nn.Threshold."""

    shown = ("threshold", "value")

    def __init__(self, threshold: float, value: float, inplace: bool = False):
        super().__init__(inplace)
        self.threshold, self.value = threshold, value

    def forward(self, input):
        return F.threshold(input, self.threshold, self.value, self.inplace)


class ReLU(_InPlace):
    """max(input, 0). torch.nn.ReLU."""

    def forward(self, input):
        return F.relu(input, self.inplace)


class RReLU(_InPlace):
    """LeakyReLU with a random slope while training. torch.nn.RReLU."""

    shown = ("lower", "upper")

    def __init__(self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False):
        super().__init__(inplace)
        self.lower, self.upper = lower, upper

    def forward(self, input):
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)


class Hardtanh(_InPlace):
    """input limited to [min_val, max_val]. torch.nn.Hardtanh."""

    shown = ("min_val", "max_val")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False):
        super().__init__(inplace)
        if min_val >= max_val:
            raise AssertionError("max_val must be larger than min_val")
        self.min_val, self.max_val = min_val, max_val

    def forward(self, input):
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)


class ReLU6(Hardtanh):
    """input limited to [0, 6]. torch.nn.ReLU6."""

    shown = ()

    def __init__(self, inplace: bool = False):
        super().__init__(0.0, 6.0, inplace)


class Sigmoid(_Plain):
    """1 / (1 + exp(-input)). torch.nn.Sigmoid."""

    def forward(self, input):
        return input.sigmoid()


class Tanh(_Plain):
    """The hyperbolic tangent. torch.nn.Tanh."""

    def forward(self, input):
        return input.tanh()


class _Quiet(_InPlace):
    """An activation whose `repr` does not show `inplace`."""

    def extra_repr(self):
        return ""


class Hardsigmoid(_Quiet):
    """relu6(input + 3) / 6. torch.nn.Hardsigmoid."""

    def forward(self, input):
        return F.hardsigmoid(input, self.inplace)


class Hardswish(_Quiet):
    """input * relu6(input + 3) / 6. torch.nn.Hardswish."""

    def forward(self, input):
        return F.hardswish(input, self.inplace)


class SiLU(_InPlace):
    """input * sigmoid(input). torch.nn.SiLU."""

    def forward(self, input):
        return F.silu(input, self.inplace)


class Mish(_InPlace):
    """input * tanh(softplus(input)). torch.nn.Mish."""

    def forward(self, input):
        return F.mish(input, self.inplace)


class ELU(_InPlace):
    """input where positive, else alpha * (exp(input) - 1). torch.nn.ELU."""

    shown = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False):
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, input):
        return F.elu(input, self.alpha, self.inplace)


class CELU(_InPlace):
    """input where positive, else alpha * (exp(input / alpha) - 1). torch.nn.CELU."""

    shown = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False):
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, input):
        return F.celu(input, self.alpha, self.inplace)


class SELU(_InPlace):
    """The self-normalising exponential linear unit. torch.nn.SELU."""

    def forward(self, input):
        return F.selu(input, self.inplace)


class LeakyReLU(_InPlace):
    """input where positive, else negative_slope * input. torch.nn.LeakyReLU."""

    shown = ("negative_slope",)

    def __init__(self, negative_slope: float = 1e-2, inplace: bool = False):
        super().__init__(inplace)
        self.negative_slope = negative_slope

    def forward(self, input):
        return F.leaky_relu(input, self.negative_slope, self.inplace)


class GLU(_Dim):
    """The first half of a dimension times the sigmoid of the second. torch.nn.GLU."""

    def __init__(self, dim: int = -1):
        super().__init__(dim)

    def forward(self, input):
        return F.glu(input, self.dim)


class GELU(Module):
    """input * Phi(input), exact or by tanh. torch.nn.GELU."""

    __constants__ = ["approximate"]

    def __init__(self, approximate: str = "none"):
        super().__init__()
        self.approximate = approximate

    def forward(self, input):
        return F.gelu(input, approximate=self.approximate)

    def extra_repr(self):
        return f"approximate={self.approximate!r}"


class Hardshrink(Module):
    """Zero within [-lambd, lambd], else input. torch.nn.Hardshrink."""

    __constants__ = ["lambd"]

    def __init__(self, lambd: float = 0.5):
        super().__init__()
        self.lambd = lambd

    def forward(self, input):
        return F.hardshrink(input, self.lambd)

    def extra_repr(self):
        return f"{self.lambd}"


class Softshrink(Hardshrink):
    """input moved towards zero by lambd. torch.nn.Softshrink."""

    def forward(self, input):
        return F.softshrink(input, self.lambd)


class LogSigmoid(_Plain):
    """log(sigmoid(input)). torch.nn.LogSigmoid."""

    def forward(self, input):
        return F.logsigmoid(input)


class Softplus(Module):
    """log(1 + exp(beta * input)) / beta. torch.nn.Softplus."""

    __constants__ = ["beta", "threshold"]

    def __init__(self, beta: float = 1.0, threshold: float = 20.0):
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input):
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self):
        return f"beta={self.beta}, threshold={self.threshold}"


class PReLU(Module):
    """LeakyReLU whose slope is a parameter, one or one a channel. torch.nn.PReLU."""

    __constants__ = ["num_parameters"]

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device=None, dtype=None):
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = empty(num_parameters, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every slope `init`."""
        initial.constant_(self.weight, self.init)

    def forward(self, input):
        return F.prelu(input, self.weight)

    def extra_repr(self):
        return f"num_parameters={self.num_parameters}"


class Softsign(_Plain):
    """input / (1 + |input|). torch.nn.Softsign."""

    def forward(self, input):
        return F.softsign(input)


class Tanhshrink(_Plain):
    """input - tanh(input). torch.nn.Tanhshrink."""

    def forward(self, input):
        return F.tanhshrink(input)


class Softmin(_Dim):
    """softmax of -input. torch.nn.Softmin."""

    def forward(self, input):
        return F.softmin(input, self.dim)


class Softmax(_Dim):
    """exp(input) over its sum along dim. torch.nn.Softmax."""

    def forward(self, input):
        return F.softmax(input, self.dim)


class Softmax2d(_Plain):
    """Softmax over the channels of [N, C, H, W] or [C, H, W]. torch.nn.Softmax2d."""

    def forward(self, input):
        if input.ndim not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.ndim}D instead")
        return F.softmax(input, -3)


class LogSoftmax(_Dim):
    """log(softmax(input)). torch.nn.LogSoftmax."""

    def forward(self, input):
        return F.log_softmax(input, self.dim)
