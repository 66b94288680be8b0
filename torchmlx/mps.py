"""torch.mps: the Apple GPU."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from . import random as _random
from . import streams as _streams
from .core import device as _devices
from .streams import StreamContext as stream

Stream, Event = _streams.of("mps")

__all__ = [
    "Event", "Stream", "current_allocated_memory", "current_stream", "default_stream",
    "device_count", "driver_allocated_memory", "empty_cache", "get_rng_state", "is_available",
    "manual_seed", "recommended_max_memory", "seed", "set_per_process_memory_fraction",
    "set_rng_state", "set_stream", "stream", "synchronize",
]  # fmt: skip


def is_available() -> bool:
    """Whether there is a Metal GPU here."""
    return mx.metal.is_available()


def device_count() -> int:
    """Number of Metal GPUs: 0 or 1."""
    return int(is_available())


def _require(what: str) -> None:
    if not is_available():
        raise RuntimeError(f"Cannot execute {what}() without MPS backend.")


def synchronize() -> None:
    """Compute what is still to be computed, on all streams, and wait."""
    _require("deviceSynchronize")
    _streams.settle()


def current_stream() -> _streams.Stream:
    """The stream that this thread's operations on the GPU go to."""
    return _streams.current_stream(kind="mps")


def default_stream() -> _streams.Stream:
    """Stream 0."""
    return _streams.default_stream(kind="mps")


def set_stream(stream: _streams.Stream) -> None:
    """This thread's operations on the GPU go to `stream` from now on."""
    _streams.set_stream(stream)


def empty_cache() -> None:
    """Give MLX's free buffers back to the system."""
    mx.clear_cache()


def current_allocated_memory() -> int:
    """Bytes of live arrays, without MLX's cache of free buffers."""
    return mx.get_active_memory()


def driver_allocated_memory() -> int:
    """Bytes of live arrays and of MLX's cache of free buffers."""
    return mx.get_active_memory() + mx.get_cache_memory()


def recommended_max_memory() -> int:
    """Bytes that Metal recommends to use at most."""
    _require("getRecommendedMaxMemory")
    return int(mx.device_info(mx.Device(mx.gpu))["max_recommended_working_set_size"])


def set_per_process_memory_fraction(fraction: float) -> None:
    """Limit MLX's memory to this part, 0 to 2, of what Metal recommends; 0: no limit."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 2:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~2")
    most = recommended_max_memory()
    mx.set_memory_limit(int(fraction * most) if fraction else 1 << 62)


def manual_seed(seed: int) -> None:
    """Seed the GPU's generator; ignored without a GPU, as in torch."""
    if is_available():
        _generator().manual_seed(int(seed))


def seed() -> None:
    """Seed the GPU's generator from the system's entropy."""
    if is_available():
        _generator().seed()


def get_rng_state(device: Any = "mps") -> Any:
    """The state of the GPU's generator."""
    return _generator().get_state()


def set_rng_state(new_state: Any, device: Any = "mps") -> None:
    """Set the state of the GPU's generator."""
    _generator().set_state(new_state)


def _generator() -> _random.Generator:
    _require("getDefaultGenerator")
    return _random.generator_for(_devices.device("mps"), None)
