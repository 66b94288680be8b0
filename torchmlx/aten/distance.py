"""Distances and similarities of vectors, and the losses made of them."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ..core.layout import broadcast_shapes, wrap_dim
from ..core.op import TABLE, composite, op
from ._calling import chosen, collapse, is_float, wide
from .loss import check_reduction, legacy_reduction
from .reduce import total, vector_norm_of


@op(at=("torch", "F"), promote="x1 x2")
def cosine_similarity(x1, x2, dim=1, eps=1e-8):
    """Sum of x1 x2 along dim over the product of their norms, each at least eps.

    torch.cosine_similarity.
    """
    if not is_float(x1):
        raise RuntimeError(
            "expected common dtype to be floating point, yet common dtype is an integer type"
        )
    a, b = mx.broadcast_arrays(wide(x1), wide(x2))
    if a.ndim == 0:
        return cosine_similarity_of_numbers(a, b, eps).astype(x1.dtype)
    axis = wrap_dim(dim, a.ndim)
    unit = [x / mx.maximum(vector_norm_of(x, 2, axis, True), eps) for x in (a, b)]
    return total(unit[0] * unit[1], (axis,)).astype(x1.dtype)


def cosine_similarity_of_numbers(a, b, eps):
    """cosine_similarity of 0-d arrays."""
    return a / mx.maximum(mx.abs(a), eps) * (b / mx.maximum(mx.abs(b), eps))


@op(at=("torch", "F"), promote="x1 x2")
def pairwise_distance(x1, x2, p=2.0, eps=1e-6, keepdim=False):
    """The p-norm of x1 - x2 + eps along the last dimension. torch.pairwise_distance."""
    difference = wide(x1) - wide(x2) + eps
    return vector_norm_of(difference, p, -1, keepdim).astype(x1.dtype)


def reduced(loss, reduction: str):
    """The loss, its mean or its sum."""
    check_reduction(reduction)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


@composite(at=("F",))
def cosine_embedding_loss(
    input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"
):
    """1 - cosine where target is 1, max(0, cosine - margin) where -1. torch.nn.functional."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if target.ndim not in (0, 1):
        raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
    if input1.ndim != target.ndim + 1 or input2.ndim != target.ndim + 1:
        raise RuntimeError(
            f"{target.ndim}D target tensor expects {target.ndim + 1}D input tensors, but found "
            "inputs "
            f"with sizes {list(input1.shape)} and {list(input2.shape)}."
        )
    return reduced(_cosine_embedding(input1, input2, target, margin), reduction)


@op("_cosine_embedding", at=())
def _cosine_embedding(x1, x2, target, margin):
    a, b = wide(x1), wide(x2)
    tiny = 1e-12  # torch's EPSILON, added to the squared norms
    squares = [total(v * v, (v.ndim - 1,)) + tiny for v in (a, b)]
    cosine = total(a * b, (a.ndim - 1,)) / mx.sqrt(squares[0] * squares[1])
    zero = mx.zeros((), cosine.dtype)
    above = chosen(cosine > margin, cosine - margin, zero)
    loss = chosen(target == 1, 1 - cosine, zero) + chosen(target == -1, above, zero)
    return loss.astype(x1.dtype)


@composite(at=("F",))
def triplet_margin_loss(
    anchor, positive, negative, margin=1.0, p=2, eps=1e-6, swap=False, size_average=None,
    reduce=None, reduction="mean",
):  # fmt: skip
    """max(0, d(anchor, positive) - d(anchor, negative) + margin). torch.nn.functional."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")

    def distance(a, b):
        return pairwise_distance(a, b, p, eps)

    return _triplet(anchor, positive, negative, distance, margin, swap, reduction)


def _triplet(anchor, positive, negative, distance, margin, swap, reduction):
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise RuntimeError(
            "The anchor, positive, and negative tensors are expected to have the same number of "
            f"dimensions, but got: anchor {anchor.ndim}D, positive {positive.ndim}D, and negative "
            f"{negative.ndim}D inputs"
        )
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = TABLE["minimum"].call(far, distance(positive, negative))
    return reduced((margin + near - far).clamp_min(0), reduction)


@composite(at=("F",))
def triplet_margin_with_distance_loss(
    anchor, positive, negative, *, distance_function=None, margin=1.0, swap=False, reduction="mean"
):
    """triplet_margin_loss with any distance. torch.nn.functional."""
    check_reduction(reduction)
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    distance = distance_function or pairwise_distance
    return _triplet(anchor, positive, negative, distance, margin, swap, reduction)


@composite(at=("F",))
def margin_ranking_loss(
    input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"
):
    """max(0, -target * (input1 - input2) + margin). torch.nn.functional.margin_ranking_loss."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if not input1.ndim == input2.ndim == target.ndim:
        raise RuntimeError(
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            "input1: "
            f"{input1.shape}, input2: {input2.shape}, target: {target.shape} "
        )
    return reduced((-target * (input1 - input2) + margin).clamp_min(0), reduction)


@composite(at=("F",))
def hinge_embedding_loss(
    input, target, margin=1.0, size_average=None, reduce=None, reduction="mean"
):
    """input where target is 1, max(0, margin - input) where -1. torch.nn.functional."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    where, zero = TABLE["where"].call, input.new_zeros(())
    hinge = where(target != 1, (margin - input).clamp_min(0), zero)
    return reduced(hinge + where(target != -1, input, zero), reduction)


@composite(at=("F",))
def soft_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    """log(1 + exp(-target * input)). torch.nn.functional.soft_margin_loss."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    broadcast_shapes(input.shape, target.shape)
    return reduced((-target * input).exp().log1p(), reduction)


