"""The base of all distributions. torch.distributions.Distribution."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import torchmlx as torch

from ..core.layout import Size
from ..core.tensor import Tensor
from . import constraints
from .utils import broadcast_all


class Distribution:
    """A probability distribution over events of shape `event_shape`, `batch_shape` many at once.

    Samples are [*sample_shape, *batch_shape, *event_shape]; log_prob, cdf and entropy leave
    `event_shape` out. Its tensors are attributes of shape [*batch_shape, ...], which is what
    `expand` relies on.
    """

    has_rsample = False
    has_enumerate_support = False
    _validate_args = __debug__
    arg_constraints: Any = {}
    support: Any = None  # the constraint that samples satisfy

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Whether distributions check parameters and values; they do unless Python runs with -O."""
        if value not in (True, False):
            raise ValueError
        Distribution._validate_args = value

    def __init__(
        self, batch_shape: Any = (), event_shape: Any = (), validate_args: bool | None = None
    ) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if not self._validate_args:
            return
        for name, constraint in self.arg_constraints.items():
            lazy = isinstance(getattr(type(self), name, None), cached_property)
            if constraints.is_dependent(constraint) or (lazy and name not in vars(self)):
                continue
            value = getattr(self, name)
            if not bool(constraint.check(value).all()):
                raise ValueError(
                    f"Expected parameter {name} ({type(value).__name__} of shape "
                    f"{tuple(value.shape)}) of distribution {self!r} to satisfy the constraint "
                    f"{constraint!r}, but found invalid values:\n{value}"
                )

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """The same with its batch dims expanded; no memory is copied and nothing checked."""
        batch = Size(batch_shape)
        known = len(self._batch_shape)
        new = type(self).__new__(type(self)) if _instance is None else _instance
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                value = value.expand((*batch, *value.shape[known:]))
            elif isinstance(value, Distribution):
                value = value.expand((*batch, *value.batch_shape[known:]))
            setattr(new, name, value)
        new._batch_shape = batch
        return new

    @property
    def batch_shape(self) -> Size:
        """How many distributions this is."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """The shape of one sample of one of them."""
        return self._event_shape

    @property
    def mean(self) -> Tensor:
        """The mean."""
        raise NotImplementedError

    @property
    def mode(self) -> Tensor:
        """The likeliest value."""
        raise NotImplementedError(f"{type(self)} does not implement mode")

    @property
    def variance(self) -> Tensor:
        """The variance."""
        raise NotImplementedError

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return self.variance.sqrt()

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Samples without gradient."""
        with torch.no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Samples through which gradients reach the parameters."""
        raise NotImplementedError

    def sample_n(self, n: int) -> Tensor:
        """sample((n,)); deprecated in torch."""
        warnings.warn(
            "`sample_n(n)` will be deprecated. Use `sample((n,))` instead.",
            FutureWarning,
            stacklevel=2,
        )
        return self.sample((n,))

    def log_prob(self, value: Tensor) -> Tensor:
        """The log of the density or probability at `value`."""
        raise NotImplementedError

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of at most `value`."""
        raise NotImplementedError

    def icdf(self, value: Tensor) -> Tensor:
        """Where the cumulative probability is `value`."""
        raise NotImplementedError

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values of a discrete distribution, [n, *batch_shape, *event_shape].

        expand=False leaves the batch dims at 1.
        """
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """The entropy in nats, [*batch_shape]."""
        raise NotImplementedError

    def perplexity(self) -> Tensor:
        """exp(entropy)."""
        return torch.exp(self.entropy())

    def _extended_shape(self, sample_shape: Any = ()) -> Size:
        return Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def _enumerated(self, values: Tensor, expand: bool) -> Tensor:
        """`values` [n, *event_shape] with batch dims."""
        event, batch = values.shape[1:], self._batch_shape
        values = values.reshape((-1, *[1] * len(batch), *event))
        return values.expand((-1, *batch, *event)) if expand else values

    def _validate_sample(self, value: Any) -> None:
        if not self._validate_args:
            return
        if not isinstance(value, Tensor):
            raise ValueError("The value argument to log_prob must be a Tensor")
        if value.shape[value.ndim - len(self._event_shape) :] != self._event_shape:
            raise ValueError(
                f"The right-most size of value must match event_shape: {value.size()} vs "
                f"{self._event_shape}."
            )
        expected = Size((*self._batch_shape, *self._event_shape))
        for i, j in zip(reversed(value.shape), reversed(expected), strict=False):
            if i != 1 and j != 1 and i != j:
                raise ValueError(
                    "Value is not broadcastable with batch_shape+event_shape: "
                    f"{value.size()} vs {expected}."
                )
        if self.support is None:
            raise NotImplementedError(f"{type(self).__name__} does not say what its support is")
        if not bool(self.support.check(value).all()):
            raise ValueError(
                f"Expected value argument ({type(value).__name__} of shape {tuple(value.shape)}) "
                f"to be within the support ({self.support!r}) of the distribution {self!r}, "
                f"but found invalid values:\n{value}"
            )

    def __repr__(self) -> str:
        given = {n: v for n, v in vars(self).items() if n in self.arg_constraints}
        order = [name for name in self.arg_constraints if name in given]
        said = (f"{n}: {given[n] if given[n].numel() == 1 else given[n].size()}" for n in order)
        return f"{type(self).__name__}({', '.join(said)})"


class ExponentialFamily(Distribution):
    """Distributions of the form h(x) exp(t(x) . theta - A(theta))."""


class LocScale(Distribution):
    """Distributions over all real numbers around `loc`, as wide as `scale`: numbers or tensors."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc
