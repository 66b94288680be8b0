"""torch.save and torch.load: either side reads what the other wrote, and nothing runs."""

import contextlib
import io
import os
import pickle
import zipfile
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch as real

import torchmlx as ours
from torchmlx.errors import InputError
from torchmlx.serialization import LoadError

DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8"),
    *("bool", "complex64", "uint16", "uint32", "uint64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
)
FORMATS = {"zip": True, "stream": False}


def wide(t):
    """Something that compares exactly in NumPy."""
    if "float8" in str(t.dtype):
        t = t.view(real.uint8 if isinstance(t, real.Tensor) else ours.uint8)
    elif "bfloat16" in str(t.dtype):
        t = t.float()
    return t.detach().numpy()


def same(a, b):
    assert tuple(a.shape) == tuple(b.shape) and str(a.dtype) == str(b.dtype)
    assert a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
    assert a.requires_grad == b.requires_grad
    np.testing.assert_array_equal(wide(a), wide(b))


def through(writer, reader, obj, legacy=False, **options):
    """`obj`, written by one torch and read by the other."""
    buffer = io.BytesIO()
    writer.save(obj, buffer, _use_new_zipfile_serialization=not legacy)
    buffer.seek(0)
    return reader.load(buffer, **options)


def sample(torch, name):
    values = [0, 1, 2, 3, 100, 250]
    if name.startswith("float8"):
        return torch.tensor(values, dtype=torch.uint8).view(getattr(torch, name)).reshape(2, 3)
    return torch.tensor(values).remainder(120).to(getattr(torch, name)).reshape(2, 3)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_both_ways(name, legacy):
    theirs, mine = sample(real, name), sample(ours, name)
    if legacy and name.startswith(("uint", "float8")) and name != "uint8":
        # torch writes them to a stream and cannot read them.
        same(through(ours, ours, [mine], legacy)[0], mine)
        return
    same(through(real, ours, {"x": theirs}, legacy)["x"], theirs)
    same(through(ours, real, {"x": mine}, legacy)["x"], mine)
    same(through(ours, ours, [mine], legacy)[0], mine)


def geometries(torch):
    base = torch.arange(24.0).reshape(2, 3, 4)
    return {
        "whole": base,
        "row": base[1],
        "step": base[:, ::2, 1:],
        "transposed": base.transpose(0, 2),
        "expanded": torch.arange(3.0).expand(4, 3),
        "channels_last": torch.arange(120.0)
        .reshape(2, 3, 4, 5)
        .contiguous(memory_format=torch.channels_last),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
        "ones": torch.arange(5.0).reshape(1, 5, 1),
        "grad": torch.arange(3.0).requires_grad_(),
    }


@pytest.mark.parametrize("legacy", [False, True])
def test_geometry_and_sharing(legacy):
    for writer, reader in [(real, ours), (ours, real), (ours, ours)]:
        written = geometries(writer)
        read = through(writer, reader, written, legacy)
        for name, tensor in written.items():
            same(read[name], tensor)
        read["row"][0, 0] = 99.0
        assert read["whole"][1, 0, 0] == 99 and read["transposed"][0, 0, 1] == 99


def test_tied_weights_stay_tied_and_views_keep_whole_storages_small():
    weight = ours.nn.Parameter(ours.randn(3, 2))
    read = through(ours, ours, {"a": weight, "b": weight.data, "c": weight.data[1:]})
    assert isinstance(read["a"], ours.nn.Parameter) and read["a"].requires_grad
    read["b"][1, 1] = 7.0
    assert read["a"][1, 1] == 7 and read["c"][0, 1] == 7
    eight = sample(ours, "float8_e4m3fn")
    same(through(real, real, through(ours, real, [eight, eight[1:]]))[1], eight[1:])
    assert read["b"].untyped_storage().data_ptr() == read["c"].untyped_storage().data_ptr()


def plain(torch):
    return {
        "list": [1, -(2**70), 1.5, None, True, "ä", b"\x00\xff", (1, (2,))],
        "set": {1, 2},
        "counter": Counter("aab"),
        "ordered": OrderedDict(b=1, a=2),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "size": torch.Size([2, 3]),
        "complex": 1 + 2j,
    }


def test_plain_objects():
    for writer, reader in [(real, ours), (ours, real), (ours, ours)]:
        read = through(writer, reader, plain(writer))
        assert read == plain(reader)
        assert type(read["size"]) is reader.Size and list(read["ordered"]) == ["b", "a"]


