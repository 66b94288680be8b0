"""torch.compiler, where nothing is compiled: functions come back as they are."""

from __future__ import annotations

from typing import Any

from .runtime import compile as compile


def is_compiling() -> bool:
    """False: torch.compile runs everything as it is."""
    return False


is_dynamo_compiling = is_exporting = is_compiling


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """`fn` itself; without it a decorator. torch.compiler.disable."""
    return (lambda function: function) if fn is None else fn


def allow_in_graph(fn: Any) -> Any:
    """`fn` itself. torch.compiler.allow_in_graph."""
    return fn


def reset() -> None:
    """Nothing is kept that could be forgotten. torch.compiler.reset."""


def cudagraph_mark_step_begin() -> None:
    """There are no CUDA graphs. torch.compiler.cudagraph_mark_step_begin."""
