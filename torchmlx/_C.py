"""torch._C: the few names of torch's core that libraries written in Python ask for."""

from __future__ import annotations

import contextlib

from .random import Generator as Generator

DisableTorchFunctionSubclass = contextlib.nullcontext


def _log_api_usage_once(event: str) -> None:
    """Nothing is counted."""


def _get_tracing_state() -> None:
    """None: nothing is traced."""
