"""torch.mps: the Apple GPU."""

from __future__ import annotations

import mlx.core as mx


def is_available() -> bool:
    """Whether there is a Metal GPU here."""
    return mx.metal.is_available()


def device_count() -> int:
    """Number of Metal GPUs: 0 or 1."""
    return int(is_available())


def synchronize() -> None:
    """Wait until everything submitted to the GPU is done."""
    mx.synchronize()


def empty_cache() -> None:
    """Give MLX's free buffers back to the system."""
    mx.clear_cache()


def current_allocated_memory() -> int:
    """Bytes of live arrays, without MLX's cache of free buffers."""
    return mx.get_active_memory()


def driver_allocated_memory() -> int:
    """Bytes of live arrays and of MLX's cache of free buffers."""
    return mx.get_active_memory() + mx.get_cache_memory()
