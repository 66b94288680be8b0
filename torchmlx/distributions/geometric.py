"""The geometric distribution. torch.distributions.Geometric."""

from __future__ import annotations

from typing import Any

import torchmlx as torch

from ..core.tensor import Tensor
from ..nn import functional as F
from . import constraints
from .distribution import Distribution
from .odds import Odds
from .utils import broadcast_all


class Geometric(Odds, Distribution):
    """Failures before the first success of probability `probs`, or of log odds `logits`."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.nonnegative_integer

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self._take(probs, logits)
        super().__init__(self._param.shape, validate_args=validate_args)
        if self._validate_args and probs is not None and not bool((self.probs > 0).all()):
            given = self.probs.detach()
            raise ValueError(
                f"Expected parameter probs ({type(given).__name__} of shape "
                f"{tuple(given.shape)}) of distribution {self!r} to be positive but found "
                f"invalid values:\n{given[given <= 0]}"
            )

    @property
    def mean(self) -> Tensor:
        return self.probs.reciprocal() - 1.0

    @property
    def mode(self) -> Tensor:
        return torch.zeros_like(self.probs)

    @property
    def variance(self) -> Tensor:
        return self.mean / self.probs

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape, like = self._extended_shape(sample_shape), self.probs
        with torch.no_grad():
            u = torch.empty(shape, dtype=like.dtype, device=like.device)
            u.uniform_(torch.finfo(like.dtype).tiny, 1)
            return (u.log() / (-self.probs).log1p()).floor()

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        value, probs = broadcast_all(value, self.probs)
        certain = (probs == 1) & (value == 0)  # 0 log 0
        return value * (-probs.masked_fill(certain, 0)).log1p() + self.probs.log()

    def entropy(self) -> Tensor:
        likely = F.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")
        return likely / self.probs
