"""A mixture of distributions of one kind. torch.distributions.MixtureSameFamily."""

from __future__ import annotations

from typing import Any

import torchmlx as torch

from ..core.tensor import Tensor
from . import constraints
from .categorical import Categorical
from .distribution import Distribution


class MixtureSameFamily(Distribution):
    """The last batch dim of `component_distribution`, mixed as `mixture_distribution` says."""

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise ValueError("The Mixture distribution needs to be an instance of Categorical")
        if not isinstance(component_distribution, Distribution):
            raise ValueError("The Component distribution needs to be an instance of Distribution")
        kinds, parts = mixture_distribution.param_shape, component_distribution.batch_shape
        if kinds[-1] != parts[-1]:
            raise ValueError(
                f"`mixture_distribution component` ({kinds[-1]}) does not equal "
                f"`component_distribution.batch_shape[-1]` ({parts[-1]})"
            )
        for a, b in zip(reversed(kinds[:-1]), reversed(parts[:-1]), strict=False):
            if a != 1 and b != 1 and a != b:
                raise ValueError(
                    f"`mixture_distribution.batch_shape` ({kinds[:-1]}) is not compatible with "
                    f"`component_distribution.batch_shape`({parts[:-1]})"
                )
        self._mixture = mixture_distribution.expand(parts[:-1])
        self._component = component_distribution
        self._event_ndims = len(component_distribution.event_shape)
        super().__init__(parts[:-1], component_distribution.event_shape, validate_args)

    @property
    def mixture_distribution(self) -> Categorical:
        """Which component."""
        return self._mixture

    @property
    def component_distribution(self) -> Distribution:
        """The components."""
        return self._component

    @constraints.dependent_property
    def support(self) -> Any:
        return _OfComponent(self._component.support)

    def _weights(self) -> Tensor:
        """Probabilities that broadcast over events."""
        probs = self._mixture.probs
        return probs.reshape((*probs.shape, *[1] * self._event_ndims))

    def _pad(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-1 - self._event_ndims)

    @property
    def mean(self) -> Tensor:
        return (self._weights() * self._component.mean).sum(-1 - self._event_ndims)

    @property
    def variance(self) -> Tensor:
        within = self._weights() * self._component.variance
        between = self._weights() * (self._component.mean - self._pad(self.mean)).pow(2.0)
        return (within + between).sum(-1 - self._event_ndims)

    def cdf(self, value: Tensor) -> Tensor:
        return (self._component.cdf(self._pad(value)) * self._mixture.probs).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        found = self._component.log_prob(self._pad(value))
        return torch.logsumexp(found + torch.log_softmax(self._mixture.logits, dim=-1), dim=-1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with torch.no_grad():
            which = self._mixture.sample(sample_shape)
            drawn = self._component.sample(sample_shape)
            dim = which.ndim
            which = which.reshape((*which.shape, *[1] * (self._event_ndims + 1)))
            which = which.expand((*which.shape[: dim + 1], *self._event_shape))
            return torch.gather(drawn, dim, which).squeeze(dim)

    def __repr__(self) -> str:
        return f"MixtureSameFamily(\n  {self._mixture},\n  {self._component})"


class _OfComponent(constraints.Constraint):
    """What all components' support says of a value that is in front of them."""

    def __init__(self, base: Any) -> None:
        self.base, self.event_dim, self.is_discrete = base, base.event_dim, base.is_discrete

    def check(self, value: Tensor) -> Tensor:
        return self.base.check(value.unsqueeze(-1 - self.event_dim)).all(-1)
