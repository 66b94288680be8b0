"""The Dirichlet distribution. torch.distributions.Dirichlet."""

from __future__ import annotations

from typing import Any

import torchmlx as torch

from ..core.tensor import Tensor
from ..nn import functional as F
from . import constraints
from .distribution import ExponentialFamily


class Dirichlet(ExponentialFamily):
    """Points of a simplex of `concentration` [..., n]."""

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    support = constraints.simplex
    has_rsample = True

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.dim() < 1:
            raise ValueError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        shape = concentration.shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return torch._sample_dirichlet(
            self.concentration.expand(self._extended_shape(sample_shape))
        )

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        a = self.concentration
        norm = torch.lgamma(a.sum(-1)) - torch.lgamma(a).sum(-1)
        return torch.xlogy(a - 1.0, value).sum(-1) + norm

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, True)

    @property
    def mode(self) -> Tensor:
        """Inside where a concentration is above 1, else a corner."""
        above = (self.concentration - 1).clamp(min=0.0)
        inside = above / above.sum(-1, True)
        flat = (self.concentration < 1).all(dim=-1)
        corner = F.one_hot(torch.zeros_like(flat, dtype=torch.int64), above.shape[-1])
        return torch.where(flat.unsqueeze(-1), corner.to(inside.dtype), inside)

    @property
    def variance(self) -> Tensor:
        total = self.concentration.sum(-1, True)
        return self.concentration * (total - self.concentration) / (total.pow(2) * (total + 1))

    def entropy(self) -> Tensor:
        a, count = self.concentration, self.concentration.size(-1)
        total = a.sum(-1)
        norm = torch.lgamma(a).sum(-1) - torch.lgamma(total)
        slopes = (count - total) * torch.digamma(total) + ((a - 1) * torch.digamma(a)).sum(-1)
        return norm - slopes
