"""torch.cpu: what code that does not care which device it runs on asks of one."""

from __future__ import annotations

from typing import Any

from . import streams as _streams
from .streams import StreamContext as StreamContext

Stream, _ = _streams.of("cpu")


def is_available() -> bool:
    """True."""
    return True


def device_count() -> int:
    """1."""
    return 1


def current_device() -> str:
    """Always "cpu"."""
    return "cpu"


def set_device(device: Any) -> None:
    """Accepted: there is one CPU."""


def synchronize(device: Any = None) -> None:
    """Compute what is still to be computed, and wait."""
    _streams.settle()


def current_stream(device: Any = None) -> _streams.Stream:
    """The stream that this thread's operations go to."""
    return _streams.current_stream(kind="cpu")


def is_initialized() -> bool:
    """True."""
    return True
