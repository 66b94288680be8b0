"""torchmlx run: scripts that say `import torch`, and what they use that is not here."""

import os
import sys
from pathlib import Path

import pytest

from tests import bounded
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
    return bounded.run(command, cwd=cwd, env=environment)


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


PROCESSES = """
import torch
import torch.multiprocessing as mp

def work(rank, x):
    assert torch.__version__.endswith("+mlx")
    print(rank, (x * rank).tolist(), flush=True)

def fail(rank):
    raise ValueError("as it should")

if __name__ == "__main__":
    mp.spawn(work, args=(torch.ones(2),), nprocs=1)
    other = mp.get_context("forkserver").Process(target=work, args=(3, torch.ones(1)))
    other.start()
    other.join()
    try:
        mp.spawn(fail, nprocs=1)
    except mp.ProcessRaisedException as error:
        print("as it should" in str(error), error.error_index)
"""


def test_new_processes_meet_torchmlx_too(tmp_path):
    script = tmp_path / "processes.py"
    script.write_text(PROCESSES)
    done = run(script)
    assert done.stdout == "0 [0.0, 0.0]\n3 [3.0]\nTrue 0\n", done.stderr


SAFETENSORS = """
import safetensors.torch as st, torch, sys
tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16),
           "c": torch.tensor(7), "d": torch.zeros(0, 2), "e": torch.rand(4)[1:].clone() > 0.5}
st.save_file(tensors, sys.argv[1])
read = st.load_file(sys.argv[1])
assert all(torch.equal(read[k], v) and read[k].dtype == v.dtype for k, v in tensors.items())
model = torch.nn.Linear(2, 2)
st.save_model(model, sys.argv[1] + "2")
print(st.load_model(torch.nn.Linear(2, 2), sys.argv[1] + "2"), torch.ones(1).layout)
"""


def test_safetensors_own_functions(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SAFETENSORS)
    done = run(script, tmp_path / "x.safetensors")
    assert done.stdout == "(set(), []) torch.strided\n", done.stderr
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    read = load_file(tmp_path / "x.safetensors")
    assert read["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and read["b"].dtype is torch.bfloat16
    assert read["c"].item() == 7 and read["d"].shape == (0, 2)


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
