"""The multinomial distribution. torch.distributions.Multinomial."""

from __future__ import annotations

import math
from typing import Any

import torchmlx as torch

from ..core.tensor import Tensor
from . import constraints
from .binomial import Binomial
from .categorical import Categorical
from .distribution import Distribution
from .odds import Choices
from .utils import broadcast_all


class Multinomial(Choices, Distribution):
    """How often each of n outcomes comes in `total_count` draws; `probs` or `logits` [..., n]."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def __init__(
        self,
        total_count: int = 1,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(total_count, int):
            raise NotImplementedError("inhomogeneous total_count is not supported")
        self.total_count = total_count
        self._categorical = Categorical(probs, logits)
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Any:
        return constraints.multinomial(self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        drawn = self._categorical.sample((self.total_count, *sample_shape)).movedim(0, -1)
        counts = torch.zeros(
            self._extended_shape(sample_shape), dtype=torch.int64, device=drawn.device
        )
        return counts.scatter_add(-1, drawn, torch.ones_like(drawn)).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        never = (value == 0) & (logits == -math.inf)  # 0 log 0
        powers = (logits.masked_fill(never, 0) * value).sum(-1)
        return torch.lgamma(value.sum(-1) + 1) - torch.lgamma(value + 1).sum(-1) + powers

    def entropy(self) -> Tensor:
        count = torch.tensor(float(self.total_count))
        each = Binomial(self.total_count, probs=self.probs)
        values = each.enumerate_support(expand=False)[1:]
        chances = each.log_prob(values).exp() * torch.lgamma(values + 1)
        own = count * self._categorical.entropy() - torch.lgamma(count + 1)
        return own + chances.sum([0, -1])
