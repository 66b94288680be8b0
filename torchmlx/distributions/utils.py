"""Helpers of the distributions. torch.distributions.utils."""

from __future__ import annotations

import functools
from numbers import Number
from typing import Any

import torchmlx as torch

from ..core.tensor import Tensor
from ..nn import functional as F

euler_constant = 0.57721566490153286060

# torch's are computed once, at first sight, and kept as an attribute: so are Python's.
lazy_property = functools.cached_property


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Tensors of one shape: numbers take the dtype of the first tensor, or the default dtype.

    ValueError for anything else.
    """
    if not all(isinstance(value, (Tensor, Number)) for value in values):
        raise ValueError(
            "Input arguments must all be instances of Number, torch.Tensor or objects "
            "implementing __torch_function__."
        )
    first = next((value for value in values if isinstance(value, Tensor)), None)
    options = {} if first is None else {"dtype": first.dtype, "device": first.device}
    options = options or {"dtype": torch.get_default_dtype()}
    tensors = [v if isinstance(v, Tensor) else torch.tensor(v, **options) for v in values]
    return torch.broadcast_tensors(*tensors)


def clamp_probs(probs: Tensor) -> Tensor:
    """Probabilities kept from 0 and 1 by the dtype's epsilon."""
    eps = torch.finfo(probs.dtype).eps
    return probs.clamp(min=eps, max=1 - eps)


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Probabilities of log odds, or of unnormalised log probabilities along the last dim."""
    return torch.sigmoid(logits) if is_binary else F.softmax(logits, dim=-1)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """What `logits_to_probs` undoes."""
    kept = clamp_probs(probs)
    return torch.log(kept) - torch.log1p(-kept) if is_binary else torch.log(kept)


def sum_rightmost(value: Tensor, dims: int) -> Tensor:
    """The sum over the last `dims` dims."""
    return value if dims == 0 else value.reshape((*value.shape[: value.ndim - dims], -1)).sum(-1)


def standard_normal(shape: Any, like: Tensor) -> Tensor:
    """Standard normal numbers in the dtype and on the device of `like`."""
    return torch.empty(shape, dtype=like.dtype, device=like.device).normal_()
