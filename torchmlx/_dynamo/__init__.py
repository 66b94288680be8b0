"""torch._dynamo: settings that scripts write, without effect, and names of torch.compiler."""

from __future__ import annotations

from typing import Any

from ..compiler import (
    allow_in_graph,
    assume_constant_result,
    disable,
    is_compiling,
    list_backends,
    reset,
    substitute_in_graph,
)
from ..runtime import compile as _compile
from . import config, utils

__all__ = [
    "allow_in_graph", "assume_constant_result", "config", "disable", "graph_break", "is_compiling",
    "list_backends", "mark_dynamic", "mark_static", "maybe_mark_dynamic", "optimize", "reset",
    "substitute_in_graph", "utils",
]  # fmt: skip


def mark_dynamic(t: Any, index: Any, **settings: Any) -> None:
    """Accepted: each shape is compiled by itself."""


mark_static = maybe_mark_dynamic = mark_dynamic


def graph_break(msg: str = "") -> None:
    """Nothing to break."""


def optimize(backend: Any = "inductor", **settings: Any) -> Any:
    """torch.compile as a decorator."""
    return _compile(backend=backend)
