"""torch.cuda: available only where MLX itself runs on CUDA."""

from __future__ import annotations

import mlx.core as mx


def is_available() -> bool:
    """Whether MLX has a CUDA GPU here (its CUDA build on Linux)."""
    return mx.cuda.is_available()


def device_count() -> int:
    """Number of CUDA GPUs that MLX uses: 0 or 1."""
    return int(is_available())


def synchronize(device=None) -> None:
    """Wait until everything submitted to the GPU is done; torch's error where there is none."""
    if not is_available():
        raise AssertionError("Torch not compiled with CUDA enabled")
    mx.synchronize()


def empty_cache() -> None:
    """Give MLX's free buffers back to the system."""
    mx.clear_cache()
