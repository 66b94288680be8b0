"""How many threads compute on the CPU."""

from __future__ import annotations

from .kernels import native

# More threads than this are a mistake; torch itself dies for want of memory.
MOST = 2**31 - 1

_interop: list[int] = []


def get_num_threads() -> int:
    """Threads that share out a kernel's work on the CPU. torch.get_num_threads.

    At first TORCHMLX_NUM_THREADS, or one for each core that the process may use.
    """
    return native.threads()


def set_num_threads(count: int) -> None:
    """Use `count` threads from the next kernel on. torch.set_num_threads.

    Holds for the whole process, and for kernels that are waiting to run. Raises RuntimeError unless
    `count` is a positive int. Without the C++ kernels (on a Mac) it changes nothing.
    """
    native.set_threads(_checked("set_num_threads", count))


def get_num_interop_threads() -> int:
    """What was set, or the number of cores; MLX gives each stream its thread whatever it is."""
    return _interop[-1] if _interop else native.cores()


def set_num_interop_threads(count: int) -> None:
    """Keep the setting. torch.set_num_interop_threads."""
    _interop[:] = [_checked("set_num_interop_threads", count)]


def _checked(name: str, count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int):
        raise RuntimeError(f"{name} expects an int, but got {type(count).__name__}")
    if count > MOST:
        raise ValueError("Overflow when unpacking long")
    if count < 1:
        raise RuntimeError(f"{name} expects a positive integer")
    return count
