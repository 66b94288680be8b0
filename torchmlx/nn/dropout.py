"""The functions behind F.dropout and its kin. Masks are torch's CPU generator's."""

from __future__ import annotations

import math
import warnings

import numpy as np

from ..core import dtype as dtypes
from ..core import layout
from ..core.device import CPU
from ..core.op import TABLE, composite
from ..core.tensor import Tensor


def _noise(input: Tensor, shape, p: float, scale: float) -> Tensor:
    """0 where dropped (probability p), `scale` elsewhere, in input's dtype.

    A mask of input's shape is drawn in the order of input's memory, as torch draws it.
    """
    from ..random import dropout_mask

    shape = tuple(shape)
    strides = layout.preserved(shape, input._strides) if shape == tuple(input.shape) else None
    if strides is None:
        mask = dropout_mask(shape, p)
    else:
        order = sorted(range(len(shape)), key=lambda d: -strides[d])
        mask = dropout_mask(tuple(shape[d] for d in order), p)
        mask = mask.permute(*sorted(range(len(shape)), key=order.__getitem__))  # type: ignore[attr-defined]
    return mask.to(device=input.device, dtype=input.dtype) * scale


def _check(p: float) -> None:
    if p < 0.0 or p > 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _drop(input, shape, p: float, training: bool, inplace: bool):
    _check(p)
    if not training or p == 0 or input.numel() == 0:
        return input
    noise = input.new_zeros(()) if p == 1 else _noise(input, shape, p, 1 / (1 - p))
    return input.mul_(noise) if inplace else input * noise


def dropout(input, p=0.5, training=True, inplace=False):
    """Elements zeroed with probability p, the others scaled by 1 / (1 - p)."""
    return _drop(input, input.shape, p, training, inplace)


def _channels(input) -> tuple[int, ...]:
    if input.ndim < 2:
        raise RuntimeError("Feature dropout requires at least 2 dimensions in the input")
    return (*input.shape[:2], *(1,) * (input.ndim - 2))


def _feature(name: str, batched: int, input, p, training, inplace):
    """Whole channels zeroed; an input without batch dimension is lent one."""
    _check(p)
    if input.ndim not in (batched - 1, batched):
        if batched == 3:
            raise RuntimeError(
                f"{name}: Expected 2D or 3D input, but received a {input.ndim}D input. Note that "
                f"{name} exists to provide channel-wise dropout on inputs with 1 spatial "
                "dimension, "
                "a channel dimension, and an optional batch dimension (i.e. 2D or 3D inputs)."
            )
        warnings.warn(
            f"{name}: Received a {input.ndim}-D input to {name}, which is deprecated and will "
            "result "
            "in an error in a future release.",
            stacklevel=3,
        )
    # torch has always read a 3-D input of dropout2d as [N, C, L].
    lend = input.ndim == batched - 1 and batched != 4
    x = input.unsqueeze(0) if lend else input
    if not training or p == 0:
        return input
    result = _drop(x, _channels(x), p, training, inplace)
    return result.squeeze(0) if lend else result


def dropout1d(input, p=0.5, training=True, inplace=False):
    """Channels of [N, C, L] or [C, L] zeroed with probability p."""
    return _feature("dropout1d", 3, input, p, training, inplace)


def dropout2d(input, p=0.5, training=True, inplace=False):
    """Channels of [N, C, H, W] zeroed with probability p."""
    return _feature("dropout2d", 4, input, p, training, inplace)


def dropout3d(input, p=0.5, training=True, inplace=False):
    """Channels of [N, C, D, H, W] or [C, D, H, W] zeroed with probability p."""
    return _feature("dropout3d", 5, input, p, training, inplace)


def feature_dropout(input, p=0.5, training=True, inplace=False):
    """Channels (the second dimension) zeroed with probability p."""
    return _drop(input, _channels(input), p, training, inplace) if training and p else input


_SATURATED = -1.7580993408473766  # -alpha * scale of SELU


def _alpha(input, shape, p: float, training: bool, inplace: bool):
    _check(p)
    if not training or p == 0 or input.numel() == 0:
        return input
    if p == 1:
        return input.mul_(0) if inplace else input * 0
    keep = _noise(input, shape, p, 1.0)
    a = 1 / math.sqrt((_SATURATED**2 * p + 1) * (1 - p))
    shift = (keep - 1) * (-_SATURATED * a) + -_SATURATED * a * p
    result = input * (keep * a) + shift
    return input.copy_(result) if inplace else result


def alpha_dropout(input, p=0.5, training=False, inplace=False):
    """Dropout that keeps mean and variance of SELU's outputs (Klambauer et al. 2017)."""
    return _alpha(input, input.shape, p, training, inplace)


def feature_alpha_dropout(input, p=0.5, training=False, inplace=False):
    """alpha_dropout of whole channels."""
    if not training or p == 0:
        return input
    return _alpha(input, _channels(input), p, training, inplace)


def random_slopes(input, lower: float, upper: float) -> Tensor:
    """A number from [lower, upper) for each element that is not positive, 1 for the others.

    torch draws only for those elements, in order, so their number must be known here.
    """
    from ..random import generator_for

    negative = np.asarray((input <= 0).cpu().numpy())
    slopes = np.ones(negative.shape)
    drawn = generator_for(CPU, None).uniform53(int(negative.sum()))
    slopes[negative] = drawn * (upper - lower) + lower
    return TABLE["from_numpy"].call(slopes).to(device=input.device, dtype=input.dtype)


@composite(at=("torch",))
def native_dropout(input, p, train):
    """(dropout, which elements were kept). torch.native_dropout."""
    if not train or p == 0 or input.numel() == 0:
        return input.clone(), TABLE["ones_like"].call(input, dtype=dtypes.bool_)
    kept = _noise(input, input.shape, p, 1.0) != 0
    return input * kept * (1 / (1 - p) if p < 1 else 0.0), kept


def _in_torch(function) -> None:
    """torch.NAME(input, p, train) and torch.NAME_, for a function of nn.functional."""
    name = function.__name__

    def plain(input, p, train):
        return function(input, p, train)

    def inplace(input, p, train):
        return function(input, p, train, True)

    for suffix, variant in (("", plain), ("_", inplace)):
        variant.__doc__ = f"nn.functional.{name}. torch.{name}{suffix}."
        composite(f"torch.{name}{suffix}", at=("torch",))(variant)


for _function in (dropout, feature_dropout, alpha_dropout, feature_alpha_dropout):
    _in_torch(_function)


def _rrelu(input, lower=1.0 / 8, upper=1.0 / 3, training=False, generator=None):
    """nn.functional.rrelu. torch.rrelu."""
    if not training:
        return TABLE["leaky_relu"].call(input, (lower + upper) / 2)
    return input * random_slopes(input, lower, upper)


composite("torch.rrelu", at=("torch",))(_rrelu)


@composite("torch.rrelu_", at=("torch",))
def rrelu_(input, lower=1.0 / 8, upper=1.0 / 3, training=False, generator=None):
    """In-place nn.functional.rrelu. torch.rrelu_."""
    return input.copy_(_rrelu(input, lower, upper, training, generator))
