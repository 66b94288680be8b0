"""The Cauchy distribution. torch.distributions.Cauchy."""

from __future__ import annotations

import math
from typing import Any

import torchmlx as torch

from ..core.tensor import Tensor
from .distribution import LocScale


class Cauchy(LocScale):
    """Of median `loc` and half width `scale` at half the maximum; it has no mean."""

    @property
    def mean(self) -> Tensor:
        return torch.full_like(self.loc, math.nan)

    @property
    def variance(self) -> Tensor:
        return torch.full_like(self.loc, math.inf)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        drawn = torch.empty(shape, dtype=self.loc.dtype, device=self.loc.device).cauchy_()
        return self.loc + drawn * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        off = ((value - self.loc) / self.scale) ** 2
        return -math.log(math.pi) - self.scale.log() - off.log1p()

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return torch.atan((value - self.loc) / self.scale) / math.pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        return torch.tan(math.pi * (value - 0.5)) * self.scale + self.loc

    def entropy(self) -> Tensor:
        return math.log(4 * math.pi) + self.scale.log()
