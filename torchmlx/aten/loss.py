"""Losses: computed and reduced in float32 for half precision, rounded once."""

from __future__ import annotations

import warnings

import mlx.core as mx

from ..core import dtype as dtypes
from ..core.op import TABLE, composite, op
from ..kernels.log_softmax import log_softmax
from ._calling import chosen, collapse, wide
from .elementary import exp, logaddexp
from .reduce import total


def legacy_reduction(size_average, reduce, reduction: str) -> str:
    """`reduction`, unless the arguments it replaced are given."""
    if size_average is None and reduce is None:
        return reduction
    warnings.warn(
        "size_average and reduce args will be deprecated, please use reduction instead.",
        stacklevel=4,
    )
    if reduce is False:
        return "none"
    return "sum" if size_average is False else "mean"


def check_reduction(reduction: str) -> None:
    """ValueError for anything but none, mean and sum."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")


def _reduced(loss: mx.array, reduction: str, dtype) -> mx.array:
    if reduction != "none":
        sum_ = _sum(loss)
        loss = sum_ / loss.size if reduction == "mean" else sum_
    return loss.astype(dtype)


def _sum(x: mx.array) -> mx.array:
    return total(x, tuple(range(x.ndim)))


# ---- between numbers


@op("_mse_loss", at=(), promote="input target")
def _mse_loss(input, target, reduction):
    return _reduced(mx.square(wide(input) - wide(target)), reduction, input.dtype)


@op("_l1_loss", at=(), promote="input target")
def _l1_loss(input, target, reduction):
    return _reduced(mx.abs(wide(input) - wide(target)), reduction, input.dtype)


@op("_smooth_l1_loss", at=(), promote="input target")
def _smooth_l1_loss(input, target, reduction, beta):
    d = mx.abs(wide(input) - wide(target))
    if beta > 0:
        d = mx.where(d < beta, 0.5 * d * d / beta, d - 0.5 * beta)
    return _reduced(d, reduction, input.dtype)


@op("_huber_loss", at=(), promote="input target")
def _huber_loss(input, target, reduction, delta):
    d = mx.abs(wide(input) - wide(target))
    d = mx.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta))
    return _reduced(d, reduction, input.dtype)


def _warn_sizes(input, target) -> None:
    if input.shape != target.shape:
        warnings.warn(
            f"Using a target size ({target.shape}) that is different to the input size "
            f"({input.shape}). This will likely lead to incorrect results due to broadcasting. "
            "Please ensure they have the same size.",
            stacklevel=3,
        )


def _weighted(loss, weight, reduction: str):
    if weight.shape != loss.shape:
        raise ValueError("Weights and input must have the same size.")
    loss = loss * weight
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / weight.sum()


def _difference(name: str, compute):
    @composite(name, at=("F",))
    def loss(input, target, size_average=None, reduce=None, reduction="mean", weight=None):
        reduction = legacy_reduction(size_average, reduce, reduction)
        check_reduction(reduction)
        _warn_sizes(input, target)
        if weight is not None:
            return _weighted(compute(input, target, "none"), weight, reduction)
        return compute(input, target, reduction)

    loss.__doc__ = f"torch.nn.functional.{name}."


_difference("mse_loss", _mse_loss)
_difference("l1_loss", _l1_loss)


@composite(at=("F",))
def smooth_l1_loss(input, target, size_average=None, reduce=None, reduction="mean", beta=1.0):
    """Squared below beta, absolute above (Girshick 2015). torch.nn.functional.smooth_l1_loss."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    check_reduction(reduction)
    _warn_sizes(input, target)
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    return _smooth_l1_loss(input, target, reduction, beta)


@composite(at=("F",))
def huber_loss(input, target, reduction="mean", delta=1.0, weight=None):
    """Squared below delta, linear above (Huber 1964). torch.nn.functional.huber_loss."""
    check_reduction(reduction)
    _warn_sizes(input, target)
    if delta <= 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    if weight is not None:
        return _weighted(_huber_loss(input, target, "none", delta), weight, reduction)
    return _huber_loss(input, target, reduction, delta)


# ---- classification


def _per_class(weight, like: mx.array, axis: int):
    return wide(weight).reshape(-1, *(1,) * (like.ndim - 1 - axis))


def _picked(log_probabilities, target, axis: int):
    """The entry of each target class; `target` has log_probabilities' shape without `axis`."""
    index = mx.expand_dims(target, axis)
    return mx.squeeze(mx.take_along_axis(log_probabilities, index, axis=axis), axis)


