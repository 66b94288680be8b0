"""torch.fx, which traces nothing here: libraries that only mark functions for it import.

`wrap` gives back what it is given; the classes refuse to be made.
"""

from __future__ import annotations

from typing import Any, NoReturn


def wrap(fn_or_name: Any) -> Any:
    """The function, or its name, itself: nothing is traced that it could be hidden from."""
    return fn_or_name


class _Absent:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"torch.fx.{type(self).__name__}: torchmlx traces no graphs")


class Graph(_Absent):
    """torch.fx.Graph, absent."""


class GraphModule(_Absent):
    """torch.fx.GraphModule, absent."""


class Node(_Absent):
    """torch.fx.Node, absent."""


class Proxy(_Absent):
    """torch.fx.Proxy, absent."""


class Tracer(_Absent):
    """torch.fx.Tracer, absent."""


class Interpreter(_Absent):
    """torch.fx.Interpreter, absent."""


class Transformer(_Absent):
    """torch.fx.Transformer, absent."""


def symbolic_trace(root: Any, concrete_args: Any = None) -> NoReturn:
    """NotImplementedError. torch.fx.symbolic_trace."""
    raise NotImplementedError("torch.fx.symbolic_trace: torchmlx traces no graphs")


def is_fx_tracing() -> bool:
    """False."""
    return False
