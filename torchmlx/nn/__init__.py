"""torch.nn: modules, parameters and their functions."""

from . import functional

__all__ = ["functional"]
