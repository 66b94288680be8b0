"""The kernels and the pool without MLX: under sanitizers, and as arm64 code under an emulator."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = Path(__file__).parent / "standalone"

SANITIZED = "-O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all -fsanitize="
ARM = ("aarch64-linux-gnu-g++", "qemu-aarch64")

pytestmark = pytest.mark.slow


def build(folder: Path, *options: str) -> Path:
    """The program, built by CMake as the extension is."""
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    configure = ["cmake", "-S", ROOT / "kernels/cpu", "-B", folder, f"-DSTANDALONE={SOURCES}"]
    jobs = str(os.cpu_count())
    for command in (
        [*configure, *options],
        ["cmake", "--build", folder, "--parallel", jobs],
    ):
        done = subprocess.run(command, capture_output=True, text=True, env=tools)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "standalone"


def check(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differences on" in done.stdout


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_under_sanitizers(tmp_path, sanitizers):
    if sys.platform != "linux" or not shutil.which("g++"):
        pytest.skip("platform: needs Linux and g++")
    check(build(tmp_path, f"-DCMAKE_CXX_FLAGS_RELEASE={SANITIZED}{sanitizers}"))


def test_as_arm64_code(tmp_path):
    """NEON, which the portable kernels use where that is the baseline."""
    if missing := [tool for tool in ARM if not shutil.which(tool)]:
        pytest.skip(f"platform: needs {' and '.join(missing)}")
    program = build(
        tmp_path,
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={ARM[0]}",
        "-DCMAKE_EXE_LINKER_FLAGS=-static",
    )
    check(ARM[1], program)
