"""The categorical distribution over one-hot vectors. torch.distributions.OneHotCategorical."""

from __future__ import annotations

from typing import Any

import torchmlx as torch

from ..core.tensor import Tensor
from ..nn import functional as F
from . import constraints
from .categorical import Categorical
from .distribution import Distribution
from .odds import Choices


class OneHotCategorical(Choices, Distribution):
    """Vectors [n] with a single 1, of probabilities `probs` [..., n] or logs `logits`."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.one_hot
    has_enumerate_support = True

    def __init__(
        self,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._categorical = Categorical(probs, logits)
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return self._as_vector(self.probs.argmax(dim=-1))

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def _as_vector(self, index: Tensor) -> Tensor:
        return F.one_hot(index, self._event_shape[0]).to(self.probs.dtype)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self._as_vector(self._categorical.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return self._categorical.log_prob(value.argmax(-1))

    def entropy(self) -> Tensor:
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = torch.eye(self._event_shape[0], dtype=self.probs.dtype, device=self.probs.device)
        return self._enumerated(values, expand)


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """One whose samples pass gradients on as if they were the probabilities."""

    has_rsample = True

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())
