"""torch.nn: modules, parameters and their functions."""

from . import functional, init, modules, parameter, utils
from .modules import *  # noqa: F403  (what modules.__all__ lists)
from .modules import __all__ as _modules
from .parameter import Buffer, Parameter

__all__ = ["Buffer", "Parameter", "functional", "init", "modules", "parameter", "utils", *_modules]
