"""torch.overrides: torchmlx calls its own functions on tensors, never a subclass's
__torch_function__.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class TorchFunctionMode:
    """Absent: it cannot be entered, since nothing would be passed to it."""

    def __enter__(self) -> Any:
        raise NotImplementedError("torch.overrides.TorchFunctionMode: nothing calls it here")

    def __exit__(self, *exc: Any) -> None:
        """Never entered."""


def has_torch_function(relevant_args: Iterable[Any]) -> bool:
    """False: nobody's __torch_function__ is called."""
    return False


has_torch_function_unary = has_torch_function


def has_torch_function_variadic(*relevant_args: Any) -> bool:
    """False."""
    return False


def handle_torch_function(public_api: Callable, relevant_args: Any, *args: Any, **kwargs: Any):
    """public_api(*args, **kwargs)."""
    return public_api(*args, **kwargs)


def get_default_nowrap_functions() -> set[Callable]:
    """None."""
    return set()


def is_tensor_like(inp: Any) -> bool:
    """Whether it is a tensor, or has a __torch_function__."""
    from .core.tensor import Tensor

    return isinstance(inp, Tensor) or hasattr(inp, "__torch_function__")
