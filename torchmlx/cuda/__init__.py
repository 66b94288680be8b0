"""torch.cuda: available where MLX runs on CUDA, or where the runner's --cuda-as-mps lets this
machine's device stand in for it.

Without either everything answers as torch's build without CUDA does.
"""

from __future__ import annotations

from types import SimpleNamespace as _Namespace
from typing import Any

import mlx.core as mx

from .. import machine as _machine
from .. import random as _random
from .. import streams as _streams
from ..core import device as _devices
from ..core.legacy import TYPES as _TYPES
from ..runtime import OutOfMemoryError as OutOfMemoryError
from ..streams import StreamContext as StreamContext
from . import amp as amp
from . import nvtx as nvtx

Stream, Event = _streams.of("cuda")
stream = StreamContext

globals().update(_TYPES)  # torch.cuda.HalfTensor and its kin, in annotations


def is_available() -> bool:
    """Whether MLX has a CUDA GPU here (its CUDA build on Linux), or one is stood in for."""
    return _devices.has_cuda()


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
    return str(_info().get("device_name", "CPU"))


def _info() -> dict[str, Any]:
    return mx.device_info(mx.Device(mx.gpu)) if _devices.GPU else {}


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The compute capability: MLX on CUDA needs 7.5 at least; 8.0 says that bfloat16 works."""
    _require()
    return 8, 0


def get_device_properties(device: Any = None) -> Any:
    """name, total_memory in bytes, major and minor of the capability."""
    major, minor = get_device_capability()
    total = mem_get_info()[1]
    return _Namespace(
        name=get_device_name(), total_memory=total, major=major, minor=minor,
        multi_processor_count=1, warp_size=32, is_integrated=1,
    )  # fmt: skip


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Bytes that are free and bytes in all: CPU and GPU share one memory on a Mac."""
    _require()
    total = _machine.memory_total()
    free = _machine.memory_available()
    return (total - mx.get_active_memory() if free is None else free), total


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 works on the GPU."""
    return is_available()


def synchronize(device: Any = None) -> None:
    """Compute what is still to be computed, and wait; torch's error where there is no GPU."""
    _require()
    _streams.settle()


def current_stream(device: Any = None) -> _streams.Stream:
    """The stream that this thread's operations on the GPU go to."""
    _require()
    return _streams.current_stream(device, "cuda")


def default_stream(device: Any = None) -> _streams.Stream:
    """Stream 0."""
    _require()
    return _streams.default_stream(device, "cuda")


def set_stream(stream: _streams.Stream) -> None:
    """This thread's operations on the GPU go to `stream` from now on."""
    _streams.set_stream(stream)


class device:
    """`with torch.cuda.device(0):`, where there is one GPU to choose."""

    def __init__(self, device: Any) -> None:
        self.idx = getattr(device, "index", device)

    def __enter__(self) -> None:
        """There is nothing to switch."""

    def __exit__(self, *exc: Any) -> None:
        """There is nothing to switch back."""


class CUDAGraph:
    """torch.cuda.CUDAGraph, absent: it cannot be made."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        raise NotImplementedError(f"torch.cuda.{type(self).__name__}: MLX has no such graphs")


class graph(CUDAGraph):
    """torch.cuda.graph, absent: it cannot be made."""


def is_current_stream_capturing() -> bool:
    """False: there are no CUDA graphs."""
    return False


def init() -> None:
    """There is no moment of initialisation; torch's error where there is no GPU."""
    _require()


def ipc_collect() -> None:
    """Nothing is shared between processes; torch's error where there is no GPU."""
    _require()


def get_arch_list() -> list[str]:
    """None: nothing was compiled for CUDA architectures."""
    return []


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
    return mx.get_active_memory() + mx.get_cache_memory() if is_available() else 0


def max_memory_reserved(device: Any = None) -> int:
    """What MLX knows of it: the peak of live arrays, and its cache now; 0 without a GPU."""
    return mx.get_peak_memory() + mx.get_cache_memory() if is_available() else 0


def reset_peak_memory_stats(device: Any = None) -> None:
    """Forget the largest number of bytes so far."""
    mx.reset_peak_memory()


reset_max_memory_allocated = reset_peak_memory_stats


def memory_stats(device: Any = None) -> dict[str, int]:
    """MLX's numbers under torch's names; empty without a GPU."""
    if not is_available():
        return {}
    return {
        "allocated_bytes.all.current": mx.get_active_memory(),
        "allocated_bytes.all.peak": mx.get_peak_memory(),
        "reserved_bytes.all.current": memory_reserved(),
    }


def _generator() -> _random.Generator | None:
    """The GPU's generator; None without a GPU: torch.manual_seed seeds the CPU's."""
    return _random.generator_for(_devices.GPU, None) if is_available() and _devices.GPU else None


def manual_seed(seed: int) -> None:
    """Seed the GPU's generator; ignored without a GPU, as in torch."""
    if (generator := _generator()) is not None:
        generator.manual_seed(seed)


manual_seed_all = manual_seed


def seed() -> None:
    """Seed the GPU's generator from the system's entropy."""
    if (generator := _generator()) is not None:
        generator.seed()


seed_all = seed


def get_rng_state(device: Any = None) -> Any:
    """The state of the GPU's generator; torch's error where there is no GPU."""
    _require()
    return (_generator() or _random.default_generator).get_state()


def set_rng_state(new_state: Any, device: Any = None) -> None:
    """Set the state of the GPU's generator."""
    _require()
    (_generator() or _random.default_generator).set_state(new_state)


def get_rng_state_all() -> list:
    """The states of all GPUs' generators: of one, or none."""
    return [get_rng_state()] if is_available() else []


def set_rng_state_all(new_states: Any) -> None:
    """Set the states of all GPUs' generators."""
    for state in new_states:
        set_rng_state(state)
