"""Normalisation: layer, RMS, group, batch, instance norm, and vectors of unit length. Statistics
are float32.
"""

from __future__ import annotations

import math

import mlx.core as mx

from ..core.op import composite, op
from ..core.tensor import Tensor
from ..kernels.group_norm import group_norm as group_norm_kernel
from ..kernels.layer_norm import layer_norm as layer_norm_kernel
from ..kernels.rms_norm import rms_norm as rms_norm_kernel
from ._calling import count, is_float, torch_name, wide
from .reduce import total, vector_norm_of


def _check_trailing(name: str, x: mx.array, shape, weight, bias) -> tuple[int, ...]:
    shape = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    if not shape:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one "
            "element, but got normalized_shape = []"
        )
    for label, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and parameter.shape != shape:
            raise RuntimeError(
                f"Expected {label} to be of same shape as normalized_shape, but got {label} of "
                "shape "
                f"{list(parameter.shape)} and normalized_shape = {list(shape)}"
            )
    if x.shape[x.ndim - len(shape) :] != shape or x.ndim < len(shape):
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape "
            f"[*, {', '.join(map(str, shape))}], but got input of size{list(x.shape)}"
        )
    if not is_float(x):
        raise NotImplementedError(f"\"{name}\" not implemented for '{torch_name(x)}'")
    return shape


@op(at=("torch", "F"))
def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-05, cudnn_enable=True):
    """Zero mean and unit variance over the last dimensions, then weight and bias.

    torch.layer_norm.
    """
    shape = _check_trailing("LayerNormKernelImpl", input, normalized_shape, weight, bias)
    if input.size == 0:
        return input
    x = input.reshape(*input.shape[: input.ndim - len(shape)], math.prod(shape))
    weight, bias = (a if a is None else a.reshape(-1) for a in (weight, bias))
    return layer_norm_kernel(x, weight, bias, eps=eps).reshape(input.shape)


@op(at=("torch", "F"))
def rms_norm(input, normalized_shape, weight=None, eps=None):
    """input / sqrt(mean(input²) + eps) over the last dimensions, times weight; rounded once.

    torch.rms_norm.
    """
    shape = _check_trailing("RMSNorm", input, normalized_shape, weight, None)
    if input.size == 0:
        return input
    x = input.reshape(*input.shape[: input.ndim - len(shape)], math.prod(shape))
    # Not where it is flat: in a token's graph a reshape costs as much as a small kernel.
    weight = weight.reshape(-1) if weight is not None and weight.ndim != 1 else weight
    # torch's default is the resolution of the type it computes in.
    eps = mx.finfo(wide(x).dtype).eps if eps is None else eps
    return rms_norm_kernel(x, weight, eps=eps).reshape(input.shape)


def _moments(x: mx.array, axes) -> tuple[mx.array, mx.array]:
    """Mean and (biased) variance over axes, kept as dimensions of size 1."""
    axes = (axes,) if isinstance(axes, int) else axes
    axes = tuple(a % x.ndim for a in axes)
    elements = count(x.shape, axes)
    mean = total(x, axes, True) / elements
    return mean, total(mx.square(x - mean), axes, True) / elements


def _per_channel(parameter, x: mx.array):
    """A [C] parameter in the shape that meets x [N, C, ...]."""
    return parameter.astype(x.dtype).reshape(1, -1, *(1,) * (x.ndim - 2))


def _affine(x, weight, bias):
    if weight is not None:
        x = x * _per_channel(weight, x)
    return x if bias is None else x + _per_channel(bias, x)


@op("_group_norm", at=())
def _group_norm(input, num_groups, weight, bias, eps):
    if input.size == 0:
        return input
    if not is_float(input):
        raise NotImplementedError(
            f"\"GroupNormKernelImpl\" not implemented for '{torch_name(input)}'"
        )
    return group_norm_kernel(input, weight, bias, groups=num_groups, eps=eps)


