"""The kernels and the pool without MLX under sanitizers, and as arm64 code under an emulator; the
extension in Python under sanitizers.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bounded import run

ROOT = Path(__file__).parents[3]
SOURCES = Path(__file__).parent / "standalone"

SANITIZED = "-O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all -fsanitize="
ARM = "aarch64-linux-gnu-g++"
EMULATORS = ("qemu-aarch64", "qemu-aarch64-static")  # by Debian's package

# Kernels through MLX's graph; the standalone program has their remainders and edges.
TESTS = ("test_every_kernel.py", "test_weights.py")

# Python and MLX are not built for sanitizers, so their own leaks and casts are not looked at.
SETTINGS = {
    "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}

# Seconds for a build and for a run, on a busy machine.
BUILDING, RUNNING = 1800, 1500

pytestmark = pytest.mark.slow


def compile_native(folder: Path, *options: str) -> None:
    """What CMake makes of the sources: the extension, unless options say otherwise."""
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    configure = ["cmake", "-S", ROOT / "kernels/cpu", "-B", folder]
    jobs = str(os.cpu_count())
    for command in (
        [*configure, *options],
        ["cmake", "--build", folder, "--parallel", jobs],
    ):
        done = run(command, BUILDING, env=tools)
        assert done.returncode == 0, done.stdout + done.stderr


def build(folder: Path, *options: str) -> Path:
    """The program, built as the extension is."""
    compile_native(folder, f"-DSTANDALONE={SOURCES}", *options)
    return folder / "standalone"


def check(*command: str | Path) -> None:
    done = run(command, RUNNING)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differences on" in done.stdout


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_under_sanitizers(tmp_path, sanitizers):
    if sys.platform != "linux" or not shutil.which("g++"):
        pytest.skip("platform: needs Linux and g++")
    check(build(tmp_path, f"-DCMAKE_CXX_FLAGS_RELEASE={SANITIZED}{sanitizers}"))


def test_as_arm64_code(tmp_path):
    """NEON, which the portable kernels use where that is the baseline."""
    emulator = next(filter(shutil.which, EMULATORS), None)
    if not emulator or not shutil.which(ARM):
        pytest.skip(f"platform: needs {ARM} and {EMULATORS[0]}")
    program = build(
        tmp_path,
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={ARM}",
        "-DCMAKE_EXE_LINKER_FLAGS=-static",
    )
    check(emulator, program)


def checkout(folder: Path, extension: Path) -> Path:
    """A copy of the repository's code with that extension, as Python imports it."""
    for room in ("torchmlx", "kernels", "models", "tests"):
        unwanted = shutil.ignore_patterns("_native*", "__pycache__")
        shutil.copytree(ROOT / room, folder / room, symlinks=True, ignore=unwanted)
    shutil.copy2(ROOT / "pyproject.toml", folder)
    shutil.copy2(extension, folder / "kernels")
    return folder


def run_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    """The tests in that copy, in a Python that has loaded the sanitizers first."""
    libraries = ("libasan.so", "libubsan.so", "libstdc++.so.6")
    found = [run(["g++", f"-print-file-name={name}"]).stdout for name in libraries]
    environment = {"LD_PRELOAD": " ".join(path.strip() for path in found), "PYTHONPATH": "."}
    tests = [f"tests/kernels/cpu/{name}" for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    return run(command, RUNNING, cwd=folder, env={**os.environ, **SETTINGS, **environment})


def test_in_python_under_sanitizers(tmp_path):
    if sys.platform != "linux" or not shutil.which("g++"):
        pytest.skip("platform: needs Linux and g++")
    built = tmp_path / "build"
    # MLX has no type information for the check of virtual calls.
    options = f"{SANITIZED}address,undefined -fno-sanitize=vptr"
    compile_native(built, f"-DCMAKE_CXX_FLAGS_RELEASE={options}")
    extension = next(built.glob("_native*.so"))
    done = run_tests(checkout(tmp_path / "repository", extension))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "skipped" not in done.stdout
