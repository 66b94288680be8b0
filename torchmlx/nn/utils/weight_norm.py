"""Weights as a length times a direction, computed before each call. torch.nn.utils.weight_norm.

Salimans and Kingma 2016. torch recommends parametrizations.weight_norm instead; checkpoints of
speech models have this one's names, `weight_g` and `weight_v`.
"""

from __future__ import annotations

import warnings
from typing import Any

from ..parameter import Parameter

__all__ = ["WeightNorm", "remove_weight_norm", "weight_norm"]


def norm_except(v: Any, dim: int):
    """The lengths of v's slices along `dim` (-1: of v), in a shape that broadcasts to v's."""
    if dim == -1:
        return v.norm()
    dim %= v.ndim
    others = [d for d in range(v.ndim) if d != dim]
    return v.norm(2, others, keepdim=True) if others else v.abs()


def scaled(v: Any, g: Any, dim: int):
    """v with slices along `dim` of the lengths g."""
    return v * (g / norm_except(v, dim))


class WeightNorm:
    """The hook that computes a weight from its length and direction before each call."""

    def __init__(self, name: str, dim: int | None) -> None:
        self.name, self.dim = name, -1 if dim is None else dim

    def compute_weight(self, module):
        """The weight as the module's parameters have it now."""
        v, g = getattr(module, self.name + "_v"), getattr(module, self.name + "_g")
        return scaled(v, g, self.dim)

    @staticmethod
    def apply(module, name: str, dim: int | None) -> WeightNorm:
        """Put the hook on `module`; RuntimeError where the weight has one."""
        if any(on_weight(hook, WeightNorm, name) for hook in module._forward_pre_hooks.values()):
            raise RuntimeError(
                f"Cannot register two weight_norm hooks on the same parameter {name}"
            )
        hook = WeightNorm(name, dim)
        weight = getattr(module, name)
        del module._parameters[name]
        module.register_parameter(name + "_g", Parameter(norm_except(weight, hook.dim).data))
        module.register_parameter(name + "_v", Parameter(weight.data))
        setattr(module, name, hook.compute_weight(module))
        module.register_forward_pre_hook(hook)
        return hook

    def remove(self, module) -> None:
        """Make the weight a parameter again."""
        weight = self.compute_weight(module)
        delattr(module, self.name)
        del module._parameters[self.name + "_g"], module._parameters[self.name + "_v"]
        setattr(module, self.name, Parameter(weight.data))

    def __call__(self, module, inputs) -> None:
        setattr(module, self.name, self.compute_weight(module))


def on_weight(hook, kind: type, name: str) -> bool:
    """Whether a hook is of this kind and computes weight `name`."""
    return isinstance(hook, kind) and hook.name == name  # type: ignore[attr-defined]


def take_off(module, kind: type, name: str, what: str):
    """Remove the hook of this kind on weight `name`. Returns the module; ValueError without one."""
    for key, hook in module._forward_pre_hooks.items():
        if on_weight(hook, kind, name):
            hook.remove(module)
            del module._forward_pre_hooks[key]
            return module
    raise ValueError(f"{what} of '{name}' not found in {module}")


def weight_norm(module, name: str = "weight", dim: int | None = 0):
    """Split parameter `name` of `module` into `name`_g and `name`_v. Returns the module.

    dim: the dimension whose slices have a length each; None for one length.
    """
    warnings.warn(
        "`torch.nn.utils.weight_norm` is deprecated in favor of "
        "`torch.nn.utils.parametrizations.weight_norm`.",
        FutureWarning,
        stacklevel=2,
    )
    WeightNorm.apply(module, name, dim)
    return module


def remove_weight_norm(module, name: str = "weight"):
    """Undo `weight_norm`. Returns the module; ValueError where there is none."""
    return take_off(module, WeightNorm, name, "weight_norm")