def test_state_dict_of_a_module_with_its_metadata():
    def module(torch):
        return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))

    theirs, mine = module(real), module(ours)
    state = through(real, ours, theirs.state_dict())
    assert state._metadata["1"] == {"version": 2}
    mine.load_state_dict(state)
    for name, tensor in theirs.state_dict().items():
        same(mine.state_dict()[name], tensor)
    theirs.load_state_dict(through(ours, real, mine.state_dict()))


def test_a_whole_module_needs_trust():
    for writer, reader in [(real, ours), (ours, real), (ours, ours)]:
        model = writer.nn.Sequential(writer.nn.Linear(3, 2), writer.nn.ReLU())
        with pytest.raises(pickle.UnpicklingError):
            through(writer, reader, model)
        read = through(writer, reader, model, weights_only=False)
        assert type(read[0]) is reader.nn.Linear
        same(read[0].weight, model[0].weight)


def test_files_and_paths(tmp_path):
    path = tmp_path / "model.pt"
    ours.save([ours.ones(2)], path)
    first = path.read_bytes()
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "plain").unlink()
    assert real.load(path)[0].tolist() == [1, 1] == ours.load(str(path), mmap=True)[0].tolist()
    assert real.load(path, mmap=True)[0].tolist() == [1, 1]
    with zipfile.ZipFile(path) as archive:
        assert {"model/data.pkl", "model/data/0", "model/version"} <= set(archive.namelist())
        for info in archive.infolist():
            head = first[info.header_offset : info.header_offset + 30]
            extra = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
            assert (info.header_offset + 30 + extra) % 64 == 0
    with pytest.raises((pickle.PicklingError, AttributeError)):
        ours.save([ours.ones(2), lambda: 1], path)
    assert path.read_bytes() == first and os.listdir(tmp_path) == ["model.pt"]
    with pytest.raises(RuntimeError, match="Parent directory .* does not exist"):
        ours.save(1, tmp_path / "no" / "file")
    with pytest.raises(FileNotFoundError):
        ours.load(tmp_path / "none.pt")


def test_several_objects_in_one_stream():
    file = io.BytesIO()
    for n in (1.0, 2.0):
        ours.save(ours.full((2,), n), file, _use_new_zipfile_serialization=False)
    file.seek(0)
    assert [ours.load(file).tolist(), ours.load(file).tolist()] == [[1, 1], [2, 2]]


def test_map_location():
    buffer = io.BytesIO()
    ours.save(ours.ones(2), buffer, pickle_protocol=2)
    gpu = io.BytesIO(buffer.getvalue())
    changed = io.BytesIO()
    with zipfile.ZipFile(gpu) as old, zipfile.ZipFile(changed, "w") as new:
        for info in old.infolist():
            content = old.read(info).replace(b"\x03\x00\x00\x00cpu", b"\x06\x00\x00\x00cuda:0")
            new.writestr(info.filename, content)
    for place in ("cpu", ours.device("cpu"), {"cuda:0": "cpu"}, lambda storage, where: storage):
        changed.seek(0)
        assert ours.load(changed, map_location=place).tolist() == [1, 1]
    changed.seek(0)
    assert ours.load(changed, map_location="meta").device.type == "meta"
    if not ours.cuda.is_available():
        changed.seek(0)
        with pytest.raises(RuntimeError, match="map_location=torch.device"):
            ours.load(changed)


class Harmful:
    """Its pickle calls os.system."""

    def __reduce__(self):
        return os.system, ("touch /tmp/torchmlx-was-run",)


class Mine:
    def __init__(self, x):
        self.x = x


@pytest.mark.parametrize("legacy", [False, True])
def test_code_is_refused(legacy):
    buffer = io.BytesIO()
    real.save({"x": Harmful()}, buffer, _use_new_zipfile_serialization=not legacy)
    buffer.seek(0)
    with pytest.raises(LoadError, match="refused: the file wants posix.system"):
        ours.load(buffer)
    assert not os.path.exists("/tmp/torchmlx-was-run")


def test_classes_that_were_declared_safe():
    obj = {"mine": Mine(real.ones(2))}
    with pytest.raises(LoadError, match="add_safe_globals"):
        through(real, ours, obj)
    with ours.serialization.safe_globals([Mine]):
        assert through(real, ours, obj)["mine"].x.tolist() == [1, 1]
        assert ours.serialization.get_safe_globals() == [Mine]
    assert ours.serialization.get_safe_globals() == []
    layer = real.nn.Linear(2, 1)
    with ours.serialization.safe_globals([ours.nn.Linear]):  # by torch's name in the file
        assert through(real, ours, layer).weight.tolist() == layer.weight.tolist()


