"""torch._dynamo: settings that scripts write, without effect, and names of torch.compiler."""

from __future__ import annotations

from typing import Any

from ..compiler import allow_in_graph, disable, is_compiling, reset
from . import config, utils

__all__ = [
    "allow_in_graph", "config", "disable", "graph_break", "is_compiling", "mark_dynamic",
    "mark_static", "reset", "utils",
]  # fmt: skip


def mark_dynamic(t: Any, index: Any, **settings: Any) -> None:
    """Accepted: each shape is compiled by itself."""


mark_static = maybe_mark_dynamic = mark_dynamic


def graph_break(msg: str = "") -> None:
    """Nothing to break."""
