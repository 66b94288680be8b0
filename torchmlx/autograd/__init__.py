"""torch.autograd: gradients by a tape over the operations."""

from __future__ import annotations

from ..core.modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from ..core.tensor import Tensor as Variable
from . import derivatives as _derivatives  # noqa: F401  # fills the table of gradients
from . import engine, function, functional, graph, methods
from . import reductions as _reductions  # noqa: F401  # more of them
from .anomaly import detect_anomaly, set_detect_anomaly
from .engine import backward, grad
from .function import Function
from .gradcheck import gradcheck

__all__ = [
    "Function", "Variable", "backward", "detect_anomaly", "enable_grad", "engine", "function",
    "functional", "grad", "gradcheck", "graph", "inference_mode", "is_grad_enabled", "methods",
    "no_grad", "set_detect_anomaly", "set_grad_enabled",
]  # fmt: skip
