"""torch.device, and tensors that have only a shape."""

from __future__ import annotations

import pickle

import pytest

import torchmlx


@pytest.mark.parametrize(
    ("text", "kind", "index"),
    [("cpu", "cpu", None), ("cuda:1", "cuda", 1), ("mps", "mps", None), ("meta", "meta", None)],
)
def test_parsing(torch, text, kind, index):
    d = torch.device(text)
    assert (d.type, d.index, str(d)) == (kind, index, text)
    assert pickle.loads(pickle.dumps(d)) == d
    assert torch.device(d) == d


@pytest.mark.parametrize(
    "text", ["foo", "cuda:-1", "cuda:", "cuda:01", "cuda:0:1", ":0", "", "CPU"]
)
def test_bad_strings(torch, text):
    with pytest.raises(RuntimeError):
        torch.device(text)


def test_a_device_is_a_value(torch):
    assert torch.device("cuda", 1) == torch.device("cuda:1")
    assert torch.device("cpu") != torch.device("cpu", 0)
    assert torch.device("cpu") != "cpu"
    assert len({torch.device("cuda:0"), torch.device("cuda", 0)}) == 1
    assert repr(torch.device("cuda:0")) == "device(type='cuda', index=0)"
    with pytest.raises(AttributeError):
        torch.device("cpu").type = "cuda"
    for bad in (1.5, None):
        with pytest.raises(TypeError):
            torch.device(bad)
    with pytest.raises(RuntimeError):
        torch.device("cuda:0", 1)


def test_absent_devices_refuse_allocation():
    if torchmlx.core.device.GPU is None:
        for name in ("cuda", "mps"):
            with pytest.raises((AssertionError, RuntimeError)):
                torchmlx.zeros(1, device=name)


def test_a_device_as_context(torch):
    with torch.device("meta"):
        assert torch.empty(2).device.type == "meta"
        with torch.device("cpu"):
            assert torch.zeros(2).tolist() == [0, 0]
    assert torch.empty(2).device.type == "cpu"


def test_meta_tensors_have_shapes_only(torch):
    x = torch.empty(10**6, 10**6, device="meta")
    assert (x + 1).shape == (10**6, 10**6)
    assert x.view(-1, 10)[3].shape == (10,)
    assert (x[0] * torch.tensor(2.0)).device.type == "meta"
    assert torch.ones(2).to("meta").device.type == "meta"
    with pytest.raises(RuntimeError):
        torch.empty((), device="meta").item()
    y = x[0, :2]
    for read in (lambda: y.tolist(), lambda: y.cpu()):
        with pytest.raises(NotImplementedError):
            read()
    with pytest.raises(TypeError):
        y.numpy()
    with pytest.raises(RuntimeError):
        y + torch.ones(2)
