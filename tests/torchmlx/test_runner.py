"""torchmlx run: scripts that say `import torch`, and what they use that is not here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchmlx import runner

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import importlib.metadata
import importlib.util
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn import Linear
import beside

assert torch.nn is nn is sys.modules["torch.nn"] and nn.functional is F and nn.Linear is Linear
assert importlib.util.find_spec("torch") and importlib.util.find_spec("torch.nn.init")
assert importlib.util.find_spec("torch.nothing") is None
assert importlib.metadata.version("torch") == torch.__version__
import torch.nn.init as init
assert init is torch.nn.init and init.__spec__.name == "torchmlx.nn.init"
print(__name__, sys.argv[1:], beside.doubled(torch.tensor([1.0, -2.0])).tolist())
if "fail" in sys.argv:
    torch.no_such_name
if "exit" in sys.argv:
    sys.exit(3)
"""
BESIDE = """
import torch
def doubled(x):
    return x + x
def never():
    return torch.nn.NoSuchModule(torch.float32.no_such, torch.no.such.name, other.no_such)
"""


@pytest.fixture
def script(tmp_path) -> Path:
    (tmp_path / "beside.py").write_text(BESIDE)
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def run(*arguments, cwd=None):
    command = [sys.executable, "-m", "torchmlx", "run", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)


def test_a_script_runs_unchanged(script):
    done = run(script, "--flag", "exit")
    assert done.stdout == "__main__ ['--flag', 'exit'] [2.0, -4.0]\n", done.stderr
    assert done.returncode == 3


def test_a_module_runs_unchanged(script):
    done = run("-m", "script", "a", cwd=script.parent)
    assert (done.stdout, done.returncode) == ("__main__ ['a'] [2.0, -4.0]\n", 0), done.stderr


def test_a_failing_script_is_reported(script):
    done = run("--report", script, "fail")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and lines[1].endswith("in <module>")
    told = lines[lines.index("torchmlx: 3 names of torch used here are missing") + 1 :]
    beside = script.with_name("beside.py")
    line = SCRIPT.splitlines().index("    torch.no_such_name") + 1
    assert told[:3] == [
        f"{beside}:6  torch.nn.NoSuchModule",
        f"{beside}:6  torch.no",
        f"{script}:{line}  torch.no_such_name",
    ]
    assert told[3].startswith(f"torchmlx: the script ended at {script}:{line}  ")


def test_no_script():
    done = run("/no/such.py")
    assert (done.returncode, done.stderr) == (2, "torchmlx: error: no such script: /no/such.py\n")


def test_what_counts_as_a_name_of_torch(tmp_path):
    path = tmp_path / "uses.py"
    path.write_text(
        "import torch as t, numpy as np\n"
        "import torch.nn.functional\n"
        "from torch.nowhere import thing\n"
        "from .torch import local\n"
        "t.zeros(2).no_such_method(); np.torch; torch.nn.functional.no_such\n"
        "t.Tensor.no_such_method\n"
    )
    assert runner.missing_names([path]) == [
        (str(path), 3, "torch.nowhere"),
        (str(path), 5, "torch.nn.functional.no_such"),
        (str(path), 6, "torch.Tensor.no_such_method"),
    ]


def test_real_torch_is_not_replaced_in_mid_run():
    pytest.importorskip("torch", reason="the oracle")
    with pytest.raises(RuntimeError, match="new process"):
        runner.install()
