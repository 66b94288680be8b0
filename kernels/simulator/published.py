"""MLX's own Metal kernels, from the headers of its macOS wheel: they run on real Macs.

They are fetched when asked for, checked against a hash and kept in the cache, and serve as the
simulator's own test and as what our kernels are compared with.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..cache import cache_root
from .result import Result
from .simulate import simulate

REQUIREMENT = "mlx-metal==0.32.4"
WHEEL = "mlx_metal-0.32.4-py3-none-macosx_15_0_arm64.whl"
SHA256 = "9f0a3cc26d89724434d9684932fc6f3e4e83669d2a895d858ed2c8a55eb84e8b"
KERNELS = "mlx/backend/metal/kernels/"

# Values for function constants of functions that nobody here calls.
UNUSED = dict.fromkeys(range(400), False)
SIMDGROUPS = "thread_index_in_simdgroup, simdgroup_index_in_threadgroup"
ROW = "threadgroup_position_in_grid.x, thread_position_in_threadgroup.x"

# Metal's name for a dtype.
TYPES = {mx.float32: "float", mx.float16: "float16_t", mx.bfloat16: "bfloat16_t"}

# MLX 0.32.4: elements that a thread of softmax reads at once, columns up to which one threadgroup
# holds a row, and the threads that it takes for longer ones.
READS, HELD_COLUMNS, MOST_THREADS = 4, 4096, 1024


class NotFetched(Exception):
    """The wheel cannot be had; says why."""


@lru_cache
def headers() -> Path:
    """The folder that MLX's #includes start from; from PyPI the first time. Raises NotFetched."""
    kept = cache_root() / "published" / SHA256[:16]
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            unpacked = _unpack(_download(Path(folder)), Path(folder))
            try:
                unpacked.rename(kept)
            except OSError:  # another process was first
                if not kept.is_dir():
                    raise
    return kept


def _download(folder: Path) -> Path:
    """The wheel, by pip, which knows the user's index and proxies."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    platform = ["--platform", "macosx_15_0_arm64", "--python-version", "3.11"]
    command = [*pip, *platform, REQUIREMENT, "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise NotFetched(f"cannot fetch {REQUIREMENT} for macOS from the package index: {why}")
    wheel = folder / WHEEL
    if not wheel.is_file() or hashlib.sha256(wheel.read_bytes()).hexdigest() != SHA256:
        raise NotFetched(f"{REQUIREMENT} from the package index is not the file with this hash")
    return wheel


def _unpack(wheel: Path, folder: Path) -> Path:
    """The headers of the kernels alone."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if f"include/{KERNELS}" in n and n.endswith(".h")]
        archive.extractall(folder, names)
    return folder / "mlx" / "include"


def call(includes: Sequence[str], body: str, inputs: dict[str, Any], **options: Any) -> Result:
    """Run `body`, which calls a published function; options as `simulate`'s."""
    return simulate(
        body,
        name="published",
        header="".join(f'#include "{KERNELS}{name}"\n' for name in includes),
        input_names=list(inputs),
        output_names=["out"],
        inputs=list(inputs.values()),
        include=[headers()],
        syntax=False,
        **options,
    )


def softmax(x: mx.array, threads: int = 0, **options: Any) -> Result:
    """MLX's softmax of the rows of x, accumulated in float32, with its own geometry.

    threads: of a threadgroup, where they are not to be those that MLX takes.
    """
    rows, n = x.shape
    looped = n > HELD_COLUMNS
    threads = threads or (MOST_THREADS if looped else -(-n // (32 * READS)) * 32)
    size = "threads_per_threadgroup.x, " if looped else ""
    name = "softmax_looped" if looped else "softmax_single_row"
    return call(
        ["softmax.h"],
        f"{name}<{TYPES[x.dtype]}, float, {READS}>(in, out, axis_size, {ROW}, {size}{SIMDGROUPS});",
        {"in": x, "axis_size": n},
        output_shapes=[x.shape],
        output_dtypes=[x.dtype],
        grid=(rows * threads, 1, 1),
        threadgroup=(threads, 1, 1),
        **options,
    )


def gemv_tile(n: int, k: int) -> tuple[int, int, int, int, int, int]:
    """(bm, bn, sm, sn, tm, tn) that MLX 0.32.4 takes for weights [n, k] times a vector."""
    bm, bn, sm, sn = 8 if n >= 4096 else 4, 1, 1, 32
    if k <= 64:
        bm, sm, sn = 1, 8, 4
    elif k >= 16 * n:
        bm, bn = 1, 8
    return bm, bn, sm, sn, 1 if n < 4 else 4, 4


def gemv(w: mx.array, v: mx.array, tile: tuple[int, ...] | None = None, **options: Any) -> Result:
    """MLX's product of weights [n, k] and v [k]; `tile` where it is not to be MLX's choice."""
    n, k = w.shape
    bm, bn, sm, _, tm, _ = tile = tile or gemv_tile(n, k)
    body = f"""
        using G = GEMVKernel<{TYPES[w.dtype]}, {", ".join(map(str, tile))}, false>;
        threadgroup float shared[G::tgp_mem_size == 0 ? 1 : G::tgp_mem_size];
        G::run(mat, v, v, out, k, n, ld, alpha, alpha, k,
               G::tgp_mem_size == 0 ? nullptr : shared, threadgroup_position_in_grid,
               thread_position_in_threadgroup, simdgroup_index_in_threadgroup,
               thread_index_in_simdgroup);"""
    groups = -(-n // (bm * sm * tm))
    return call(
        ["gemv.h"],
        body,
        {"mat": w, "v": v, "k": k, "n": n, "ld": k, "alpha": 1.0},
        output_shapes=[(n,)],
        output_dtypes=[w.dtype],
        grid=(groups * 32, bn, bm),
        threadgroup=(32, bn, bm),
        function_constants=UNUSED,
        **options,
    )
