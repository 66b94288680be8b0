"""torch.accelerator: the GPU of this machine, where there is one."""

from __future__ import annotations

import mlx.core as mx

from .core import device as _devices


def is_available() -> bool:
    """Whether MLX has a GPU here."""
    return _devices.GPU is not None


def device_count() -> int:
    """Number of GPUs: 0 or 1."""
    return int(is_available())


def current_accelerator(check_available: bool = False) -> _devices.device | None:
    """The GPU's device without an index, or None."""
    return None if _devices.GPU is None else _devices.device(_devices.GPU.type)


def current_device_index() -> int:
    """Index of the current GPU, always 0."""
    return 0


def synchronize(device=None) -> None:
    """Wait until everything submitted to the device is done."""
    mx.synchronize()


def memory_allocated(device_index=None) -> int:
    """Bytes of live arrays."""
    return mx.get_active_memory()


def max_memory_allocated(device_index=None) -> int:
    """Largest number of bytes of live arrays since the last reset."""
    return mx.get_peak_memory()


def memory_reserved(device_index=None) -> int:
    """Bytes of live arrays and of MLX's cache of free buffers."""
    return mx.get_active_memory() + mx.get_cache_memory()


def reset_peak_memory_stats(device_index=None) -> None:
    """Forget the largest number of bytes so far."""
    mx.reset_peak_memory()


def empty_cache() -> None:
    """Give MLX's free buffers back to the system."""
    mx.clear_cache()
