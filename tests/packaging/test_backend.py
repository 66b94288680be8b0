"""What a user sees who installed `mlx` for Linux without a backend, or no mlx at all."""

import os
import sys

import pytest

from tests.bounded import run
from torchmlx import _backend

from .checkout import ROOT


@pytest.fixture
def import_torchmlx(tmp_path):
    """stderr of `import torchmlx` where importing mlx.core raises what the real wheel raises."""
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx/__init__.py").touch()
    missing = "libmlx.so: cannot open shared object file: No such file or directory"
    (tmp_path / "mlx/core.py").write_text(f"raise ImportError({missing!r})")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-P", "-c", "import torchmlx"]
    return run(command, env={**os.environ, "PYTHONPATH": path})


@pytest.mark.skipif(sys.platform != "linux", reason="platform: Linux's mlx wheel has no backend")
def test_import_without_a_backend_says_what_to_install(import_torchmlx):
    assert import_torchmlx.returncode == 1
    last = import_torchmlx.stderr.splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert "pip install 'torchmlx[cpu]'" in last and "libmlx.so" in last


def test_advice_elsewhere_names_the_systems_that_work(monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert "macOS 15" in _backend._advice()


def test_a_working_backend_passes():
    _backend.require_mlx()
