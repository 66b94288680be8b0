"""Children of fork compute, as torch's do: what the parent left to be computed, and new things."""

import os
import sys

import pytest

from tests import bounded
from tests.conftest import ROOT

PROGRAM = """
import multiprocessing, os, threading
import torchmlx as torch

torch.set_num_threads(3)
layer = torch.nn.Linear(300, 70)
x = torch.randn(64, 300)
with torch.no_grad():
    want = torch.nn.functional.softmax(layer(x), -1).numpy()
pending = x * 2 + 1

def compute(_=None):
    with torch.no_grad():
        y = torch.nn.functional.softmax(layer(x), -1)
    assert abs(y.numpy() - want).max() < 1e-6
    assert torch.equal(pending, x + x + 1)
    with torch.Stream():
        assert torch.ones(5).sum().item() == 5
    return y.sum().item()

def in_a_thread():
    got = []
    thread = threading.Thread(target=lambda: got.append(torch.ones(3, 64).mm(x).tolist()))
    thread.start()
    thread.join(30)
    assert len(got) == 1

def generations(depth):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            compute()
            in_a_thread()
            code = generations(depth - 1) if depth else 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

if __name__ == "__main__":
    print(generations(2))
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=compute)
    process.start()
    process.join(30)
    print(process.exitcode)
    with fork.Pool(2) as pool:
        print([round(value) for value in pool.map_async(compute, range(4)).get(30)])
    print(round(compute()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="platform: elsewhere fork is not what it was")
def test_children_of_fork(tmp_path):
    script = tmp_path / "forks.py"
    script.write_text(PROGRAM)
    done = bounded.run([sys.executable, script], 120, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.stdout == "0\n0\n[64, 64, 64, 64]\n64\n", done.stderr
