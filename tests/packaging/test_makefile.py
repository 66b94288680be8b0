"""What `make` says while it installs; pip and the virtual environment are stand-ins."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

NOTICE = "installing; building the C++ kernels takes some minutes"


@pytest.mark.skipif(sys.platform != "linux", reason="platform: builds on Linux only")
@pytest.mark.parametrize("stamp", ["installed", "installed-dev"])
def test_what_takes_long_is_said_where_it_is_done(tmp_path, stamp):
    """With a compiler, and not again when all is installed."""
    (tmp_path / "python").touch()

    def make(**variables: str) -> list[str]:
        command = ("make", "--no-print-directory", "-C", str(ROOT), "PIP=true", f"VENV={tmp_path}")
        environment = {**os.environ, "CXX": "true", "TORCHMLX_NATIVE": "", "MAKEFLAGS": ""}
        done = subprocess.run(
            [*command, str(tmp_path / stamp)],
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    for without in ({"CXX": "no-such-compiler"}, {"TORCHMLX_NATIVE": "skip"}):
        assert NOTICE not in make(**without)
        (tmp_path / stamp).unlink()
    assert make().count(NOTICE) == 1
    assert NOTICE not in make()
