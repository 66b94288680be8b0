"""What this machine has: cores and memory as this process may use them, and a cache folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

from .kernels.cache import cache_root as cache_root


def cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_total() -> int:
    """Physical memory in bytes, or the control group's limit where that is lower."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() else total


def memory_available() -> int | None:
    """Bytes that could be allocated without swapping; None where the system does not tell."""
    if sys.platform == "darwin":
        return _available_on_mac()
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    if found is None:
        return None
    available = int(found[1]) * 1024
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    used = _read("/sys/fs/cgroup/memory.current").strip()
    if limit.isdigit() and used.isdigit():
        available = min(available, max(int(limit) - int(used), 0))
    return available


def _available_on_mac() -> int | None:
    """Free and inactive pages: macOS gives both out without swapping."""
    try:
        text = subprocess.run(["vm_stat"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    page = re.search(r"page size of (\d+) bytes", text)
    pages = re.findall(r"^Pages (?:free|inactive|speculative):\s+(\d+)", text, re.MULTILINE)
    return int(page[1]) * sum(map(int, pages)) if page and pages else None


def processor_flags() -> frozenset[str]:
    """What Linux says that the processor can do, by its names ("avx2", "amx_bf16"); else none."""
    lines = _read("/proc/cpuinfo").splitlines()
    texts = [text for name, _, text in (line.partition(":") for line in lines) if "flags" in name]
    return frozenset(texts[0].split()) if texts else frozenset()


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
