"""torch.cuda: available only where MLX itself runs on CUDA.

Without it everything answers as torch's build without CUDA does.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from ..accelerator import memory_reserved as _reserved
from ..core import device as _devices
from ..core.legacy import TYPES as _TYPES
from ..runtime import OutOfMemoryError as OutOfMemoryError
from . import amp as amp

globals().update(_TYPES)  # torch.cuda.HalfTensor and its kin, in annotations


def is_available() -> bool:
    """Whether MLX has a CUDA GPU here (its CUDA build on Linux)."""
    return mx.cuda.is_available()


def _require() -> None:
    if not is_available():
        raise AssertionError("Torch not compiled with CUDA enabled")


def is_initialized() -> bool:
    """Whether there is a GPU: MLX has no moment of initialisation."""
    return is_available()


def device_count() -> int:
    """Number of CUDA GPUs that MLX uses: 0 or 1."""
    return int(is_available())


def current_device() -> int:
    """Index of the current GPU, always 0; torch's error where there is none."""
    _require()
    return 0


def set_device(device: Any) -> None:
    """Choose the GPU: there is one. torch's error for any other."""
    _require()
    _devices.resolve(_devices.device("cuda", device) if isinstance(device, int) else device)


def get_device_name(device: Any = None) -> str:
    """The GPU's name."""
    _require()
    return str(mx.device_info(mx.Device(mx.gpu)).get("device_name", "cuda"))


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 works on the GPU."""
    return is_available()


def synchronize(device: Any = None) -> None:
    """Wait until everything submitted to the GPU is done; torch's error where there is none."""
    _require()
    mx.synchronize()


def empty_cache() -> None:
    """Give MLX's free buffers back to the system."""
    mx.clear_cache()


def memory_allocated(device: Any = None) -> int:
    """Bytes of live arrays on the GPU; 0 without one."""
    return mx.get_active_memory() if is_available() else 0


def max_memory_allocated(device: Any = None) -> int:
    """Largest number of bytes of live arrays since the last reset; 0 without a GPU."""
    return mx.get_peak_memory() if is_available() else 0


def memory_reserved(device: Any = None) -> int:
    """Bytes of live arrays and of MLX's cache of free buffers; 0 without a GPU."""
    return _reserved() if is_available() else 0


def max_memory_reserved(device: Any = None) -> int:
    """What MLX knows of it: the peak of live arrays, and its cache now; 0 without a GPU."""
    return mx.get_peak_memory() + mx.get_cache_memory() if is_available() else 0


def reset_peak_memory_stats(device: Any = None) -> None:
    """Forget the largest number of bytes so far."""
    mx.reset_peak_memory()


def manual_seed(seed: int) -> None:
    """Seed the GPU's generator; ignored without a GPU, as in torch."""
    if is_available():
        mx.random.seed(seed)


manual_seed_all = manual_seed
