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


_nn = SimpleNamespace(_parse_to=_parse_to)
