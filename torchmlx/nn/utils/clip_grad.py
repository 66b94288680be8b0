"""Gradient clipping. torch.nn.utils.clip_grad."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ...core.modes import no_grad
from ...core.op import TABLE
from ...core.tensor import Tensor

__all__ = ["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]


def _listed(tensors) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def get_total_norm(tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None) -> Tensor:
    """The norm of all tensors taken as one vector."""
    tensors = _listed(tensors)
    if not tensors:
        return TABLE["tensor"].call(0.0)
    norm = TABLE["vector_norm"].call
    norms = [norm(t.detach(), float(norm_type)) for t in tensors]  # type: ignore[attr-defined]
    total = norm(TABLE["stack"].call([n.to(norms[0].device) for n in norms]), float(norm_type))
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(
            f"The total norm of order {float(norm_type)} for gradients from `parameters` is "
            "non-finite, so it cannot be clipped. To disable this error and scale the gradients by "
            "the non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    return total


def clip_grads_with_norm_(parameters, max_norm, total_norm, foreach=None) -> None:
    """Scale gradients in place by max_norm / total_norm where that is less than one."""
    scale = (float(max_norm) / (total_norm + 1e-6)).clamp(max=1.0)
    with no_grad():
        for p in _listed(parameters):
            if p.grad is not None:
                p.grad.mul_(scale.to(p.grad.device))  # type: ignore[attr-defined]


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm, norm_type=2.0, error_if_nonfinite=False,
    foreach=None,
) -> Tensor:  # fmt: skip
    """Scale gradients in place so that their norm is at most max_norm. Returns the norm before."""
    parameters = _listed(parameters)
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = get_total_norm(gradients, norm_type, error_if_nonfinite)
    clip_grads_with_norm_(parameters, max_norm, total)
    return total


def clip_grad_value_(parameters, clip_value, foreach=None) -> None:
    """Limit every gradient element to [-clip_value, clip_value], in place."""
    with no_grad():
        for p in _listed(parameters):
            if p.grad is not None:
                p.grad.clamp_(-float(clip_value), float(clip_value))  # type: ignore[attr-defined]
