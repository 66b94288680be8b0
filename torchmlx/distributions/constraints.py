"""What a distribution's parameters and samples have to satisfy. torch.distributions.constraints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torchmlx as torch

from ..core.tensor import Tensor


class Constraint:
    """A region of tensors; `check` says for every event of `event_dim` dims if it lies inside."""

    is_discrete = False
    event_dim = 0

    def check(self, value: Tensor) -> Tensor:
        """True where an event satisfies it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return type(self).__name__.removeprefix("_") + "()"


class _Test(Constraint):
    """One whose test is a function of the tensor."""

    def __init__(
        self,
        text: str,
        test: Callable[[Any], Any],
        is_discrete: bool = False,
        event_dim: int = 0,
    ) -> None:
        self._text, self._test = text, test
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def check(self, value: Tensor) -> Tensor:
        return self._test(value)

    def __repr__(self) -> str:
        return self._text


class _Dependent(Constraint):
    """One that depends on other parameters, which a class alone does not know."""

    def __init__(self, *, is_discrete: bool = False, event_dim: int = 0) -> None:
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def check(self, value: Tensor) -> Tensor:
        raise ValueError("Cannot determine validity of dependent constraint")

    def __call__(self, *, is_discrete: bool | None = None, event_dim: int | None = None):
        return _Dependent(
            is_discrete=self.is_discrete if is_discrete is None else is_discrete,
            event_dim=self.event_dim if event_dim is None else event_dim,
        )


class dependent_property(property, _Dependent):
    """A property whose value is a constraint that depends on the instance."""

    def __init__(self, fn: Any = None, *, is_discrete: bool = False, event_dim: int = 0) -> None:
        super().__init__(fn)
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def __call__(self, fn: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        # As a decorator with arguments.
        return dependent_property(fn, is_discrete=self.is_discrete, event_dim=self.event_dim)


class independent(Constraint):
    """`base_constraint` with its last `reinterpreted_batch_ndims` dims taken as one event."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.is_discrete = base_constraint.is_discrete
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims

    def check(self, value: Tensor) -> Tensor:
        result = self.base_constraint.check(value)
        if result.ndim < self.reinterpreted_batch_ndims:
            raise ValueError(f"Expected value.dim() >= {self.event_dim} but got {value.ndim}")
        kept = result.shape[: result.ndim - self.reinterpreted_batch_ndims]
        return result.reshape((*kept, -1)).all(-1)

    def __repr__(self) -> str:
        return f"IndependentConstraint({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


def integer_interval(lower_bound, upper_bound) -> Constraint:
    """Whole numbers from `lower_bound` to `upper_bound`, both included."""
    return _Test(
        f"IntegerInterval(lower_bound={lower_bound}, upper_bound={upper_bound})",
        lambda x: _whole(x) & (lower_bound <= x) & (x <= upper_bound),
        is_discrete=True,
    )


def interval(lower_bound, upper_bound) -> Constraint:
    """From `lower_bound` to `upper_bound`, both included."""
    return _Test(
        f"Interval(lower_bound={lower_bound}, upper_bound={upper_bound})",
        lambda x: (lower_bound <= x) & (x <= upper_bound),
    )


def half_open_interval(lower_bound, upper_bound) -> Constraint:
    """From `lower_bound` on, below `upper_bound`."""
    return _Test(
        f"HalfOpenInterval(lower_bound={lower_bound}, upper_bound={upper_bound})",
        lambda x: (lower_bound <= x) & (x < upper_bound),
    )


def greater_than(lower_bound) -> Constraint:
    """Above `lower_bound`."""
    return _Test(f"GreaterThan(lower_bound={lower_bound})", lambda x: x > lower_bound)


def greater_than_eq(lower_bound) -> Constraint:
    """`lower_bound` and above."""
    return _Test(f"GreaterThanEq(lower_bound={lower_bound})", lambda x: x >= lower_bound)


def less_than(upper_bound) -> Constraint:
    """Below `upper_bound`."""
    return _Test(f"LessThan(upper_bound={upper_bound})", lambda x: x < upper_bound)


def multinomial(upper_bound) -> Constraint:
    """Counts whose sum is at most `upper_bound`."""
    return _Test(
        "Multinomial()",
        lambda x: (x >= 0).all(-1) & (x.sum(-1) <= upper_bound),
        is_discrete=True,
        event_dim=1,
    )


def _whole(x: Any) -> Any:
    return x % 1 == 0


def _is_simplex(x: Any) -> Any:
    return (x >= 0).all(-1) & ((x.sum(-1) - 1).abs() < 1e-6)


def _is_one_hot(x: Any) -> Any:
    return ((x == 0) | (x == 1)).all(-1) & (x.sum(-1) == 1)


def _is_lower(x: Any) -> Any:
    return (x.tril() == x).reshape((*x.shape[:-2], -1)).all(-1)


def _is_symmetric(x: Tensor) -> Tensor:
    return torch.isclose(x, x.mT, atol=1e-6).all(-2).all(-1)


def _is_positive_definite(x: Tensor) -> Tensor:
    return _is_symmetric(x) & (torch.linalg.eigvalsh(x) > 0).all(-1)


def is_dependent(constraint: Any) -> bool:
    """Whether it cannot be checked without an instance."""
    return isinstance(constraint, _Dependent)


dependent = _Dependent()
boolean = _Test("Boolean()", lambda x: (x == 0) | (x == 1), is_discrete=True)
one_hot = _Test("OneHot()", _is_one_hot, is_discrete=True, event_dim=1)
nonnegative_integer = _Test(
    "IntegerGreaterThan(lower_bound=0)", lambda x: _whole(x) & (x >= 0), is_discrete=True
)
positive_integer = _Test(
    "IntegerGreaterThan(lower_bound=1)", lambda x: _whole(x) & (x >= 1), is_discrete=True
)
real = _Test("Real()", lambda x: x == x)
real_vector = independent(real, 1)
positive = greater_than(0.0)
nonnegative = greater_than_eq(0.0)
unit_interval = interval(0.0, 1.0)
simplex = _Test("Simplex()", _is_simplex, event_dim=1)
lower_triangular = _Test("LowerTriangular()", _is_lower, event_dim=2)
lower_cholesky = _Test(
    "LowerCholesky()",
    lambda x: _is_lower(x) & (x.diagonal(dim1=-2, dim2=-1) > 0).all(-1),
    event_dim=2,
)
square = _Test(
    "Square()",
    lambda x: torch.full(x.shape[:-2], x.shape[-2] == x.shape[-1], dtype=torch.bool),
    event_dim=2,
)
symmetric = _Test("Symmetric()", _is_symmetric, event_dim=2)
positive_definite = _Test("PositiveDefinite()", _is_positive_definite, event_dim=2)
