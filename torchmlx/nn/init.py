"""torch.nn.init: initial values of parameters, written in place. Random numbers are torch's CPU
generator's.
"""

from __future__ import annotations

import functools
import math
import warnings

from ..core.modes import no_grad
from ..core.op import TABLE
from ..core.tensor import Tensor


def _torch(name: str):
    return TABLE[name].call


def calculate_gain(nonlinearity: str, param=None) -> float:
    """The factor that keeps variances through a nonlinearity. ValueError for an unknown one."""
    if nonlinearity == "sigmoid" or nonlinearity.startswith(("linear", "conv")):
        return 1
    if nonlinearity == "tanh":
        return 5.0 / 3
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "leaky_relu":
        if isinstance(param, bool) or not isinstance(param, (int, float, type(None))):
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity == "selu":
        return 3.0 / 4
    raise ValueError(f"Unsupported nonlinearity {nonlinearity}")


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator=None) -> Tensor:
    """Numbers drawn evenly from [a, b)."""
    with no_grad():
        return tensor.uniform_(a, b, generator=generator)  # type: ignore[attr-defined]


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator=None) -> Tensor:
    """Normally distributed numbers."""
    with no_grad():
        return tensor.normal_(mean, std, generator=generator)  # type: ignore[attr-defined]


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0,
    generator=None,
) -> Tensor:  # fmt: skip
    """Normally distributed numbers, redrawn until they lie in [a, b]."""
    if tensor.is_meta:  # type: ignore[attr-defined]
        return tensor
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. "
            "The distribution of values may be incorrect.",
            stacklevel=2,
        )

    def below(x: float) -> float:
        return (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0

    inside = below((b - mean) / std) - below((a - mean) / std)
    # torch's choice: where few normal numbers fall into [a, b], accept uniform ones by density.
    sample = _redrawn_normal if inside > 0.3 else _accepted_uniform
    with no_grad():
        return sample(tensor, mean, std, a, b, generator)


def _redrawn_normal(tensor, mean, std, a, b, generator) -> Tensor:
    low, high = tensor.new_tensor(a).item(), tensor.new_tensor(b).item()
    result = tensor.normal_(mean, std, generator=generator)
    while True:
        outside = (result < low) | (result > high)
        if not outside.any():
            break
        drawn = _torch("empty_like")(result).normal_(mean, std, generator=generator)
        result = _torch("where")(outside, drawn, result)
    return tensor if result is tensor else tensor.copy_(result)


def _accepted_uniform(tensor, mean, std, a, b, generator) -> Tensor:
    empty_like, where = _torch("empty_like"), _torch("where")
    mode = max(a, min(mean, b))
    peak = -0.5 * ((mode - mean) / std) ** 2

    def rejected(numbers):
        density = numbers.clone().sub_(mean).div_(std).pow_(2).mul_(-0.5).sub_(peak)
        return empty_like(tensor).uniform_(generator=generator).log_().gt(density)

    result = tensor.uniform_(a, b, generator=generator)
    pending = rejected(result)
    while pending.any():
        drawn = empty_like(tensor).uniform_(a, b, generator=generator)
        result = where(pending, drawn, result)
        pending = where(pending, rejected(drawn), pending)
    return tensor if result is tensor else tensor.copy_(result)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Every element `val`."""
    with no_grad():
        return tensor.fill_(val)  # type: ignore[attr-defined]


def ones_(tensor: Tensor) -> Tensor:
    """Every element one."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Every element zero."""
    with no_grad():
        return tensor.zero_()  # type: ignore[attr-defined]


def eye_(tensor: Tensor) -> Tensor:
    """The identity matrix."""
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    with no_grad():
        return tensor.copy_(_torch("eye")(*tensor.shape))  # type: ignore[attr-defined]


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Convolution weights [O, I, *kernel] that pass each channel of each group through."""
    if tensor.ndim not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    if tensor.shape[0] % groups:
        raise ValueError("dim 0 must be divisible by groups")
    per_group = tensor.shape[0] // groups
    centre = tuple(n // 2 for n in tensor.shape[2:])
    with no_grad():
        tensor.zero_()  # type: ignore[attr-defined]
        for g in range(groups):
            for d in range(min(per_group, tensor.shape[1])):
                tensor[(g * per_group + d, d, *centre)] = 1  # type: ignore[index]
    return tensor


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    if tensor.ndim < 2:
        raise ValueError(
            "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions"
        )
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def _fan(tensor: Tensor, mode: str) -> int:
    modes = ["fan_in", "fan_out"]
    if mode.lower() not in modes:
        raise ValueError(f"Mode {mode.lower()} not supported, please use one of {modes}")
    return _calculate_fan_in_and_fan_out(tensor)[modes.index(mode.lower())]


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator=None) -> Tensor:
    """Uniform numbers of variance 2 gain² / (fan_in + fan_out) (Glorot and Bengio 2010)."""
    bound = math.sqrt(3.0) * (gain * math.sqrt(2.0 / sum(_calculate_fan_in_and_fan_out(tensor))))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator=None) -> Tensor:
    """Normal numbers of variance 2 gain² / (fan_in + fan_out) (Glorot and Bengio 2010)."""
    std = gain * math.sqrt(2.0 / sum(_calculate_fan_in_and_fan_out(tensor)))
    return normal_(tensor, 0.0, std, generator)


def _kaiming_std(tensor, a, mode, nonlinearity) -> float | None:
    if 0 in tensor.shape:
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=3)
        return None
    return calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode))


def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode="fan_in", nonlinearity="leaky_relu", generator=None
) -> Tensor:
    """Uniform numbers of variance gain² / fan (He et al. 2015)."""
    std = _kaiming_std(tensor, a, mode, nonlinearity)
    if std is None:
        return tensor
    bound = math.sqrt(3.0) * std
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode="fan_in", nonlinearity="leaky_relu", generator=None
) -> Tensor:
    """Normal numbers of variance gain² / fan (He et al. 2015)."""
    std = _kaiming_std(tensor, a, mode, nonlinearity)
    return tensor if std is None else normal_(tensor, 0, std, generator)


def orthogonal_(tensor: Tensor, gain: float = 1, generator=None) -> Tensor:
    """Orthonormal rows or columns of [size(0), the rest], times gain (Saxe et al. 2013)."""
    if tensor.ndim < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if 0 in tensor.shape or tensor.is_meta:  # type: ignore[attr-defined]
        return tensor
    rows = tensor.shape[0]
    columns = math.prod(tensor.shape[1:])
    with no_grad():
        drawn = tensor.new_empty((rows, columns)).normal_(0, 1, generator=generator)  # type: ignore[attr-defined]
        from .. import linalg

        q, r = linalg.qr(drawn.t() if rows < columns else drawn)  # type: ignore[attr-defined]
        q = q * r.diagonal().sign()  # a unique Q: the diagonal of R made positive
        tensor.copy_((q.t() if rows < columns else q).reshape(tensor.shape))  # type: ignore[attr-defined]
        return tensor.mul_(gain)  # type: ignore[attr-defined]


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator=None) -> Tensor:
    """A normally distributed matrix with a fraction `sparsity` of each column set to zero."""
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    if tensor.is_meta:  # type: ignore[attr-defined]
        return tensor
    rows, columns = tensor.shape
    zeros = math.ceil(sparsity * rows)
    with no_grad():
        normal_(tensor, 0, std, generator)
        for column in range(columns):
            tensor[_torch("randperm")(rows)[:zeros], column] = 0  # type: ignore[index]
    return tensor


def _deprecated(function):
    @functools.wraps(function)
    def renamed(*args, **kwargs):
        warnings.warn(
            f"`nn.init.{name}` is now deprecated in favor of `nn.init.{function.__name__}`.",
            FutureWarning,
            stacklevel=2,
        )
        return function(*args, **kwargs)

    name = renamed.__name__ = function.__name__[:-1]
    return renamed


uniform, normal, constant = map(_deprecated, (uniform_, normal_, constant_))
eye, dirac, orthogonal, sparse = map(_deprecated, (eye_, dirac_, orthogonal_, sparse_))
xavier_uniform, xavier_normal = map(_deprecated, (xavier_uniform_, xavier_normal_))
kaiming_uniform, kaiming_normal = map(_deprecated, (kaiming_uniform_, kaiming_normal_))
