"""Categorical with samples inside of the simplex. torch.distributions.RelaxedOneHotCategorical."""

from __future__ import annotations

from typing import Any

import torchmlx as torch

from ..core.tensor import Tensor
from . import constraints
from .categorical import Categorical
from .distribution import Distribution
from .odds import Choices
from .relaxed_bernoulli import Relaxed
from .transforms import ExpTransform
from .utils import broadcast_all, clamp_probs


class ExpRelaxedCategorical(Choices, Distribution):
    """The logarithms of relaxed samples (Maddison et al. 2017)."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        temperature: Tensor,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._categorical = Categorical(probs, logits)
        self._warmth = [temperature]  # not a batch of them: expand leaves it alone
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    @property
    def temperature(self) -> Tensor:
        """How far samples are from the corners."""
        return self._warmth[0]

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape, like = self._extended_shape(sample_shape), self.logits
        u = clamp_probs(torch.rand(shape, dtype=like.dtype, device=like.device))
        scores = (self.logits - (-u.log()).log()) / self.temperature
        return scores - scores.logsumexp(dim=-1, keepdim=True)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        count = self._event_shape[0]
        logits, value = broadcast_all(self.logits, value)
        temperature = self.temperature
        scale = torch.full_like(temperature, float(count)).lgamma()
        scale = scale + temperature.log() * (count - 1)
        score = logits - value * temperature
        return (score - score.logsumexp(dim=-1, keepdim=True)).sum(-1) + scale


class RelaxedOneHotCategorical(Relaxed):
    """Points of the simplex, the nearer to its corners the lower the temperature."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.simplex

    def __init__(
        self,
        temperature: Tensor,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        base = ExpRelaxedCategorical(temperature, probs, logits, validate_args=validate_args)
        super().__init__(base, ExpTransform(), validate_args=validate_args)
