"""Student's t-distribution. torch.distributions.StudentT."""

from __future__ import annotations

import math
from typing import Any

import torchmlx as torch

from ..core.tensor import Tensor
from . import constraints
from .distribution import Distribution
from .gamma import Chi2
from .utils import broadcast_all, standard_normal


class StudentT(Distribution):
    """Of `df` degrees of freedom, moved by `loc` and stretched by `scale`."""

    arg_constraints = {
        "df": constraints.positive,
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real
    has_rsample = True

    def __init__(
        self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        self._chi2 = Chi2(self.df)
        super().__init__(self.df.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc.masked_fill(self.df <= 1, math.nan)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        spread = self.scale.pow(2) * self.df / (self.df - 2)
        return spread.masked_fill(self.df <= 2, math.inf).masked_fill(self.df <= 1, math.nan)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        noise = standard_normal(self._extended_shape(sample_shape), self.df)
        spread = torch.rsqrt(self._chi2.rsample(sample_shape) / self.df)
        return self.loc + self.scale * (noise * spread)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        y = (value - self.loc) / self.scale
        norm = (
            self.scale.log()
            + 0.5 * self.df.log()
            + 0.5 * math.log(math.pi)
            + torch.lgamma(0.5 * self.df)
            - torch.lgamma(0.5 * (self.df + 1.0))
        )
        return -0.5 * (self.df + 1.0) * torch.log1p(y**2.0 / self.df) - norm

    def entropy(self) -> Tensor:
        half, more = 0.5 * self.df, 0.5 * (self.df + 1)
        lbeta = torch.lgamma(half) + math.lgamma(0.5) - torch.lgamma(more)
        slopes = more * (torch.digamma(more) - torch.digamma(half))
        return self.scale.log() + slopes + 0.5 * self.df.log() + lbeta
