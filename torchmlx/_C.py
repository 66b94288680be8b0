"""torch._C: the few names of torch's core that libraries written in Python ask for."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

from .aten.convert import parse_to
from .core.device import device
from .random import Generator as Generator

DisableTorchFunctionSubclass = contextlib.nullcontext


def _log_api_usage_once(event: str) -> None:
    """Nothing is counted."""


def _get_tracing_state() -> None:
    """None: nothing is traced."""


def _parse_to(*args, **kwargs):
    """(device, dtype, non_blocking, memory_format) of the arguments that Module.to takes."""
    target, where, _, memory_format = parse_to(args, kwargs)
    flags = [a for a in args if isinstance(a, bool)]
    blocking = bool(flags[0] if flags else kwargs.get("non_blocking", False))
    where = device(where) if isinstance(where, (str, int)) else where
    return where, target, blocking, memory_format


class _Keys(type):
    def __getattr__(cls, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name


class DispatchKey(metaclass=_Keys):
    """Names of torch's layers of functions (AutocastCPU, ...). There is one layer here."""


class DispatchKeySet(frozenset):
    """Some of these names."""

    def __new__(cls, *keys: str) -> DispatchKeySet:
        return super().__new__(cls, keys)


class _ExcludeDispatchKeyGuard(contextlib.nullcontext):
    """Inside, layers are left out; none of them is here."""


_nn = SimpleNamespace(_parse_to=_parse_to)
