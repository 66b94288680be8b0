"""What is shipped: the wheel and the sdist, and installing them."""

import os
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.bounded import run

from .checkout import INSTALLING, run_python, tracked_files

pytestmark = pytest.mark.slow

# Imports every part, tells where torchmlx came from, and refuses top-level strays.
PROBE = """
import sys, torchmlx, torchmlx.kernels, torchmlx.models, torchmlx.cli
assert not {"kernels", "models"} & set(sys.modules)
print(torchmlx.__file__)
"""
NATIVE_WORKS = """
from torchmlx.kernels import native
assert sys.platform != "linux" or not native.obstacle(), native.obstacle()
"""
# A compilation takes most of a minute: the wheel's is one, and the tests' own environment another.
WITHOUT_NATIVE = {**os.environ, "TORCHMLX_NATIVE": "skip"}


# Where the C++ extension is, on systems that build it.
NATIVE = re.compile(r"torchmlx/kernels/_native\.\S+\.so")


def packaged_name(path: Path) -> str:
    """Where a tracked file is inside the wheel."""
    return str(path if path.parts[0] == "torchmlx" else "torchmlx" / path)


@pytest.fixture(scope="session")
def sources() -> dict[str, Path]:
    """Name in the wheel to tracked file; the two symlinks stand for the folders they name."""
    files = tracked_files("torchmlx", "kernels", "models")
    return {packaged_name(path): path for path in files if not path.is_symlink()}


def test_wheel_holds_every_source_and_nothing_else(distributions, checkout, sources):
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        native = {name for name in names if NATIVE.fullmatch(name)}
        assert len(native) == (1 if sys.platform == "linux" else 0)
        assert names - native == set(sources)
        for name, path in sources.items():
            assert wheel.read(name) == (checkout / path).read_bytes(), name


def test_sdist_holds_every_source_once(distributions, sources):
    with tarfile.open(distributions["sdist"]) as sdist:
        members = sdist.getmembers()
    assert all(member.isfile() or member.isdir() for member in members), "links in the sdist"
    names = [m.name.partition("/")[2] for m in members if m.isfile()]
    assert len(names) == len(set(names))
    assert {name for name in names if name.startswith("torchmlx/")} == set(sources)


def test_wheel_from_the_checkout_is_the_one_from_the_sdist(distributions, checkout, tmp_path):
    command = ["-m", "build", "--wheel", "--outdir", str(tmp_path), str(checkout)]
    run_python(*command, cwd=tmp_path, env=WITHOUT_NATIVE)
    with (
        zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as direct,
        zipfile.ZipFile(distributions["wheel"]) as wheel,
    ):
        assert set(direct.namelist()) == {n for n in wheel.namelist() if not NATIVE.fullmatch(n)}


def test_metadata(distributions):
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        info = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
        metadata = wheel.read(info).decode().splitlines()
        scripts = wheel.read(info.replace("METADATA", "entry_points.txt")).decode()
    assert "Name: torchmlx" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Dist: mlx==0.32.4" in metadata
    assert "torchmlx = torchmlx.cli:main" in scripts


def test_installed_wheel_imports_and_runs(distributions, environment, tmp_path):
    wheel = str(distributions["wheel"])
    run_python("-m", "pip", "install", "--no-deps", wheel, python=environment)
    where = run_python("-c", PROBE + NATIVE_WORKS, python=environment, cwd=tmp_path)
    assert where.startswith(str(environment.parents[1]))
    script = environment.parent / "torchmlx"
    assert run_python("-I", str(script), "--version", python=environment).startswith("torchmlx 0.")


@pytest.mark.skipif(sys.platform != "linux", reason="platform: built on Linux only")
def test_an_install_without_a_compiler_works_and_says_so(checkout, environment, tmp_path):
    broken = {**os.environ, "CXX": "/no/compiler"}
    shutil.rmtree(checkout / "build", ignore_errors=True)  # what earlier tests built
    for built in checkout.glob("**/_native*.so"):
        built.unlink()
    command = ["-m", "pip", "install", "-v", "--no-deps", "-t", str(tmp_path), str(checkout)]
    told = run([environment, *command], INSTALLING, env=broken)
    assert told.returncode == 0, told.stderr
    assert "the C++ kernels were not built" in told.stdout + told.stderr
    ask = "from torchmlx.kernels import native; print(native.obstacle())"
    said = run_python("-c", ask, python=environment, cwd=tmp_path)
    assert said.strip() == "no C++ extension is built"


def test_editable_install_imports_the_checkout(checkout, environment, tmp_path):
    command = ["-m", "pip", "install", "--no-deps", "-e", str(checkout)]
    run_python(*command, python=environment, env=WITHOUT_NATIVE)
    where = run_python("-c", PROBE, python=environment, cwd=tmp_path)
    assert where.strip() == str(checkout / "torchmlx/__init__.py")
    strays = (
        "import importlib.util as u; print([n for n in ('kernels', 'models') if u.find_spec(n)])"
    )
    assert run_python("-c", strays, python=environment, cwd=tmp_path).strip() == "[]"
