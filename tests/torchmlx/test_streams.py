"""Streams, events, and what scripts ask of a device; "cuda" that means this machine's device."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch as real

import torchmlx as torch

ROOT = Path(__file__).resolve().parents[2]
CPU_ONLY = not torch.accelerator.is_available()

# Without a GPU both refuse alike.
REFUSED = (
    "accelerator.current_stream()", "accelerator.current_device_index()",
    "accelerator.synchronize()",
    "accelerator.memory_allocated()", "cuda.current_stream()", "cuda.get_device_properties(0)",
    "cuda.get_device_capability()", "cuda.mem_get_info()", "cuda.get_rng_state()", "cuda.init()",
    "cuda.ipc_collect()", "mps.synchronize()", "mps.recommended_max_memory()",
)  # fmt: skip
ANSWERED = (
    "cuda.get_rng_state_all()", "cuda.get_arch_list()", "cuda.seed()", "mps.manual_seed(1)",
    "mps.device_count()", "cpu.synchronize()", "cpu.is_available()", "cpu.device_count()",
    "cpu.current_device()", "accelerator.current_accelerator()",
)  # fmt: skip


def answer(torch, question):
    try:
        return repr(eval(f"torch.{question}"))
    except (AssertionError, RuntimeError) as error:
        return type(error), str(error).splitlines()[0]


@pytest.mark.skipif(not CPU_ONLY, reason="platform: compares with torch without a GPU")
@pytest.mark.parametrize("question", REFUSED + ANSWERED)
def test_without_a_gpu(question):
    assert answer(torch, question) == answer(real, question)
    assert (question in ANSWERED) == isinstance(answer(torch, question), str)


def test_operations_in_a_stream_have_the_same_values():
    x = torch.arange(12.0).reshape(3, 4)
    stream, other = torch.Stream(device="cpu"), torch.Stream(device="cpu")
    before = torch.cpu.current_stream()
    with stream:
        assert torch.cpu.current_stream() == stream != before
        y = x @ x.T
        with other:
            z = y + 1
        assert torch.cpu.current_stream() == stream
    assert torch.cpu.current_stream() == before == torch.Stream(device="cpu", stream_id=0)
    before.wait_stream(other)
    stream.synchronize()
    assert other.query() and z.tolist() == (x.numpy() @ x.numpy().T + 1).tolist()


def test_an_event_times_the_work_itself():
    x = torch.rand(700, 700)
    start, end = (torch.Event(enable_timing=True) for _ in range(2))
    start.record()
    y = x
    for _ in range(20):
        y = torch.softmax(y @ x, -1)
    began = time.perf_counter()
    end.record()
    took = 1e3 * (time.perf_counter() - began)
    measured = start.elapsed_time(end)
    began = time.perf_counter()
    y.sum().item()
    assert 1e3 * (time.perf_counter() - began) < measured  # y was there already
    assert 0.2 * took < measured < 5 * took + 50
    assert end.query()


def test_events_complain_as_torchs():
    timed, plain = torch.Event(enable_timing=True), torch.Event()
    with pytest.raises(ValueError, match="enable_timing=True"):
        timed.elapsed_time(plain)
    later = torch.Event(enable_timing=True)
    with pytest.raises(ValueError, match="must be recorded before"):
        timed.elapsed_time(later)
    timed.record()
    later.record()
    assert timed.elapsed_time(later) >= 0
    with pytest.raises(ValueError, match="after start event"):
        later.elapsed_time(timed)
    stream = torch.cpu.current_stream()
    assert stream.record_event(plain) is plain
    stream.wait_event(plain)
    plain.wait()
    plain.synchronize()


@pytest.mark.skipif(not CPU_ONLY, reason="platform: needs a machine without a GPU")
def test_no_streams_on_a_gpu_that_is_not_there():
    with pytest.raises(AssertionError, match="CUDA"):
        torch.cuda.Stream()
    with pytest.raises(RuntimeError, match="MPS"):
        torch.mps.Event(enable_timing=True)


CUDA = """
import torch
assert torch.cuda.is_available() and torch.cuda.device_count() == 1
torch.cuda.set_device(0)
torch.cuda.manual_seed_all(3)
device = torch.device("cuda:0")
model = torch.nn.Linear(3, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
x = torch.ones(4, 3, device="cuda").cuda(non_blocking=True)
assert x.is_cuda and next(model.parameters()).device == x.device == device
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side), torch.autocast("cuda", dtype=torch.bfloat16):
    loss = model(x).float().square().mean()
torch.cuda.current_stream().wait_stream(side)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
end.record()
torch.cuda.synchronize()
assert start.elapsed_time(end) > 0
print(torch.cuda.get_device_properties(0).total_memory > 0, torch.cuda.memory_allocated() > 0)
"""


def test_cuda_as_this_machines_device(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(CUDA)
    command = [sys.executable, "-m", "torchmlx", "run", "--cuda-as-mps", str(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
    assert (done.stdout, done.returncode) == ("True True\n", 0), done.stderr
