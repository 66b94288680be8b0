"""What scripts use around training: groups of one process, wrappers, tensorboard's files."""

import collections
import hashlib
import os
import signal
import struct

import pytest

import torchmlx as torch
from torchmlx import distributed as dist
from torchmlx.nn.parallel import DistributedDataParallel
from torchmlx.utils.tensorboard import SummaryWriter


@pytest.fixture
def group():
    dist.init_process_group("nccl", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_group_of_one(group):
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "nccl")
    x, out = torch.tensor([1.0, 2.0]), [torch.zeros(2)]
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    assert dist.all_gather(out, x, async_op=True).wait()
    assert x.tolist() == out[0].tolist() == [1.0, 2.0]
    dist.barrier()
    with pytest.raises(ValueError, match="twice"):
        dist.init_process_group()


def test_no_group():
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="not been initialized"):
        dist.all_reduce(torch.ones(1))
    with pytest.raises(NotImplementedError, match="2 processes"):
        dist.init_process_group("gloo", world_size=2, rank=0)


def test_parallel_wrappers_hand_on(group):
    inner = torch.nn.Linear(3, 2)
    for wrapper in (torch.nn.DataParallel(inner), DistributedDataParallel(inner)):
        x = torch.ones(1, 3)
        assert torch.equal(wrapper(x), inner(x))
        assert list(wrapper.state_dict()) == ["module.weight", "module.bias"]
    with wrapper.no_sync():
        assert not wrapper.require_backward_grad_sync


def test_scalars_for_tensorboard(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        writer.add_scalar("a/b", torch.tensor(0.5), 3)
        with pytest.raises(NotImplementedError, match="add_image"):
            writer.add_image("x", None)
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    # The length's checksum, as tensorboard 2.20 writes it for a record of 0x19 bytes.
    second = struct.unpack_from("<Q", data)[0] + 16
    assert data[second : second + 12] == bytes.fromhex("1900000000000000 8bf10828")
    assert data[second + 21 : -4] == b"\x10\x03*\x0c\n\n\n\x03a/b\x15\x00\x00\x00?"


def test_no_onnx():
    with pytest.raises(NotImplementedError, match="ONNX"):
        torch.onnx.export(torch.nn.Linear(1, 1), torch.ones(1), "x.onnx")


def test_trees():
    from torchmlx.utils import _pytree as tree

    point = collections.namedtuple("point", "x y")
    value = {"a": [1, (2, 3)], "b": point(4, collections.OrderedDict(c=5)), "d": None}
    leaves, spec = tree.tree_flatten(value)
    assert leaves == [1, 2, 3, 4, 5, None] and spec.num_leaves == 6
    assert tree.tree_unflatten(leaves, spec) == value
    doubled = tree.tree_map_only(int, lambda x: 2 * x, value)
    assert doubled == {"a": [2, (4, 6)], "b": point(8, {"c": 10}), "d": None}
    assert isinstance(doubled["b"], point)
    with pytest.raises(ValueError, match="holds 6 items"):
        tree.tree_unflatten([1], spec)


def test_weights_from_a_url(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    torch.save({"w": torch.ones(2)}, tmp_path / "w.pt")
    digest = hashlib.sha256((tmp_path / "w.pt").read_bytes()).hexdigest()[:8]
    (tmp_path / "w.pt").rename(tmp_path / f"w-{digest}.pt")
    url = (tmp_path / f"w-{digest}.pt").as_uri()
    assert torch.hub.load_state_dict_from_url(url, check_hash=True)["w"].tolist() == [1, 1]
    assert (tmp_path / "home/hub/checkpoints" / f"w-{digest}.pt").exists()
    (tmp_path / "w-00000000.pt").write_bytes(b"something else")
    with pytest.raises(RuntimeError, match="invalid hash value"):
        url = (tmp_path / "w-00000000.pt").as_uri()
        torch.hub.load_state_dict_from_url(url, check_hash=True)
    assert [p.name for p in (tmp_path / "home/hub/checkpoints").iterdir()] == [f"w-{digest}.pt"]


def test_what_traces_nothing():
    def f(x):
        return x

    assert torch.fx.wrap(f) is f is torch.jit.script_if_tracing(f)
    with pytest.raises(NotImplementedError, match="traces no graphs"):
        torch.fx.symbolic_trace(f)
    with pytest.raises(NotImplementedError, match=r"torch\.fx\.Graph: "):
        torch.fx.Graph()
    torch._inductor.config.triton.cudagraphs = torch._dynamo.config.verbose = True


def test_processes():
    multiprocessing = torch.multiprocessing
    context = multiprocessing.get_context("spawn")
    assert context is not None and multiprocessing.get_sharing_strategy() == "copy"
    started = multiprocessing.spawn(print, nprocs=1, join=False)
    assert started.join(timeout=60) and len(started.pids()) == 1
    with pytest.raises(multiprocessing.ProcessExitedException, match="exit code 1"):
        multiprocessing.spawn(os._exit, args=(), nprocs=2)


def fail_at_length(rank):
    raise ValueError("x" * 300_000)  # more than a pipe holds


def test_a_process_tells_all_of_its_exception():
    with pytest.raises(torch.multiprocessing.ProcessRaisedException) as caught:
        torch.multiprocessing.spawn(fail_at_length)
    assert "x" * 300_000 in str(caught.value) and caught.value.error_index == 0


def kill_itself(rank):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_a_signal_ends():
    with pytest.raises(torch.multiprocessing.ProcessExitedException, match="signal SIGKILL") as e:
        torch.multiprocessing.spawn(kill_itself)
    assert (e.value.exit_code, e.value.signal_name) == (-signal.SIGKILL, "SIGKILL")


class EndsWhenAsked:
    """A process that ends between one question and the next."""

    def __init__(self, code, alive):
        self.code, self.alive, self.pid, self.sentinel = code, alive, 1, -1

    @property
    def exitcode(self):
        self.alive -= 1
        return None if self.alive >= 0 else self.code

    def join(self, timeout=None):
        pass


@pytest.mark.parametrize("alive", range(4))
@pytest.mark.parametrize("code", [0, 3])
def test_processes_that_end_at_any_moment(monkeypatch, alive, code):
    """Waiting for none of them would never come back."""

    def wait(sentinels, timeout):
        assert sentinels
        return sentinels

    monkeypatch.setattr(torch.multiprocessing, "wait", wait)
    context = torch.multiprocessing.ProcessContext(
        [EndsWhenAsked(0, 0), EndsWhenAsked(code, alive)], []
    )
    if code:
        with pytest.raises(torch.multiprocessing.ProcessExitedException, match="exit code 3"):
            context.join(timeout=60)
    else:
        assert context.join(timeout=60)
