"""DLPack, torch.asarray and torch.frombuffer: values, shared memory and errors, against torch."""

from __future__ import annotations

import gc

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]

import torchmlx
from torchmlx.utils import dlpack

from .parity import same

NUMPY = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16",
    "float32", "float64", "complex64",
)  # fmt: skip
OWN = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
VIEWS = {
    "matrix": lambda x: x,
    "transposed": lambda x: x.t(),
    "stepped": lambda x: x[1:, ::2],
    "number": lambda x: x[1, 2],
    "expanded": lambda x: x[:, :1].expand(3, 5),
    "empty": lambda x: x[:0],
    "inserted": lambda x: x[:, None],
}


def numbers(lib, dtype: str):
    x = lib.arange(12).reshape(3, 4)
    return (x % 2 if dtype == "bool" else x).to(getattr(lib, dtype))


def as_floats(x) -> list:
    return (x if x.dtype.is_complex else x.float()).tolist()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", NUMPY + OWN)
def test_torch_reads_and_we_read_torch(dtype, view):
    ours, theirs = (VIEWS[view](numbers(lib, dtype)) for lib in (torchmlx, torch))
    there, back = torch.from_dlpack(ours), torchmlx.from_dlpack(theirs)
    for got, want in ((there, theirs), (back, ours)):
        assert str(got.dtype) == str(want.dtype)
        assert tuple(got.shape) == tuple(want.shape)
        assert as_floats(got) == as_floats(want)
    if theirs.numel():
        assert there.stride() == theirs.stride() == back.stride()
    assert ours.__dlpack_device__() == tuple(theirs.__dlpack_device__()) == (1, 0)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("dtype", NUMPY + OWN)
def test_writes_are_seen_on_both_sides(dtype, old):
    """Also through the capsules from before DLPack 1.0, which cannot say who may write."""
    ours, theirs = numbers(torchmlx, dtype), numbers(torch, dtype)
    there = torch.from_dlpack(dlpack.to_dlpack(ours.t()) if old else ours.t())
    back = torchmlx.from_dlpack(to_dlpack(theirs.t()) if old else theirs.t())
    one = 1 if dtype == "bool" else 8  # float8_e8m0fnu has powers of two
    there[1, 0], back[1, 0] = one, one
    assert as_floats(ours[0, 1]) == as_floats(theirs[0, 1]) == one
    ours[2, 3], theirs[2, 3] = ours[0, 1], theirs[0, 1]
    assert as_floats(there[3, 2]) == as_floats(back[3, 2]) == one
    del ours, theirs
    gc.collect()
    assert as_floats(there) == as_floats(back)


@pytest.mark.parametrize("dtype", NUMPY)
def test_numpy_shares(dtype):
    ours, array = numbers(torchmlx, dtype), numbers(torch, dtype).numpy()
    seen = np.from_dlpack(ours)
    back = torchmlx.from_dlpack(array[:, ::2])
    assert seen.dtype == array.dtype
    assert np.array_equal(seen, array)
    seen[1, 1], back[0, 1] = 1, 1
    assert ours[1, 1].item() == 1
    assert array[0, 2] == 1


@pytest.mark.parametrize("dtype", ["bfloat16", *(d for d in NUMPY if d != "float64")])
def test_mlx_reads_and_we_read_mlx(dtype):
    """But for float64, which mx.from_dlpack rounds to float32."""
    ours = numbers(torchmlx, dtype).t()
    array = mx.from_dlpack(ours)
    assert array.dtype == ours.mx.dtype
    back = torchmlx.from_dlpack(array)
    for got in (torchmlx.from_mx(array), back, torchmlx.asarray(array)):
        assert torchmlx.equal(got, ours)
    kept = torchmlx.from_mx(array).tolist()
    back[0] = 1  # an mx.array keeps its value
    assert torchmlx.from_mx(array).tolist() == kept


def test_a_copy_is_one():
    for lib in (torch, torchmlx):
        x, array = lib.zeros(3), np.zeros(3)
        for of in (x, array):
            lib.from_dlpack(of, copy=True)[0] = 1
            lib.from_dlpack(of, copy=False)[1] = 1
        assert x.tolist() == array.tolist() == [0, 1, 0]
    x = torchmlx.zeros(3)
    np.from_dlpack(x, copy=True)[0] = 1
    torch.from_dlpack(x.__dlpack__(max_version=(1, 0), copy=True))[0] = 1
    assert x.tolist() == [0, 0, 0]


