"""A distribution of f(x), x of another one. torch.distributions.TransformedDistribution."""

from __future__ import annotations

from typing import Any

import torchmlx as torch

from ..core.tensor import Tensor
from . import constraints
from .distribution import Distribution
from .independent import Independent
from .transforms import ComposeTransform, Transform
from .utils import sum_rightmost


class TransformedDistribution(Distribution):
    """What `transforms`, one or a list, the first applied first, make of `base_distribution`."""

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | list[Transform],
        validate_args: bool | None = None,
    ) -> None:
        listed = [transforms] if isinstance(transforms, Transform) else transforms
        if not isinstance(listed, list) or not all(isinstance(t, Transform) for t in listed):
            raise ValueError(f"transforms must be a Transform or list, but was {transforms}")
        self.transforms = listed
        whole = ComposeTransform(listed)
        base_event = len(base_distribution.event_shape)
        base_shape = base_distribution.batch_shape + base_distribution.event_shape
        if len(base_shape) < whole.domain.event_dim:
            raise ValueError(
                "base_distribution needs to have shape with size at least "
                f"{whole.domain.event_dim}, but got {base_shape}."
            )
        shape = whole.forward_shape(base_shape)
        if tuple(shape) != tuple(base_shape):  # the transforms' parameters have more dims
            base_distribution = base_distribution.expand(shape[: len(shape) - base_event])
        if (more := whole.domain.event_dim - base_event) > 0:
            base_distribution = Independent(base_distribution, more)
        self.base_dist = base_distribution
        cut = len(shape) - max(whole.codomain.event_dim, base_event)
        super().__init__(shape[:cut], shape[cut:], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> Any:
        if not self.transforms:
            return self.base_dist.support
        found = self.transforms[-1].codomain
        more = len(self.event_shape) - found.event_dim
        return constraints.independent(found, more) if more > 0 else found

    @property
    def has_rsample(self) -> bool:
        return self.base_dist.has_rsample

    def _forward(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with torch.no_grad():
            return self._forward(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self._forward(self.base_dist.rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        event_dim = len(self.event_shape)
        result: Any = 0.0
        for transform in reversed(self.transforms):
            x = transform.inv(value)
            term = transform.log_abs_det_jacobian(x, value)
            result = result - sum_rightmost(term, event_dim - transform.domain.event_dim)
            value = x
        base = self.base_dist.log_prob(value)
        return result + sum_rightmost(base, event_dim - len(self.base_dist.event_shape))

    def _monotone(self, value: Tensor) -> Tensor:
        """Cumulative probabilities, turned over where the transforms fall."""
        sign: Any = 1
        for transform in self.transforms:
            sign = sign * transform.sign
        return value if isinstance(sign, int) and sign == 1 else sign * (value - 0.5) + 0.5

    def cdf(self, value: Tensor) -> Tensor:
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        self.base_dist._validate_sample(value)
        return self._monotone(self.base_dist.cdf(value))

    def icdf(self, value: Tensor) -> Tensor:
        return self._forward(self.base_dist.icdf(self._monotone(value)))
