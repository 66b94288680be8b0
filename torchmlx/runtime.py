"""torch's settings that choose among ways to compute, and names that other libraries ask for.

The settings are kept and answered. They change nothing here: float32 products are float32's, and
MLX's results are the same from run to run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from .core.tensor import Tensor

PRECISIONS = ("highest", "high", "medium")
_settings = {"matmul": "highest", "deterministic": False, "warn_only": False}


class OutOfMemoryError(RuntimeError):
    """torch.OutOfMemoryError, for scripts that catch it. MLX raises RuntimeError itself."""


class layout:
    """How a tensor lies in memory; there is torch.strided alone."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


strided = layout("torch.strided")
Tensor.layout = property(lambda self: strided)  # type: ignore[attr-defined]


def set_float32_matmul_precision(precision: str) -> None:
    """Keep the setting. Products of float32 stay exact whatever it says: "highest"."""
    if precision not in PRECISIONS:
        raise RuntimeError(f"Invalid float32 matmul precision {precision!r}: one of {PRECISIONS}")
    _settings["matmul"] = precision


def get_float32_matmul_precision() -> str:
    """What was set. torch.get_float32_matmul_precision."""
    return str(_settings["matmul"])


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Keep the setting. torch.use_deterministic_algorithms."""
    _settings.update(deterministic=bool(mode), warn_only=bool(warn_only))


def are_deterministic_algorithms_enabled() -> bool:
    """What was set. torch.are_deterministic_algorithms_enabled."""
    return bool(_settings["deterministic"])


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """What was set. torch.is_deterministic_algorithms_warn_only_enabled."""
    return bool(_settings["deterministic"] and _settings["warn_only"])


def typename(obj: Any) -> str:
    """The type's full name, "torch.FloatTensor" for tensors. torch.typename."""
    if isinstance(obj, Tensor):
        return f"torch.{obj.dtype.torch_name}Tensor"
    kind = obj if hasattr(obj, "__qualname__") else type(obj)
    module, name = getattr(kind, "__module__", ""), kind.__qualname__
    return name if module in ("", "builtins", "__builtin__") else f"{module}.{name}"


_told = False


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "inductor",
    mode: str | None = None,
    options: dict | None = None,
    disable: bool = False,
) -> Any:
    """`model` (a function or module) itself, to run as it is: torch.compile's backend "eager".

    `mx.compile` would keep the values of captured tensors, repeat random numbers and miss writes in
    place; on a CPU it also starts a C++ compiler for every fused kernel. Used without `model` it is
    a decorator. The first use says so in the log.
    """
    global _told
    if mode is not None and options is not None:
        raise RuntimeError("Either mode or options can be specified, but both can't be specified.")
    if model is None:
        return _unchanged
    if not callable(model):
        raise RuntimeError(
            f"torch.compile wants a function or a module, not {type(model).__name__}"
        )
    if not (_told or disable):
        _told = True
        logging.getLogger(__name__).warning("torch.compile runs everything as it is, uncompiled")
    return model


def _unchanged(function: Callable) -> Any:
    return compile(function)