def _nll(logp, target, weight, ignore_index: int, reduction: str, smoothing: float = 0.0):
    """Negative log likelihood with label smoothing, in logp's float32 or float64."""
    axis = 1 if logp.ndim > 1 else 0
    kept = target != ignore_index
    safe = mx.where(kept, target, mx.array(0, target.dtype))
    if logp.shape[axis] == 0:
        return mx.zeros(target.shape if reduction == "none" else (), logp.dtype)
    of_target = kept.astype(logp.dtype)
    if weight is not None:
        of_target = of_target * mx.take(wide(weight), safe, axis=0)
    loss = -_picked(logp, safe, axis) * of_target
    loss = chosen(kept, loss, mx.array(0, loss.dtype))
    if smoothing:
        classes = logp.shape[axis]
        everywhere = logp if weight is None else logp * _per_class(weight, logp, axis)
        even = chosen(kept, -collapse(mx.sum, everywhere, axis), mx.array(0, loss.dtype))
        loss = (1 - smoothing) * loss + smoothing / classes * even
    if reduction == "none":
        return loss
    return _sum(loss) if reduction == "sum" else _sum(loss) / _sum(of_target)


@op("_nll_loss", at=())
def _nll_loss(input, target, weight, ignore_index, reduction):
    return _nll(wide(input), target, weight, ignore_index, reduction).astype(input.dtype)


@op("_cross_entropy", at=())
def _cross_entropy(input, target, weight, ignore_index, reduction, smoothing):
    logp = log_softmax(wide(input), 1 if input.ndim > 1 else 0)
    return _nll(logp, target, weight, ignore_index, reduction, smoothing).astype(input.dtype)


@op("_soft_cross_entropy", at=())
def _soft_cross_entropy(input, target, weight, reduction, smoothing):
    axis = 1 if input.ndim > 1 else 0
    x, target = wide(input), wide(target)
    classes = x.shape[axis]
    if smoothing:
        target = target * (1 - smoothing) + smoothing / classes
    loss = log_softmax(x, axis) * target
    if weight is not None:
        loss = loss * _per_class(weight, loss, axis)
    loss = -collapse(mx.sum, loss, axis)
    if reduction == "mean":  # over all positions, whatever the weights
        loss = _sum(loss) / mx.array(loss.size if x.size else 0, loss.dtype)
    elif reduction == "sum":
        loss = _sum(loss)
    return loss.astype(input.dtype)


def _check_targets(input, target, weight, ignore_index: int) -> None:
    axis = 1 if input.ndim > 1 else 0
    classes = input.shape[axis]
    expected = (*input.shape[:axis], *input.shape[axis + 1 :])
    if input.ndim == 0:
        raise ValueError(f"Expected 1 or more dimensions (got {input.ndim})")
    if input.ndim > 1 and target.ndim and input.shape[0] != target.shape[0]:
        raise ValueError(
            f"Expected input batch_size ({input.shape[0]}) to match target batch_size "
            f"({target.shape[0]})."
        )
    if tuple(target.shape) != expected:
        raise RuntimeError(
            f"Expected target size {list(expected)}, got {list(target.shape)}"
            if input.ndim > 2
            else "0D or 1D target tensor expected, multi-target not supported"
        )
    if target.dtype not in (dtypes.int64, dtypes.uint8):
        raise RuntimeError(f"expected scalar type Long but found {target.dtype.torch_name}")
    if weight is not None and tuple(weight.shape) != (classes,):
        raise RuntimeError(
            "weight tensor should be defined either for all "
            f"{classes} classes or no classes but got weight tensor of shape: {list(weight.shape)}"
        )
    if target.device.type != "cpu" or not target.numel():
        return
    kept = target[target != ignore_index]
    for bad in (kept.min().item(), kept.max().item()) if kept.numel() else ():
        if not 0 <= bad < classes:
            raise IndexError(f"Target {bad} is out of bounds.")


@composite(at=("F",))
def nll_loss(
    input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"
):
    """-input[n, target[n], ...] for log-probabilities [N, C, ...]. torch.nn.functional.nll_loss."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    check_reduction(reduction)
    _check_targets(input, target, weight, ignore_index)
    return _nll_loss(input, target, weight, ignore_index, reduction)


@composite(at=("F",))
def cross_entropy(
    input, target, weight=None, size_average=None, ignore_index=-100, reduce=None,
    reduction="mean", label_smoothing=0.0,
):  # fmt: skip
    """Cross entropy of logits [N, C, ...] and class indices [N, ...] or probabilities [N, C, ...].

    torch.nn.functional.cross_entropy.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    check_reduction(reduction)
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    if input.shape == target.shape:
        if not target.dtype.is_floating_point:
            raise RuntimeError(
                "Expected floating point type for target with class probabilities, got "
                f"{target.dtype.torch_name}"
            )
        if ignore_index >= 0:
            raise RuntimeError("ignore_index is not supported for floating point target")
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    _check_targets(input, target, weight, ignore_index)
    return _cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)


# ---- binary classification, distributions


