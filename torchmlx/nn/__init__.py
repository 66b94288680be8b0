"""torch.nn: modules, parameters and their functions."""

from . import attention, functional, init, modules, parallel, parameter, utils
from .modules import *  # noqa: F403  (what modules.__all__ lists)
from .modules import __all__ as _modules
from .parallel import DataParallel
from .parameter import Buffer, Parameter

__all__ = [
    "Buffer", "DataParallel", "Parameter", "attention", "functional", "init", "modules", "parallel",
    "parameter", "utils", *_modules,
]  # fmt: skip
