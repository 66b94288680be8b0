"""torch.set_num_threads and its kin against torch: answers, errors, and that kernels obey."""

import pytest
import torch as oracle

import torchmlx as torch
from torchmlx.kernels import native


@pytest.fixture
def threads():
    """Both libraries' numbers of threads are put back afterwards."""
    before = torch.get_num_threads(), oracle.get_num_threads()
    yield
    torch.set_num_threads(before[0])
    oracle.set_num_threads(before[1])


def test_kernels_obey(threads):
    module = native.load()[0]
    x, w = torch.randn(70, 300), torch.randn(200, 300)
    want = torch.nn.functional.linear(x, w).numpy()
    for count in (1, 3, 2):
        torch.set_num_threads(count)
        if module is not None:
            assert torch.get_num_threads() == module.threads() == count
        assert abs(torch.nn.functional.linear(x, w).numpy() - want).max() < 1e-4


@pytest.mark.parametrize("name", ["set_num_threads", "set_num_interop_threads"])
@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True, None, 2**40], ids=repr)
def test_errors_are_torchs(threads, name, count):
    with pytest.raises((RuntimeError, ValueError, OverflowError)) as theirs:
        getattr(oracle, name)(count)
    with pytest.raises(theirs.type) as ours:
        getattr(torch, name)(count)
    assert str(ours.value) == str(theirs.value)


def test_interop_threads_are_kept():
    before = torch.get_num_interop_threads()
    torch.set_num_interop_threads(3)
    assert torch.get_num_interop_threads() == 3
    torch.set_num_interop_threads(before)