@composite(at=("F",))
def linear_cross_entropy(
    input, linear_weight, target, *, linear_bias=None, weight=None, reduction="mean",
    ignore_index=None, label_smoothing=0.0, options=None,
):  # fmt: skip
    """cross_entropy of linear(input, linear_weight [C, *more, in]); `options` (chunks) are ignored.

    torch.nn.functional.linear_cross_entropy.
    """
    if linear_weight.ndim < 2:
        raise RuntimeError(
            f"expected linear_weight with dimensionality at least 2, got {linear_weight.ndim}"
        )
    if input.ndim not in (1, 2):
        raise RuntimeError(f"expected input with dimensionality 1 or 2, got {input.ndim}")
    classes, *more, features = linear_weight.shape
    if more and input.ndim == 1:
        raise RuntimeError(
            f"K-dimensional loss defined by linear_weight shape {tuple(linear_weight.shape)} "
            f"requires batched input, (N, {features}), got unbatched input with shape "
            f"{tuple(input.shape)}"
        )
    rows = linear_weight.reshape(-1, features)
    bias = None if linear_bias is None else linear_bias.reshape(-1)
    logits = TABLE["linear"].call(input, rows, bias)
    logits = logits.reshape(*input.shape[:-1], classes, *more)
    ignored = -100 if ignore_index is None else ignore_index
    return cross_entropy(
        logits, target, weight, ignore_index=ignored, reduction=reduction,
        label_smoothing=label_smoothing,
    )  # fmt: skip


@mx.custom_function
def _binary(x, t):
    """The cross entropy of each element, logarithms not below -100."""
    low = mx.array(-100, x.dtype)
    return -(t * mx.maximum(mx.log(x), low) + (1 - t) * mx.maximum(mx.log1p(-x), low))


@_binary.vjp
def _binary_slopes(primals, g, result):
    """torch's: a denominator of at least 1e-12, and logarithms as they are."""
    x, t = primals
    return g * (x - t) / mx.maximum((1 - x) * x, 1e-12), g * (mx.log1p(-x) - mx.log(x))


@op("_bce", at=())
def _bce(input, target, weight, reduction):
    x, t = wide(input), wide(target)
    loss = _binary(*mx.broadcast_arrays(x, t))
    if weight is not None:
        loss = loss * wide(weight)
    return _reduced(loss, reduction, input.dtype)


@composite(at=("F",))
def binary_cross_entropy(
    input, target, weight=None, size_average=None, reduce=None, reduction="mean"
):
    """-(t log x + (1 - t) log(1 - x)), logarithms not below -100.

    torch.nn.functional.binary_cross_entropy.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    check_reduction(reduction)
    if input.shape != target.shape:
        raise ValueError(
            f"Using a target size ({target.shape}) that is different to the input size "
            f"({input.shape}) is deprecated. Please ensure they have the same size."
        )
    if input.dtype is not target.dtype:
        raise RuntimeError(
            f"Found dtype {target.dtype.torch_name} but expected {input.dtype.torch_name}"
        )
    if input.device.type == "cpu" and not bool(((input >= 0) & (input <= 1)).all()):
        raise RuntimeError("all elements of input should be between 0 and 1")
    return _bce(input, target, weight, reduction)


@op("_bce_with_logits", at=(), promote="input target")
def _bce_with_logits(input, target, weight, pos_weight, reduction):
    x, t = wide(input), wide(target)
    softplus = logaddexp(mx.array(0, x.dtype), -x)
    factor = 1 if pos_weight is None else (wide(pos_weight) - 1) * t + 1
    loss = (1 - t) * x + factor * softplus
    if weight is not None:
        loss = loss * wide(weight)
    return _reduced(loss, reduction, input.dtype)


@composite(at=("F",))
def binary_cross_entropy_with_logits(
    input, target, weight=None, size_average=None, reduce=None, reduction="mean", pos_weight=None
):
    """binary_cross_entropy of sigmoid(input), without overflow. torch.nn.functional."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    check_reduction(reduction)
    if input.shape != target.shape:
        raise ValueError(
            f"Target size ({target.shape}) must be the same as input size ({input.shape})"
        )
    return _bce_with_logits(input, target, weight, pos_weight, reduction)


@op("_kl_div", at=(), promote="input target")
def _kl_div(input, target, reduction, log_target):
    x, t = wide(input), wide(target)
    if log_target:
        loss = exp(t) * (t - x)
    else:
        positive = mx.where(t > 0, t, mx.array(1, t.dtype))
        loss = mx.where(t == 0, mx.array(0, t.dtype), t * mx.log(positive)) - t * x
        loss = mx.where(t < 0, mx.array(float("nan"), t.dtype), loss)
    return _reduced(loss, reduction, input.dtype)


@composite(at=("F",))
def kl_div(input, target, size_average=None, reduce=None, reduction="mean", log_target=False):
    """Kullback-Leibler divergence of log-probabilities `input` from `target`.

    torch.nn.functional.kl_div.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    if reduction == "batchmean":
        result = _kl_div(input, target, "sum", log_target)
        return result / input.shape[0] if input.ndim else result
    if reduction == "mean":
        warnings.warn(
            "reduction: 'mean' divides the total loss by both the batch size and the support size."
            "'batchmean' divides only by the batch size, and aligns with the KL div math "
            "definition."
            "'mean' will be changed to behave the same as 'batchmean' in the next major release.",
            stacklevel=2,
        )
    check_reduction(reduction)
    return _kl_div(input, target, reduction, log_target)
