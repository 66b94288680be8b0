"""Bernoulli with samples between 0 and 1. torch.distributions.RelaxedBernoulli."""

from __future__ import annotations

from typing import Any

import torchmlx as torch

from ..core.tensor import Tensor
from . import constraints
from .distribution import Distribution
from .odds import Odds
from .transformed_distribution import TransformedDistribution
from .transforms import SigmoidTransform
from .utils import broadcast_all, clamp_probs


class LogitRelaxedBernoulli(Odds, Distribution):
    """The logits of relaxed samples (Maddison et al. 2017)."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.real
    has_rsample = True

    def __init__(
        self,
        temperature: Tensor,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        self._take(probs, logits)
        self._warmth = [temperature]  # not a batch of them: expand leaves it alone
        super().__init__(self._param.shape, validate_args=validate_args)

    @property
    def temperature(self) -> Tensor:
        """How far samples are from 0 and 1."""
        return self._warmth[0]

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        probs = clamp_probs(self.probs.expand(shape))
        u = clamp_probs(torch.rand(shape, dtype=probs.dtype, device=probs.device))
        odds = u.log() - (-u).log1p() + probs.log() - (-probs).log1p()
        return odds / self.temperature

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        off = logits - value * self.temperature
        return self.temperature.log() + off - 2 * off.exp().log1p()


class Relaxed(TransformedDistribution):
    """What samples of `base_dist`, a relaxed distribution of logits, become."""

    base_dist: Any

    @property
    def temperature(self) -> Tensor:
        """How far samples are from 0 and 1."""
        return self.base_dist.temperature

    @property
    def logits(self) -> Tensor:
        """Log odds, or normalised log probabilities."""
        return self.base_dist.logits

    @property
    def probs(self) -> Tensor:
        """Probabilities."""
        return self.base_dist.probs


class RelaxedBernoulli(Relaxed):
    """Numbers between 0 and 1, the nearer to them the lower the temperature."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.unit_interval

    def __init__(
        self,
        temperature: Tensor,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        base = LogitRelaxedBernoulli(temperature, probs, logits)
        super().__init__(base, SigmoidTransform(), validate_args=validate_args)
