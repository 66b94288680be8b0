"""clang: finding it, and compiling kernels with it, once each."""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..cache import cache_root

HERE = Path(__file__).resolve().parent
INCLUDE = HERE / "include"
RUNTIME = HERE / "runtime"

MONTH = 30 * 24 * 3600.0

OLDEST = 16
NEWEST_LOOKED_FOR = 30
MISSING = f"no clang >= {OLDEST} found: apt-get install clang-19, or set TORCHMLX_CLANG"

# The headers that Metal's standard library consists of; all of ours is in metal_stdlib.
STANDARD_HEADERS = (
    *("array", "atomic", "common", "compute", "geometric", "integer", "limits", "logging"),
    *("math", "matrix", "numeric", "relational", "simdgroup", "simdgroup_matrix", "tensor"),
    *("type_traits", "uniform"),
)

# As in Metal, literals without suffix are float and half types round after each operation; kernels
# cast pointers at will. An endless loop must hang, not vanish.
LANGUAGE = (
    *("-x", "c++", "-std=c++17", "-Wno-everything", "-fno-exceptions", "-fno-rtti"),
    *("-fno-finite-loops", "-fno-strict-aliasing", "-fPIC"),
    *("-Xclang", "-cl-single-precision-constant"),
    *("-Xclang", "-ffloat16-excess-precision=none"),
    *("-Xclang", "-fbfloat16-excess-precision=none"),
    # A cache that was copied has other times, not other headers.
    *("-Xclang", "-fvalidate-ast-input-files-content"),
)

# The instrumentation calls our own functions (runtime/hooks.cpp). ThreadSanitizer's pass leaves
# out what is wider than 16 bytes, and reads that a write follows: both must not be.
INSTRUMENTED = (
    *("-fno-vectorize", "-fno-slp-vectorize", "-fsanitize=thread"),
    *("-mllvm", "-tsan-instrument-func-entry-exit=0"),
    *("-mllvm", "-tsan-instrument-read-before-write=1"),
)
WHOLE_VECTORS = ("-mllvm", "-disable-vector-combine")
UNDEFINED = (
    "-fsanitize=bounds,alignment,shift-exponent,signed-integer-overflow",
    "-fsanitize=integer-divide-by-zero,float-cast-overflow",
    "-fsanitize-recover=all",
)
# What nobody has set is not what lay there before, but NaN and huge numbers: the runtime looks for
# such NaNs among the results.
UNSET = "-ftrivial-auto-var-init=pattern"
# -g1 comes last: -gdwarf-4 alone asks for everything, twenty times the lines that we need.
LINES = ("-gdwarf-4", "-g1")
PLACES = (*LINES, "-ffp-contract=on", "-fno-math-errno")

# The runner has all that a kernel calls, but for arithmetic that the compiler leaves to libgcc. A
# program of its own took 0.1 s more to link, and 1.4 MB (2 cores of an AMD EPYC, 2026-12-02).
LIBRARY = ("-shared", "-nostdlib", "-fno-sanitize-link-runtime", "-fvisibility=hidden")

# Checked kernels compile in half the time with -O1 (gated_delta: 2 against 4 s, 2 cores of an AMD
# EPYC, 2026-12-02). Traffic needs -O2, and no calls that keep loads inside of loops: what a
# compiler unrolls and hoists decides which loads there are. What a kernel loads as one vector must
# stay one: the pass that takes vectors apart is off.
MODES = {
    "checked": ("-O1", *PLACES, *INSTRUMENTED, *UNDEFINED, UNSET),
    "counted": ("-O2", *PLACES, *INSTRUMENTED, "-fwrapv", "-DSIM_COUNTED", *WHOLE_VECTORS),
    "fast": ("-O2", *PLACES, "-fwrapv", UNSET),
    "syntax": ("-DSIM_SYNTAX", "-Wuninitialized", "-Wconditional-uninitialized"),
}


class CompileError(Exception):
    """clang rejects a source. `messages` are its errors, "line N: ..." for lines of the kernel."""

    def __init__(self, name: str, messages: Sequence[str]) -> None:
        super().__init__(f"{name}: " + "; ".join(messages[:3] or ["clang failed"]))
        self.messages = tuple(messages)


class NoClang(Exception):
    """There is no usable clang on this machine."""


@dataclass(frozen=True)
class Clang:
    """A clang++: its path and its major version."""

    path: str
    version: int


@lru_cache
def find_clang() -> Clang:
    """TORCHMLX_CLANG, else clang++-19, else the newest clang++ on PATH; NoClang without one."""
    named = os.environ.get("TORCHMLX_CLANG")
    others = [f"clang++-{n}" for n in range(NEWEST_LOOKED_FOR, OLDEST - 1, -1)]
    for name in [named] if named else ["clang++-19", *others, "clang++"]:
        path = shutil.which(name)
        version = _version(path) if path else 0
        if path and version >= OLDEST:
            return Clang(path, version)
    raise NoClang(MISSING)


def _version(path: str) -> int:
    """Its major version; 0 for Apple's, whose versions count otherwise, and for what is none."""
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    except OSError:
        return 0
    found = re.search(r"^(?!Apple).*clang version (\d+)", text)
    return int(found[1]) if found else 0


@lru_cache
def cache_folder() -> Path:
    """Where everything that is compiled stays: a folder of `simulator` in the cache.

    Other versions of the simulator and of clang have folders beside it; those that took in nothing
    for a month are dropped when one is made.
    """
    above = cache_root() / "simulator"
    folder = above / _foundation()
    if not folder.is_dir():
        above.mkdir(parents=True, exist_ok=True)
        for other in above.iterdir():
            if other.is_dir() and time.time() - other.stat().st_mtime > MONTH:
                shutil.rmtree(other, ignore_errors=True)
        folder.mkdir(exist_ok=True)
    return folder


