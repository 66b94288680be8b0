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


assume_constant_result = keep_portable_guards_unsafe = nested_compile_region = allow_in_graph


def substitute_in_graph(original_fn: Any, **settings: Any) -> Any:
    """A decorator that gives back its function: the original runs. torch.compiler."""
    return allow_in_graph


def list_backends(exclude_tags: Any = ()) -> list[str]:
    """What there is: "eager". torch.compiler.list_backends."""
    return ["eager"]


class set_stance:
    """Accepted, as a call, a context and a decorator. torch.compiler.set_stance."""

    def __init__(self, stance: str = "default", **settings: Any) -> None:
        self.stance = stance

    def __call__(self, fn: Any) -> Any:
        return fn

    def __enter__(self) -> None:
        """Nothing changes."""

    def __exit__(self, *exc: Any) -> None:
        """Nothing had changed."""


def reset() -> None:
    """Nothing is kept that could be forgotten. torch.compiler.reset."""


def cudagraph_mark_step_begin() -> None:
    """There are no CUDA graphs. torch.compiler.cudagraph_mark_step_begin."""
