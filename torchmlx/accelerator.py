"""torch.accelerator: the GPU of this machine, where there is one."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from . import machine as _machine
from . import streams as _streams
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


def _require() -> None:
    if _devices.GPU is None:
        raise RuntimeError("Cannot access accelerator device when none is available.")


def current_device_index() -> int:
    """Index of the current GPU, always 0; torch's error without one, as below."""
    _require()
    return 0


current_device_idx = current_device_index


def set_device_index(device: Any) -> None:
    """Choose the GPU: there is one."""
    _require()
    number = device if isinstance(device, int) else _devices.device(device).index or 0
    if number != 0:
        raise RuntimeError(f"invalid device ordinal {number}: there is one GPU, {_devices.GPU}")


set_device_idx = set_device_index


class device_index:
    """`with torch.accelerator.device_index(0):`, where there is one GPU to choose."""

    def __init__(self, device: int | None) -> None:
        self.idx = device

    def __enter__(self) -> None:
        """There is nothing to switch."""

    def __exit__(self, *exc: Any) -> None:
        """There is nothing to switch back."""


def current_stream(device: Any = None) -> _streams.Stream:
    """The stream that this thread's operations on the GPU go to."""
    _require()
    return _streams.current_stream(device)


def set_stream(stream: _streams.Stream) -> None:
    """This thread's operations on the stream's device go there from now on."""
    _streams.set_stream(stream)


def synchronize(device: Any = None) -> None:
    """Compute what is still to be computed, and wait."""
    _require()
    _streams.settle()


def memory_allocated(device_index: Any = None) -> int:
    """Bytes of live arrays."""
    _require()
    return mx.get_active_memory()


def max_memory_allocated(device_index: Any = None) -> int:
    """Largest number of bytes of live arrays since the last reset."""
    _require()
    return mx.get_peak_memory()


def memory_reserved(device_index: Any = None) -> int:
    """Bytes of live arrays and of MLX's cache of free buffers."""
    _require()
    return mx.get_active_memory() + mx.get_cache_memory()


def max_memory_reserved(device_index: Any = None) -> int:
    """What MLX knows of it: the peak of live arrays, and its cache now."""
    _require()
    return mx.get_peak_memory() + mx.get_cache_memory()


def reset_peak_memory_stats(device_index: Any = None) -> None:
    """Forget the largest number of bytes so far."""
    _require()
    mx.reset_peak_memory()


def get_memory_info(device_index: Any = None) -> tuple[int, int]:
    """Bytes that are free and bytes in all."""
    _require()
    total = _machine.memory_total()
    free = _machine.memory_available()
    return (total - mx.get_active_memory() if free is None else free), total


def empty_cache() -> None:
    """Give MLX's free buffers back to the system."""
    mx.clear_cache()