@composite(at=("F",))
def multilabel_soft_margin_loss(
    input, target, weight=None, size_average=None, reduce=None, reduction="mean"
):
    """Mean over classes of a logistic loss. torch.nn.functional.multilabel_soft_margin_loss."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    logsigmoid = TABLE["logsigmoid"].call
    loss = -(target * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    if weight is not None:
        loss = loss * weight
    return reduced(loss.sum(-1) / input.shape[-1], reduction)


@composite(at=("F",))
def poisson_nll_loss(
    input, target, log_input=True, full=False, size_average=None, eps=1e-8, reduce=None,
    reduction="mean",
):  # fmt: skip
    """exp(input) - target * input, or input - target * log(input + eps). torch.nn.functional."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    loss = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        stirling = target * target.log() - target + 0.5 * (2 * _PI * target).log()
        loss = loss + stirling.masked_fill(target <= 1, 0)
    return reduced(loss, reduction)


_PI = 3.141592653589793


@composite(at=("F",))
def gaussian_nll_loss(input, target, var, full=False, eps=1e-6, reduction="mean"):
    """(log var + (input - target)² / var) / 2, var at least eps. torch.nn.functional."""
    if isinstance(var, float):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        var = input.new_full(input.shape, var)
    elif bool((var < 0).any()):
        raise ValueError("var has negative entry/entries")
    if var.shape != input.shape:
        differing = [v for i, v in zip(input.shape, var.shape, strict=False) if i != v]
        if input.shape[:-1] == var.shape:
            var = var.unsqueeze(-1)
        elif input.ndim != var.ndim or sum(differing) != 1:
            raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(reduction + " is not valid")
    # The gradient knows nothing of the bound.
    var = var - var.detach() + var.detach().clamp_min(eps)
    loss = 0.5 * (var.log() + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.9189385332046727  # log(2 pi) / 2
    return reduced(loss, reduction)


@op(at=("torch", "F"))
def pdist(input, p=2.0):
    """The p-norms of the differences of all pairs of rows [N, D], in order. torch.pdist."""
    if input.ndim != 2:
        raise RuntimeError(f"pdist only supports 2D tensors, got: {input.ndim}D")
    first, second = np.triu_indices(input.shape[0], 1)
    if not first.size:
        return mx.zeros((0,), input.dtype)
    left, right = (mx.take(wide(input), mx.array(i), axis=0) for i in (first, second))
    return vector_norm_of(left - right, p, -1, False).astype(input.dtype)


@op("_multi_margin", at=())
def _multi_margin(input, target, p, margin, weight):
    x = wide(input)
    own = mx.take_along_axis(x, target[:, None], axis=1)
    hinge = mx.maximum(margin - own + x, 0) ** p
    if weight is not None:
        hinge = hinge * mx.take(wide(weight), target)[:, None]
    others = mx.arange(x.shape[1])[None] != target[:, None]
    return (collapse(mx.sum, mx.where(others, hinge, 0), 1) / x.shape[1]).astype(input.dtype)


def _as_rows(input, target, per_class: bool):
    """[C] or [N, C] with its targets as [N, C] and [N] (or [N, C])."""
    if input.ndim not in (0, 1, 2):
        raise RuntimeError(f"inconsistent target size: {list(target.shape)}")
    if 0 in input.shape[-1:]:
        raise RuntimeError(
            "Expected non-empty vector or matrix with optional 0-dim batch size, but got: "
            f"{list(input.shape)}"
        )
    if input.ndim == 2:
        return input, target
    return input.reshape(1, -1), target.reshape(1, -1) if per_class else target.reshape(-1)


def _per_sample(loss, input, reduction: str):
    return loss[0] if reduction == "none" and input.ndim < 2 else reduced(loss, reduction)


@composite(at=("F",))
def multi_margin_loss(
    input, target, p=1, margin=1.0, weight=None, size_average=None, reduce=None, reduction="mean"
):
    """Mean over the other classes of max(0, margin - x[target] + x) ** p. torch.nn.functional."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    rows, classes = _as_rows(input, target, per_class=False)
    return _per_sample(_multi_margin(rows, classes, p, margin, weight), input, reduction)


@op("_multilabel_margin", at=())
def _multilabel_margin(input, target):
    x, classes = wide(input), input.shape[1]
    # The labels of a row end at its first -1.
    counted = mx.cumprod((target >= 0).astype(mx.int32), axis=1) > 0
    labels = mx.where(counted, target, 0)
    is_label = (labels[..., None] == mx.arange(classes)) & counted[..., None]
    others = mx.logical_not(collapse(mx.any, is_label, 1))[:, None]  # [N, 1, C]
    own = mx.take_along_axis(x, labels, axis=1)[..., None]
    hinge = mx.maximum(1 - (own - x[:, None]), 0)
    kept = counted[..., None] & others
    return (collapse(mx.sum, mx.where(kept, hinge, 0), (1, 2)) / classes).astype(input.dtype)


@composite(at=("F",))
def multilabel_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    """Hinges between the labels of a row (up to its first -1) and all others.

    torch.nn.functional.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    rows, labels = _as_rows(input, target, per_class=True)
    return _per_sample(_multilabel_margin(rows, labels), input, reduction)
