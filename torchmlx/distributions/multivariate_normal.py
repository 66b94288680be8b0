"""The multivariate normal distribution. torch.distributions.MultivariateNormal."""

from __future__ import annotations

import math
from typing import Any

import torchmlx as torch

from ..core import layout
from ..core.tensor import Tensor
from . import constraints
from .distribution import Distribution
from .utils import lazy_property, standard_normal


class MultivariateNormal(Distribution):
    """Of mean `loc` [..., n] and one of covariance, precision, its Cholesky factor [..., n, n]."""

    arg_constraints = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if loc.dim() < 1:
            raise ValueError("loc must be at least one-dimensional.")
        matrices = {
            "covariance_matrix": covariance_matrix,
            "precision_matrix": precision_matrix,
            "scale_tril": scale_tril,
        }
        given = [(name, matrix) for name, matrix in matrices.items() if matrix is not None]
        if len(given) != 1:
            raise ValueError(
                "Exactly one of covariance_matrix or precision_matrix or scale_tril may be "
                "specified."
            )
        name, matrix = given[0]
        if matrix.dim() < 2:
            raise ValueError(
                f"{name} must be at least two-dimensional, with optional leading batch dimensions"
            )
        batch = layout.broadcast_shapes(matrix.shape[:-2], loc.shape[:-1])
        setattr(self, name, matrix.expand((*batch, -1, -1)))
        self.loc = loc.expand((*batch, -1))
        super().__init__(batch, self.loc.shape[-1:], validate_args=validate_args)

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The covariance's lower Cholesky factor."""
        if "covariance_matrix" in vars(self):
            return torch.linalg.cholesky(self.covariance_matrix)
        # Of the inverse: the precision's factor from behind, inverted.
        flipped = torch.linalg.cholesky(torch.flip(self.precision_matrix, (-2, -1)))
        upper = torch.flip(flipped, (-2, -1)).mT
        identity = torch.eye(self._event_shape[0], dtype=self.loc.dtype, device=self.loc.device)
        return torch.linalg.solve_triangular(upper, identity.expand(upper.shape), upper=False)

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        return self.scale_tril @ self.scale_tril.mT

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The covariance's inverse."""
        return torch.cholesky_inverse(self.scale_tril)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale_tril.pow(2).sum(-1)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        noise = standard_normal(self._extended_shape(sample_shape), self.loc)
        return self.loc + (self.scale_tril @ noise.unsqueeze(-1)).squeeze(-1)

    def _half_log_det(self) -> Tensor:
        return self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        off = (value - self.loc).unsqueeze(-1)
        factor = self.scale_tril.expand((*off.shape[:-2], *self.scale_tril.shape[-2:]))
        white = torch.linalg.solve_triangular(factor, off, upper=False).squeeze(-1)
        distance = white.pow(2).sum(-1)
        norm = self._event_shape[0] * math.log(2 * math.pi)
        return -0.5 * (norm + distance) - self._half_log_det()

    def entropy(self) -> Tensor:
        return 0.5 * self._event_shape[0] * (1.0 + math.log(2 * math.pi)) + self._half_log_det()
