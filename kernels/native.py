"""The C++ extension: whether it is there, its threads and its instruction set.

`_native` is built by setup.py from cpu/. Without it every kernel runs as MLX's own operations,
which on Linux means the reference BLAS.
"""

import hashlib
import os
import sys
import warnings
from functools import lru_cache
from importlib import import_module
from math import ceil
from pathlib import Path
from types import ModuleType

import mlx.core as mx

MEND = (
    "install g++ if there is none (Debian: apt-get install g++), then build in the folder that "
    "torchmlx was got in: make native, or pip install --editable '.[cpu]'"
)

# The sources that say which functions the extension has and what they take.
INTERFACE = Path(__file__).parent / "cpu" / "bind"


@lru_cache
def load() -> tuple[ModuleType | None, str]:
    """The extension and "", or None and why it cannot be used.

    Applies TORCHMLX_CPU_ISA and TORCHMLX_NUM_THREADS; raises ValueError for what they cannot be.
    """
    try:
        # With a name in a variable: type checkers need not find what may not be built.
        module = import_module("._native", __package__)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        return None, "no C++ extension is built" if missing else f"C++ extension: {error}"
    version = mx.__version__
    if module.mlx_version != version:
        return None, f"the C++ extension was built for mlx {module.mlx_version}, not {version}"
    if getattr(module, "interface", None) != interface():
        return None, "the C++ extension is stale: built from other sources than those beside it"
    if isa := os.environ.get("TORCHMLX_CPU_ISA"):
        _use(module, isa)
    module.set_threads(_threads_wanted())
    return module, ""


def interface() -> str:
    """A hash of what the extension should be built from, as CMakeLists.txt computes it."""
    files = sorted([*INTERFACE.glob("*.cpp"), *INTERFACE.glob("*.h")])
    digests = (hashlib.sha256(path.read_bytes()).hexdigest() for path in files)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def obstacle() -> str | None:
    """Why the extension cannot be used; None if it can."""
    return load()[1] or None


def function(name: str):
    """The extension's function of that name; it returns None for what it does not compute."""
    module, reason = load()
    if module is None:
        raise RuntimeError(reason)
    return getattr(module, name)


def threads() -> int:
    """Threads that the kernels use: TORCHMLX_NUM_THREADS, or one for each core, unless set."""
    module = load()[0]
    return module.threads() if module else cores()


def set_threads(count: int) -> None:
    """Use `count` threads, at least one, from the next kernel on; waits for one that runs."""
    module = load()[0]
    if module:
        module.set_threads(count)


def _use(module: ModuleType, isa: str) -> None:
    if not module.use_instruction_set(isa):
        names = ", ".join(module.instruction_sets())
        raise ValueError(f"TORCHMLX_CPU_ISA: this machine and build have {names}, not {isa!r}")


def _threads_wanted() -> int:
    text = os.environ.get("TORCHMLX_NUM_THREADS")
    if not text:
        return cores()
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"TORCHMLX_NUM_THREADS: a positive number of threads, not {text!r}")
    return int(text)


def cores() -> int:
    """Cores that this process may keep busy: its affinity, less where its control group says so."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _quota()
    return count if quota is None else max(1, min(count, ceil(quota)))


def _quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores' worth of time that the control group grants (version 2, else 1); None if unlimited."""
    try:
        limit, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    return int(limit) / int(period) if limit.isdecimal() else None


@lru_cache
def warn_once() -> None:
    """Tell, at the first kernel that has to do without the extension, what is slow."""
    reason = obstacle()
    if reason and sys.platform == "linux":
        warnings.warn(f"torchmlx is slow on this CPU: {reason}. To mend it, {MEND}", stacklevel=2)