@lru_cache
def _machine_flags() -> tuple[str, ...]:
    """AVX2, FMA and F16C where this CPU has them: half arithmetic is slow without."""
    if platform.machine() != "x86_64":
        return ()
    try:
        flags = set(
            Path("/proc/cpuinfo").read_text().partition("\nflags")[2].split("\n")[0].split()
        )
    except OSError:
        return ()
    return ("-march=x86-64-v3",) if {"avx2", "fma", "f16c", "bmi2"} <= flags else ()


def _own_files() -> list[Path]:
    return sorted(
        path for folder in (INCLUDE, RUNTIME) for path in folder.rglob("*") if path.is_file()
    )


@lru_cache
def _foundation() -> str:
    """A name for everything that a compiled kernel depends on, but for its own text."""
    digest = hashlib.sha256()
    clang = find_clang()
    digest.update(repr((clang, LANGUAGE, MODES, _machine_flags(), STANDARD_HEADERS)).encode())
    for path in _own_files():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _flags(mode: str) -> list[str]:
    return [*LANGUAGE, *_machine_flags(), *MODES[mode], f"-I{headers()}"]


@lru_cache
def headers() -> Path:
    """A copy of our headers, with metal_math and so on, each of which includes metal_stdlib.

    A precompiled header names the files it was made of. Here they are the same ones for every
    checkout that shares the cache; else the once-only guards would miss, and types come twice.
    """
    folder = cache_folder() / "include"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=cache_folder()) as made:
            copy = shutil.copytree(INCLUDE, Path(made) / "include")
            for name in STANDARD_HEADERS:
                (copy / f"metal_{name}").write_text("#include <metal_stdlib>\n")
            with contextlib.suppress(OSError):  # another process was first
                copy.rename(folder)
    return folder


def _run(command: Sequence[str | Path], name: str) -> str:
    """What clang says on stderr; CompileError when it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise CompileError(name, errors_of(done.stderr) or [done.stderr.strip()[-400:]])
    return done.stderr


def errors_of(stderr: str) -> list[str]:
    """clang's errors without notes: "line 12: ..." for the kernel's text, else as they are."""
    found = re.findall(r"^(.*?):(\d+):\d+: (?:fatal )?error: (.*)$", stderr, re.MULTILINE)
    return [
        f"line {line}: {text}"
        if file.endswith("kernel.metal")
        else f"{Path(file).name}:{line}: {text}"
        for file, line, text in found
    ]


def keep(path: Path, make: Callable[[Path], object]) -> Path:
    """`path`, after `make(temporary path)` where it is not there; safe among processes."""
    if not path.exists():
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
        os.close(handle)
        try:
            make(Path(temporary))
            os.chmod(temporary, 0o755)
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    return path


@lru_cache
def prelude(mode: str) -> Path:
    """mlx_utils.h precompiled for `mode`; without it each kernel takes a second longer."""
    clang, header = find_clang().path, headers() / "mlx_utils.h"

    def make(path: Path) -> None:
        flags = [flag if flag != "c++" else "c++-header" for flag in _flags(mode)]
        _run([clang, *flags, header, "-o", path], "the simulator's headers")

    return keep(cache_folder() / f"prelude-{mode}.pch", make)


@lru_cache
def runner() -> Path:
    """The program that loads a compiled kernel and runs it, with what it calls of ours.

    TORCHMLX_SIMULATOR_FIBERS=ucontext switches threads as on machines that are no x86-64.
    """
    fibers = os.environ.get("TORCHMLX_SIMULATOR_FIBERS", "")

    def make(path: Path) -> None:
        sources = sorted(RUNTIME.glob("*.cpp"))
        flags = ["-std=c++17", "-O2", "-fno-exceptions", "-fno-rtti", "-rdynamic", f"-I{INCLUDE}"]
        flags += ["-DSIM_UCONTEXT"] if fibers == "ucontext" else []
        libraries = ["-Wl,--no-as-needed", "-lm", "-ldl"]
        command = [find_clang().path, *flags, *_machine_flags(), *sources, "-o", path, *libraries]
        _run(command, "the simulator's runtime")

    return keep(cache_folder() / f"runner{fibers and '-'}{fibers}", make)


def key_of(text: str, *more: str) -> str:
    """What a source's file in the cache is named by."""
    return hashlib.sha256("\0".join((text, *more)).encode()).hexdigest()[:24]


def compile_kernel(text: str, mode: str, name: str) -> Path:
    """C++ `text` as a library for `runner`, for "checked", "counted" or "fast" runs, once."""

    def make(path: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "kernel.metal"
            source.write_text(text)
            flags = [*_flags(mode), "-include-pch", prelude(mode), *LIBRARY]
            _run([find_clang().path, *flags, source, "-o", path, "-lgcc"], name)

    return keep(cache_folder() / f"kernel-{mode}-{key_of(text, mode)}", make)


def syntax_command(source: str) -> list[str]:
    """The command that checks the file `source` and prints its syntax tree."""
    shown = ("-fsyntax-only", "-Xclang", "-ast-dump", "-fno-color-diagnostics")
    errors = ("-fno-caret-diagnostics", "-ferror-limit=0")
    included = ("-include-pch", str(prelude("syntax")))
    return [find_clang().path, *_flags("syntax"), *included, *shown, *errors, source]