@composite(at=("torch", "F"))
def group_norm(input, num_groups, weight=None, bias=None, eps=1e-05, cudnn_enabled=True):
    """Zero mean and unit variance over groups of channels, then weight and bias [C].

    torch.group_norm.
    """
    if input.ndim < 2:
        raise RuntimeError(
            f"Expected at least 2 dimensions for input tensor but received {input.ndim}"
        )
    channels = input.shape[1]
    if num_groups <= 0:
        raise RuntimeError(f"Expected num groups to be greater than 0, got {num_groups}")
    if channels % num_groups:
        raise RuntimeError(
            "Expected number of channels in input to be divisible by num_groups, but got input of "
            f"shape {list(input.shape)} and num_groups={num_groups}"
        )
    for label, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and tuple(parameter.shape) != (channels,):
            raise RuntimeError(
                f"Expected {label} to be a vector of size equal to the number of channels in "
                "input, "
                f"but got {label} of shape {list(parameter.shape)} and input of shape "
                f"{list(input.shape)}"
            )
    return _group_norm(input, num_groups, weight, bias, eps)


@op("_normalised_by", at=())
def _normalised_by(input, mean, variance, weight, bias, eps):
    """Batch norm with given statistics [C]."""
    x = wide(input)
    scale = mx.rsqrt(_per_channel(variance, x) + eps)
    return _affine((x - _per_channel(mean, x)) * scale, weight, bias).astype(input.dtype)


@op("_batch_statistics", at=())
def _batch_statistics(input):
    """Mean and biased variance of each channel, float32 for half precision."""
    x = wide(input)
    mean, variance = _moments(x, (0, *range(2, x.ndim)))
    return mean.reshape(-1), variance.reshape(-1)


@composite(at=("torch",))
def batch_norm(
    input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled=True
):
    """Each channel of [N, C, ...] normalised by the batch's or the running statistics.

    torch.batch_norm.
    """
    if input.ndim == 1 and input.shape[0] == 0:
        return input.clone()
    _check_running(input.shape[1], running_mean, running_var, weight, bias)
    if not training:
        if running_mean is None or running_var is None:
            raise RuntimeError("running_mean and running_var must be defined in evaluation mode")
        return _normalised_by(input, running_mean, running_var, weight, bias, eps)
    mean, variance = _batch_statistics(input)
    elements = input.numel() // input.shape[1] if input.shape[1] else 0
    _update(running_mean, mean, momentum)
    _update(running_var, variance * (elements / max(elements - 1, 1)), momentum)
    return _normalised_by(input, mean, variance, weight, bias, eps)


def _check_running(channels: int, running_mean, running_var, weight, bias) -> None:
    labelled = zip(
        ("running_mean", "running_var", "weight", "bias"),
        (running_mean, running_var, weight, bias),
        strict=True,
    )
    for label, parameter in labelled:
        if parameter is not None and parameter.numel() != channels:
            raise RuntimeError(
                f"{label} should contain {channels} elements not {parameter.numel()}"
            )


def _update(running: Tensor | None, new: Tensor, momentum: float) -> None:
    if running is not None:
        new = new.detach().to(running.dtype)  # type: ignore[attr-defined]
        running.copy_((1 - momentum) * running.detach() + momentum * new)  # type: ignore[attr-defined]


@op("_instance_statistics", at=())
def _instance_statistics(input):
    """Mean and biased variance of each channel of each sample: [N, C]."""
    mean, variance = _moments(wide(input), tuple(range(2, input.ndim)))
    return mean.reshape(input.shape[:2]), variance.reshape(input.shape[:2])


@composite(at=("torch",))
def instance_norm(
    input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps,
    cudnn_enabled=True,
):  # fmt: skip
    """Each channel of each sample of [N, C, ...] normalised on its own. torch.instance_norm."""
    if not use_input_stats:
        return batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
    if running_mean is not None or running_var is not None:
        elements = input.shape[2:].numel()
        mean, variance = _instance_statistics(input)
        _update(running_mean, mean.mean(0), momentum)
        _update(running_var, variance.mean(0) * (elements / max(elements - 1, 1)), momentum)
    return _group_norm(input, input.shape[1], weight, bias, eps)


@op("_normalize", at=())
def _normalize(input, p, dim, eps):
    x = wide(input)
    norm = vector_norm_of(x, p, dim, True)
    # torch rounds the norm to the input's type before it divides.
    norm = wide(mx.maximum(norm.astype(input.dtype), mx.array(eps, input.dtype)))
    return (x / norm).astype(input.dtype)
