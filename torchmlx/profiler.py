"""torch.profiler, a stand-in: code between its calls runs, nothing is recorded."""

from __future__ import annotations

import contextlib
import enum
import warnings
from collections.abc import Iterator
from typing import Any


class ProfilerActivity(enum.Enum):
    """What torch's profiler can watch."""

    CPU = 0
    CUDA = 1
    XPU = 2
    MTIA = 3


class profile:
    """A context manager that records nothing, and warns so. torch.profiler.profile."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warnings.warn(
            "torch.profiler records nothing on torchmlx: Instruments profiles Metal, py-spy Python",
            stacklevel=2,
        )

    def __enter__(self) -> profile:
        return self

    def __exit__(self, *error: Any) -> None: ...

    def start(self) -> None:
        """Nothing begins."""

    def stop(self) -> None:
        """Nothing ends."""

    def step(self) -> None:
        """The next step of a schedule."""

    def key_averages(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("torch.profiler.profile.key_averages: nothing was recorded")

    export_chrome_trace = key_averages


@contextlib.contextmanager
def record_function(name: str, args: str | None = None) -> Iterator[None]:
    """A name for the code inside; nobody reads it. torch.profiler.record_function."""
    yield


def schedule(*, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0) -> Any:
    """Accepted, since nothing is recorded. torch.profiler.schedule."""
    return lambda step: None
