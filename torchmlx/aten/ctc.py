"""Connectionist temporal classification (Graves et al. 2006)."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

from ..core.op import composite, op
from ..core.tensor import Tensor
from ._calling import collapse, wide
from .elementary import exp
from .loss import check_reduction


def _lengths(lengths) -> list[int]:
    return [int(n) for n in (lengths.tolist() if isinstance(lengths, Tensor) else lengths)]


def _extended(targets: np.ndarray, lengths: list[int], blank: int):
    """Targets with blanks around every label [N, 2 S + 1], and where a step may skip a blank."""
    longest = 2 * max(lengths, default=0) + 1
    labels = np.full((len(lengths), longest), blank, np.int64)
    for row, (target, n) in enumerate(zip(targets, lengths, strict=True)):
        labels[row, 1 : 2 * n : 2] = target[:n]
    skip = np.zeros(labels.shape, bool)
    skip[:, 2:] = (labels[:, 2:] != blank) & (labels[:, 2:] != labels[:, :-2])
    return labels, skip


def _rows(targets: Tensor, lengths: list[int]) -> np.ndarray:
    """Targets [N, S], or all of them in one row, as padded rows."""
    values = np.array(targets.tolist(), np.int64)
    if values.ndim == 2:
        return values
    rows = np.zeros((len(lengths), max(lengths, default=0)), np.int64)
    ends = np.cumsum(lengths)
    for row, n, end in zip(rows, lengths, ends, strict=True):
        row[:n] = values[end - n : end]
    return rows


def _shifted(x: mx.array, by: int) -> mx.array:
    return mx.pad(x, [(0, 0), (by, 0)], constant_values=mx.array(-math.inf, x.dtype))[
        :, : x.shape[1]
    ]


@op("_ctc", at=())
def _ctc(log_probs, labels, skip, input_lengths, target_lengths):
    """Negative log likelihood of each of N sequences; log_probs [T, N, C], labels [N, 2 S + 1]."""
    logp = wide(log_probs)
    minus_inf = mx.array(-math.inf, logp.dtype)
    position = mx.arange(labels.shape[1])[None]
    ends = mx.minimum(2 * target_lengths[:, None] + 1, labels.shape[1])
    emitted = [mx.take_along_axis(step, labels, axis=1) for step in logp]
    forward = mx.where((position < 2) & (position < ends), emitted[0], minus_inf)
    for t in range(1, logp.shape[0]):
        jumped = mx.where(skip, _shifted(forward, 2), minus_inf)
        paths = mx.stack([forward, _shifted(forward, 1), jumped])
        following = _log_sum(paths) + emitted[t]
        forward = mx.where(t < input_lengths[:, None], following, forward)
    last = mx.take_along_axis(forward, 2 * target_lengths[:, None], axis=1)[:, 0]
    before = mx.take_along_axis(forward, mx.maximum(2 * target_lengths[:, None] - 1, 0), axis=1)
    before = mx.where(target_lengths > 0, before[:, 0], minus_inf)
    return -_log_sum(mx.stack([last, before])).astype(log_probs.dtype)


def _log_sum(x: mx.array) -> mx.array:
    """log(sum(exp(x))) over the first axis; where all are -inf it has no slope, and no NaN."""
    best = mx.stop_gradient(collapse(mx.max, x, 0))
    dead = best == -math.inf
    shifted = mx.where(dead, -math.inf, x - mx.where(dead, 0, best))
    total = mx.where(dead, 1, collapse(mx.sum, exp(shifted), 0))
    return mx.where(dead, best, best + mx.log(total))


@composite(at=("torch", "F"))
def ctc_loss(
    log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean",
    zero_infinity=False,
):  # fmt: skip
    """-log of the probability of targets under log_probs [T, N, C] (or [T, C]).

    targets are [N, S] or all in one row. torch.nn.functional.ctc_loss.
    """
    check_reduction(reduction)
    single = log_probs.ndim == 2
    x = log_probs.unsqueeze(1) if single else log_probs
    inputs, lengths = _lengths_of(x, input_lengths, target_lengths)
    labels, skip = _extended(_rows(targets, lengths), lengths, blank)
    make = x.new_tensor
    sizes = [make(v, dtype=targets.dtype) for v in (inputs, lengths)]
    loss = _ctc(x, make(labels, dtype=targets.dtype), make(skip, dtype=(x == x).dtype), *sizes)
    if zero_infinity:
        loss = loss.masked_fill(loss == math.inf, 0)
    if reduction == "mean":
        return (loss / sizes[1].clamp_min(1).to(loss.dtype)).mean()
    if reduction == "sum":
        return loss.sum()
    return loss[0] if single else loss


def _lengths_of(x, input_lengths, target_lengths):
    single = [
        v.reshape(-1) if isinstance(v, Tensor) else v  # type: ignore[attr-defined]
        for v in (input_lengths, target_lengths)
    ]
    inputs, targets = map(_lengths, single)
    if len(inputs) != x.shape[1] or len(targets) != x.shape[1]:
        raise RuntimeError("input_lengths must be of size batch_size")
    if any(n > x.shape[0] for n in inputs):
        raise RuntimeError(
            f"Expected input_lengths to have value at most {x.shape[0]}, but got value "
            f"{max(inputs)}"
        )
    return inputs, targets
