"""Weights divided by their largest singular value before each call. torch.nn.utils.spectral_norm.

Miyato et al. 2018, by power iteration; parametrizations.spectral_norm is the newer form.
"""

from __future__ import annotations

from typing import Any

from ...core.modes import no_grad
from .. import functional as F
from ..modules.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from ..parameter import Parameter
from .weight_norm import on_weight, take_off

__all__ = ["SpectralNorm", "remove_spectral_norm", "spectral_norm"]


def usual_dim(module) -> int:
    """The dimension of a weight's outputs."""
    return 1 if isinstance(module, (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)) else 0


def as_matrix(weight: Any, dim: int):
    """The weight as a matrix with a row for each of `dim`."""
    if dim != 0:
        weight = weight.permute(dim, *[d for d in range(weight.ndim) if d != dim])
    return weight.reshape(weight.shape[0], -1)


def iterate(matrix: Any, u: Any, v: Any, times: int, eps: float) -> None:
    """Bring u and v nearer to the first singular vectors, in place."""
    with no_grad():
        for _ in range(times):
            u.copy_(F.normalize(matrix.mv(v), dim=0, eps=eps))
            v.copy_(F.normalize(matrix.t().mv(u), dim=0, eps=eps))


class SpectralNorm:
    """The hook that computes the weight, and in training improves the singular vectors."""

    _version = 1

    def __init__(self, name="weight", n_power_iterations=1, dim=0, eps=1e-12) -> None:
        if n_power_iterations <= 0:
            raise ValueError(
                "Expected n_power_iterations to be positive, but got "
                f"n_power_iterations={n_power_iterations}"
            )
        self.name, self.dim = name, dim
        self.n_power_iterations, self.eps = n_power_iterations, eps

    def compute_weight(self, module, do_power_iteration: bool):
        """The weight divided by its largest singular value as far as it is known."""
        weight = getattr(module, self.name + "_orig")
        u, v = getattr(module, self.name + "_u"), getattr(module, self.name + "_v")
        matrix = as_matrix(weight, self.dim)
        if do_power_iteration:
            with no_grad():
                for _ in range(self.n_power_iterations):
                    v.copy_(F.normalize(matrix.t().mv(u), dim=0, eps=self.eps))
                    u.copy_(F.normalize(matrix.mv(v), dim=0, eps=self.eps))
                u, v = u.clone(), v.clone()  # the next call writes them before the backward pass
        return weight / u.dot(matrix.mv(v))

    def remove(self, module) -> None:
        """Make the weight a parameter again."""
        with no_grad():
            weight = self.compute_weight(module, do_power_iteration=False)
        delattr(module, self.name)
        delattr(module, self.name + "_u")
        delattr(module, self.name + "_v")
        delattr(module, self.name + "_orig")
        module.register_parameter(self.name, Parameter(weight.detach()))

    def __call__(self, module, inputs) -> None:
        weight = self.compute_weight(module, do_power_iteration=module.training)
        setattr(module, self.name, weight)

    @staticmethod
    def apply(module, name, n_power_iterations, dim, eps) -> SpectralNorm:
        """Put the hook on `module`; RuntimeError where the weight has one."""
        if any(on_weight(hook, SpectralNorm, name) for hook in module._forward_pre_hooks.values()):
            raise RuntimeError(
                f"Cannot register two spectral_norm hooks on the same parameter {name}"
            )
        hook = SpectralNorm(name, n_power_iterations, dim, eps)
        weight = module._parameters[name]
        if weight is None:
            raise ValueError(f"`SpectralNorm` cannot be applied as parameter `{name}` is None")
        with no_grad():
            height, width = as_matrix(weight, dim).shape
            u = F.normalize(weight.new_empty(height).normal_(0, 1), dim=0, eps=eps)
            v = F.normalize(weight.new_empty(width).normal_(0, 1), dim=0, eps=eps)
        delattr(module, name)
        module.register_parameter(name + "_orig", weight)
        setattr(module, name, weight.data)
        module.register_buffer(name + "_u", u)
        module.register_buffer(name + "_v", v)
        module.register_forward_pre_hook(hook)
        return hook


def spectral_norm(module, name="weight", n_power_iterations=1, eps=1e-12, dim=None):
    """Divide parameter `name` of `module` by its largest singular value. Returns the module."""
    SpectralNorm.apply(
        module, name, n_power_iterations, usual_dim(module) if dim is None else dim, eps
    )
    return module


def remove_spectral_norm(module, name: str = "weight"):
    """Undo `spectral_norm`. Returns the module; ValueError where there is none."""
    return take_off(module, SpectralNorm, name, "spectral_norm")