def archive(pickled: bytes, **records: bytes) -> io.BytesIO:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as out:
        out.writestr("a/data.pkl", pickled)
        out.writestr("a/version", "3\n")
        for name, content in records.items():
            out.writestr(f"a/data/{name}", content)
    buffer.seek(0)
    return buffer


def tensor_pickle(size="(I2\nt", stride="(I1\nt", offset=0, count=2, kind="FloatStorage"):
    storage = f"(S'storage'\nctorch\n{kind}\nS'0'\nS'cpu'\nI{count}\ntQ"
    parts = f"{storage}I{offset}\n{size}{stride}I00\nccollections\nOrderedDict\n)R"
    return f"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n({parts}tR.".encode("latin1")


HOSTILE = {
    "size beyond": tensor_pickle(size="(I3\nt"),
    "offset beyond": tensor_pickle(offset=1),
    "negative offset": tensor_pickle(offset=-1),
    "negative size": tensor_pickle(size="(I-2\nt"),
    "negative stride": tensor_pickle(stride="(I-1\nt"),
    "stride beyond": tensor_pickle(stride="(I2\nt"),
    "float size": tensor_pickle(size="(F2.0\nt"),
    "ranks differ": tensor_pickle(stride="(t"),
    "count beyond": tensor_pickle(count=3),
    "huge count": tensor_pickle(count=2**62),
    "negative count": tensor_pickle(count=-2),
    "other width": tensor_pickle(kind="DoubleStorage"),
    "no storage": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(I1\nI0\n)))NtR.",
    "call a dtype": b"\x80\x02ctorch\nfloat32\n)R.",
    "call a tensor class": b"\x80\x02ctorch\nTensor\n(I9\ntR.",
    "call a result": b"\x80\x02ccollections\nOrderedDict\n)R)R.",
    "build a class": b"\x80\x02ctorch\nTensor\n}U\x05shapeI1\nsb.",
    "build a function": b"\x80\x02c_codecs\nencode\n}U\x01xI1\nsb.",
    "inst": b"(ios\nsystem\n.",
    "obj": b"\x80\x02(cbuiltins\nset\no.",
    "extension": b"\x80\x02\x82\x01.",
    "attribute by name": b"\x80\x04\x8c\x08builtins\x8c\x0cset.__init__\x93.",
    "a huge bytearray": b"\x80\x02cbuiltins\nbytearray\n(J\xff\xff\xff\x7ftR.",
    "truncated": tensor_pickle()[:-9],
    "empty": b"",
    "bad memo": b"\x80\x02h\x07.",
    "long string": b"\x80\x02X\xff\xff\xff\x7fabc.",
}


@pytest.mark.parametrize("pickled", HOSTILE.values(), ids=HOSTILE)
def test_hostile_pickles(pickled):
    with pytest.raises(LoadError) as caught:
        ours.load(archive(pickled, **{"0": bytes(8)}))
    assert isinstance(caught.value, (InputError, RuntimeError, pickle.UnpicklingError))


def test_the_unharmed_one_loads():
    assert ours.load(archive(tensor_pickle(), **{"0": bytes(8)})).tolist() == [0, 0]


def test_damaged_files():
    for legacy in False, True:
        buffer = io.BytesIO()
        ours.save({"x": ours.arange(50.0), "y": [1, "two"]}, buffer, pickle, 2, not legacy)
        whole = buffer.getvalue()
        random = np.random.default_rng(0)
        for n in range(0, len(whole), 37):
            with pytest.raises(LoadError):
                ours.load(io.BytesIO(whole[:n]))
        for _ in range(150):
            broken = bytearray(whole)
            broken[random.integers(len(broken))] ^= 1 << random.integers(8)
            with contextlib.suppress(LoadError):
                ours.load(io.BytesIO(broken))
    for text in (b"PK\x03\x04 no", b"hello", b"\x80\x02K\x01."):
        with pytest.raises(LoadError):
            ours.load(io.BytesIO(text))


def test_compressed_records_and_missing_ones():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("a/data.pkl", tensor_pickle())
    buffer.seek(0)
    with pytest.raises(LoadError, match="compressed"):
        ours.load(buffer)
    with pytest.raises(LoadError, match="data/0 is missing"):
        ours.load(archive(tensor_pickle()))