class Old:
    """An exporter that knows no keyword."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self):
        return self.x.__dlpack__()

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


@pytest.mark.parametrize("make", [torch.arange, torchmlx.arange, np.arange])
def test_exporters_of_any_age(make):
    x = make(3)
    shared, copied = torchmlx.from_dlpack(Old(x)), torchmlx.from_dlpack(Old(x), copy=True)
    through = torchmlx.as_tensor(Old(x)), torchmlx.asarray(Old(x)), torchmlx.tensor(Old(x))
    x[0] = 7
    assert shared.tolist() == through[0].tolist() == through[1].tolist() == [7, 1, 2]
    assert copied.tolist() == through[2].tolist() == [0, 1, 2]


REFUSALS = {
    "gradient": lambda lib: lib.from_dlpack(lib.ones(2, requires_grad=True)),
    "gradient-capsule": lambda lib: lib.ones(2, requires_grad=True).__dlpack__(),
    "meta": lambda lib: lib.ones(2, device="meta").__dlpack__(),
    "meta-device": lambda lib: lib.ones(2, device="meta").__dlpack_device__(),
    "to-meta": lambda lib: lib.from_dlpack(lib.ones(2), device="meta"),
    "number": lambda lib: lib.from_dlpack(3),
    "capsule-copy": lambda lib: lib.from_dlpack(lib.ones(2).__dlpack__(), copy=True),
    "stream-type": lambda lib: lib.ones(2).__dlpack__(stream="a"),
    "stream": lambda lib: lib.ones(2).__dlpack__(stream=3),
    "strings": lambda lib: lib.from_dlpack(np.array(["a"])),
    "alias-dtype": lambda lib: lib.asarray(lib.ones(2), copy=False, dtype=lib.int32),
    "alias-device": lambda lib: lib.asarray(lib.ones(2), copy=False, device="meta"),
    "alias-list": lambda lib: lib.asarray([1, 2], copy=False),
    "alias-number": lambda lib: lib.asarray(3, copy=False),
    "alias-scalar": lambda lib: lib.asarray(np.float32(3), copy=False),
    "asarray-None": lambda lib: lib.asarray(None),
    "asarray-str": lambda lib: lib.asarray("a"),
    "asarray-bytes": lambda lib: lib.asarray(bytearray(3)),
    "buffer-empty": lambda lib: lib.frombuffer(b"", dtype=lib.int8),
    "buffer-count": lambda lib: lib.frombuffer(b"abcd", dtype=lib.int8, count=0),
    "buffer-odd": lambda lib: lib.frombuffer(b"abcd", dtype=lib.int16, offset=1),
    "buffer-offset": lambda lib: lib.frombuffer(b"abcd", dtype=lib.int16, offset=4),
    "buffer-negative": lambda lib: lib.frombuffer(b"abcd", dtype=lib.int16, offset=-1),
    "buffer-short": lambda lib: lib.frombuffer(b"abcd", dtype=lib.int16, count=3),
    "buffer-none": lambda lib: lib.frombuffer(3, dtype=lib.int16),
    "buffer-order": lambda lib: lib.frombuffer(np.zeros((2, 2)).T, dtype=lib.float64),
}


def used(lib):
    capsule = lib.ones(2).__dlpack__()
    lib.from_dlpack(capsule)
    return lib.from_dlpack(capsule)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("name", [*REFUSALS, "used"])
def test_refusals_are_torchs(name):
    call = REFUSALS.get(name, used)
    with pytest.raises(Exception) as theirs:
        call(torch)
    with pytest.raises(theirs.type) as ours:
        call(torchmlx)
    assert str(ours.value) == str(theirs.value)


def test_what_only_we_refuse():
    backwards = np.arange(3.0)[::-1]  # torch 2.13 aborts the process
    with pytest.raises(ValueError, match="negative strides"):
        torchmlx.from_dlpack(backwards)
    with pytest.raises(TypeError, match="complex128"):
        torchmlx.from_dlpack(np.array([1j]))


OBJECTS = {
    "bytes": b"\1\2\3\4", "bytearray": bytearray(b"\1\2\3\4"), "scalar": np.int32(4),
    "0-d": np.array(3.0), "tuple": (1, 2), "range": range(3), "bool": True, "complex": 2j,
    "memoryview": memoryview(bytearray(8)), "array": np.ones((2, 2), np.float32).T,
    "backwards": [[1.5], [2.5]],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("name", OBJECTS)
def test_asarray(name):
    x = OBJECTS[name]
    same(torchmlx.asarray(x), torch.asarray(x), strides=True)
    same(torchmlx.asarray(x, copy=True), torch.asarray(x, copy=True), strides=True)
    if name != "complex":
        ours, theirs = (lib.asarray(x, dtype=lib.int16) for lib in (torchmlx, torch))
        same(ours, theirs, strides=True)


def test_asarray_of_tensors():
    for lib in (torch, torchmlx):
        w = lib.ones(2, requires_grad=True)
        made = w * 2
        assert lib.asarray(w, requires_grad=True) is w
        assert lib.asarray(made, requires_grad=True) is made
        assert lib.asarray(made, requires_grad=False).grad_fn is None
        copied = lib.asarray(w, copy=True, dtype=lib.float64, requires_grad=True)
        assert copied.dtype == lib.float64
        assert type(copied.grad_fn).__name__ == "ToCopyBackward0"
        assert type(lib.asarray(w, copy=True, requires_grad=True).grad_fn).__name__ == (
            "CloneBackward0"
        )
        x = lib.ones(2)
        assert lib.asarray(x) is x
        assert lib.asarray(x, requires_grad=True) is x
        assert x.requires_grad


def test_buffers_share():
    for lib in (torch, torchmlx):
        buffer = bytearray(12)
        x = lib.frombuffer(buffer, dtype=lib.float32, offset=4)
        x[1] = 1.0
        assert bytes(buffer) == bytes(8) + b"\0\0\x80\x3f"
        buffer[4:8] = b"\0\0\x80\x3f"
        assert x.tolist() == [1, 1]
        half = lib.frombuffer(buffer, dtype=lib.bfloat16)
        half[0] = 2.0
        assert bytes(buffer[:2]) == b"\0\x40"
        assert lib.frombuffer(buffer, dtype=lib.float32, count=1, requires_grad=True).requires_grad


def test_bfloat16_as_bits_in_numpy():
    for lib in (torch, torchmlx):
        x = lib.arange(4).bfloat16()
        bits = x.view(lib.int16).numpy()
        assert bits.tolist() == [0, 0x3F80, 0x4000, 0x4040]
        bits[0] = 0x4000
        x[3] = 1
        assert x.tolist() == [2, 1, 2, 1]
        assert bits[3] == 0x3F80
