"""The negative binomial distribution. torch.distributions.NegativeBinomial."""

from __future__ import annotations

from typing import Any

import torchmlx as torch

from ..core.tensor import Tensor
from ..nn import functional as F
from . import constraints
from .distribution import Distribution
from .gamma import Gamma
from .odds import Odds


class NegativeBinomial(Odds, Distribution):
    """Successes of probability `probs`, or log odds `logits`, before `total_count` failures."""

    arg_constraints = {
        "total_count": constraints.greater_than_eq(0),
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }
    support = constraints.nonnegative_integer

    def __init__(
        self,
        total_count: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        (count,) = self._take(probs, logits, total_count)
        self.total_count = count.to(self._param.dtype)
        super().__init__(self._param.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.logits.exp()

    @property
    def mode(self) -> Tensor:
        return ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0.0)

    @property
    def variance(self) -> Tensor:
        return self.mean / torch.sigmoid(-self.logits)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with torch.no_grad():
            rates = Gamma(self.total_count, torch.exp(-self.logits), validate_args=False)
            return torch.poisson(rates.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        n = self.total_count
        chances = n * F.logsigmoid(-self.logits) + value * F.logsigmoid(self.logits)
        choices = torch.lgamma(n + value) - torch.lgamma(1.0 + value) - torch.lgamma(n)
        return chances + choices.masked_fill(n + value == 0.0, 0.0)
