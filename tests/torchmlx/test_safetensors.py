"""The safetensors reader and writer: values of every dtype, and damage of every kind."""

import json
import random
import struct
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from torchmlx.errors import InputError
from torchmlx.serialization import safetensors as st

NUMPY = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "C64": np.complex64,
}


def write(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    """A safetensors file with exactly this header; `length` lies about the header's length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype: str, shape: list, begin: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def read_all(path: Path) -> dict[str, tuple[str, np.ndarray]]:
    with st.SafetensorsFile(path) as file, mx.stream(mx.cpu):
        return {i.name: (i.dtype, np.asarray(a.astype(mx.float64))) for i, a in file.items()}


@pytest.mark.parametrize("dtype", NUMPY)
def test_numpy_dtypes_keep_their_values(tmp_path, dtype):
    rng = np.random.default_rng(1)
    values = (rng.normal(size=(3, 5)) * 100).astype(NUMPY[dtype])
    if dtype[0] in "IU":
        values[0, :2] = np.iinfo(values.dtype).min, np.iinfo(values.dtype).max
    write(tmp_path / "a", {"w": entry(dtype, [3, 5], 0, values.nbytes)}, values.tobytes())
    with st.SafetensorsFile(tmp_path / "a") as file:
        assert file.tensors["w"].dtype == dtype
        assert file.tensors["w"].shape == (3, 5)
        array = file.read("w")
        with mx.stream(mx.cpu):
            mx.eval(array)
        np.testing.assert_array_equal(np.asarray(array), values)
        assert np.asarray(array).dtype == values.dtype


def test_bf16_is_the_upper_half_of_float32(tmp_path):
    bits = np.array([0x3F80, 0xC000, 0x7F80, 0x0001, 0x4049], np.uint16)
    write(tmp_path / "a", {"w": entry("BF16", [5], 0, 10)}, bits.tobytes())
    with st.SafetensorsFile(tmp_path / "a") as file:
        array = file.read("w")
    assert array.dtype == mx.bfloat16
    expected = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(np.asarray(array.astype(mx.float32)), expected)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "F8_E8M0"])
def test_f8_stays_uint8_and_keeps_its_name(tmp_path, dtype):
    write(tmp_path / "a", {"w": entry(dtype, [2, 128], 0, 256)}, bytes(range(256)))
    with st.SafetensorsFile(tmp_path / "a") as file:
        assert file.tensors["w"].dtype == dtype
        array = file.read("w")
    assert array.dtype == mx.uint8
    np.testing.assert_array_equal(np.asarray(array).reshape(-1), np.arange(256))


def test_bool_is_true_for_any_byte_but_zero(tmp_path):
    write(tmp_path / "a", {"w": entry("BOOL", [4], 0, 4)}, bytes([0, 1, 2, 255]))
    with st.SafetensorsFile(tmp_path / "a") as file:
        assert file.read("w").tolist() == [False, True, True, True]


def test_scalars_empty_tensors_and_unaligned_data(tmp_path):
    header = {
        "scalar": entry("F32", [], 0, 4),
        "empty": entry("F32", [3, 0], 4, 4),
        "last": entry("F16", [0], 4, 4),
        "__metadata__": {"format": "pt"},
    }
    text = json.dumps(header).encode()
    text += b" " * ((-len(text)) % 8 + 1)  # data starts at an odd byte
    write(tmp_path / "a", text, struct.pack("<f", 2.5))
    with st.SafetensorsFile(tmp_path / "a") as file:
        assert file.read("scalar").item() == 2.5
        assert file.read("empty").shape == (3, 0)
        assert file.read("last").dtype == mx.float16
        assert file.metadata == {"format": "pt"}


BROKEN = {
    "empty file": (b"", "0 bytes"),
    "seven bytes": (b"1234567", "7 bytes"),
    "zero header": (struct.pack("<Q", 0) + b"{}", "header length 0"),
    "huge header": (struct.pack("<Q", 2**63) + b"{}", "header length 9223372036854775808"),
    "negative header": (struct.pack("<q", -1) + b"{}", "header length"),
    "header past the end": (struct.pack("<Q", 50) + b"{}", "truncated"),
    "not JSON": (struct.pack("<Q", 3) + b"{x}", "not valid JSON"),
    "not UTF-8": (struct.pack("<Q", 5) + b'{"\xff":', "not valid JSON"),
    "a list": (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
    "deep": (struct.pack("<Q", 200_000) + b"[" * 200_000, "nested too deeply"),
    "NaN": (struct.pack("<Q", 9) + b'{"a":NaN}', "NaN is not a number"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file(tmp_path, case):
    data, message = BROKEN[case]
    (tmp_path / "m.safetensors").write_bytes(data)
    check_error(tmp_path / "m.safetensors", message)


BROKEN_HEADERS = {
    "duplicate": (b'{"a":{},"a":{}}', "'a' appears twice"),
    "unknown dtype": ({"a": entry("F4", [4], 0, 4)}, "dtype 'F4' is not supported"),
    "dtype a list": ({"a": {"dtype": [], "shape": [], "data_offsets": [0, 4]}}, "not supported"),
    "entry a number": ({"a": 3}, "not a JSON object"),
    "negative axis": ({"a": entry("F32", [-1], 0, 4)}, "shape"),
    "float axis": ({"a": entry("F32", [1.0], 0, 4)}, "shape"),
    "bool axis": ({"a": entry("F32", [True], 0, 4)}, "shape"),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, "shape"),
    "overflow": ({"a": entry("F32", [2**31, 2**31, 2**62], 0, 4)}, "axis is longer"),
    "wraps to 4": ({"a": entry("F32", [2**30, 2**30, 16, 1], 0, 4)}, "needs 73786976294838206464"),
    "too many axes": ({"a": entry("F32", [1] * 40, 0, 4)}, "shape"),
    "size": ({"a": entry("F32", [2], 0, 4)}, "needs 8 bytes, its offsets give 4"),
    "reversed offsets": ({"a": entry("F32", [1], 4, 0)}, "data_offsets"),
    "one offset": ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, "data_offsets"),
    "outside": ({"a": entry("F32", [2], 0, 8)}, "truncated: tensor 'a' ends at byte"),
    "far outside": ({"a": entry("U8", [2**30], 0, 2**30)}, "truncated"),
    "hole": ({"a": entry("U8", [2], 2, 4)}, "2 unused bytes before tensor 'a'"),
    "tail": ({"a": entry("U8", [2], 0, 2)}, "2 bytes after the last tensor"),
    "overlap": (
        {"a": entry("U8", [3], 0, 3), "b": entry("U8", [2], 2, 4)},
        "tensor 'b' overlaps another one",
    ),
    "same bytes": ({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 0, 4)}, "overlaps"),
    "metadata": ({"a": entry("U8", [4], 0, 4), "__metadata__": {"x": 1}}, "__metadata__"),
    "metadata a list": ({"a": entry("U8", [4], 0, 4), "__metadata__": []}, "__metadata__"),
    "long name": ({"n\n" * 99999: entry("U8", [5], 0, 4)}, "n\\nn\\n"),
}


@pytest.mark.parametrize("case", BROKEN_HEADERS)
def test_broken_header(tmp_path, case):
    header, message = BROKEN_HEADERS[case]
    check_error(write(tmp_path / "m.safetensors", header, b"1234"), message)


def check_error(path: Path, message: str) -> None:
    with pytest.raises(InputError) as caught:
        st.SafetensorsFile(path)
    text = str(caught.value)
    assert message in text
    assert str(path) in text
    assert "\n" not in text and len(text) < 600


def test_missing_and_unreadable_files(tmp_path):
    check_error(tmp_path / "absent.safetensors", "no such file")
    check_error(tmp_path, "cannot open it")


def test_missing_tensor(tmp_path):
    write(tmp_path / "a", {"w": entry("U8", [4], 0, 4)}, b"1234")
    with (
        st.SafetensorsFile(tmp_path / "a") as file,
        pytest.raises(InputError, match="holds no tensor 'v'"),
    ):
        file.read("v")


def test_a_file_that_shrinks_is_an_error_not_a_crash(tmp_path):
    st.save(tmp_path / "a", {"w": mx.zeros((1 << 20,))})
    with st.SafetensorsFile(tmp_path / "a") as file:
        (tmp_path / "a").write_bytes(b"short")
        with pytest.raises(InputError, match="shrank"):
            file.read("w")


def small_file(path: Path) -> bytes:
    arrays = {"a.weight": mx.arange(6).reshape(2, 3), "b": mx.array([1.5, -2.0], mx.bfloat16)}
    st.save(path, arrays, metadata={"format": "pt"})
    return path.read_bytes()


def test_every_truncation_is_an_input_error(tmp_path):
    whole = small_file(tmp_path / "whole")
    path = tmp_path / "cut"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError):
            st.SafetensorsFile(path)


def test_flipped_bytes_give_an_input_error_or_data_but_no_other_exception(tmp_path):
    whole = small_file(tmp_path / "whole")
    path = tmp_path / "bad"
    random.seed(7)
    outcomes = {"error": 0, "read": 0}
    for _ in range(3000):
        damaged = bytearray(whole)
        for _ in range(random.choice([1, 1, 2, 5])):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        path.write_bytes(damaged)
        try:
            read_all(path)
            outcomes["read"] += 1
        except InputError:
            outcomes["error"] += 1
    assert min(outcomes.values()) > 100  # both ways were really tried


def test_reader_agrees_with_the_safetensors_package(tmp_path):
    """What the reference implementation accepts of damaged headers, we accept, and the reverse."""
    from safetensors import SafetensorError, deserialize

    whole = small_file(tmp_path / "whole")
    path = tmp_path / "bad"
    random.seed(3)
    for _ in range(2000):
        damaged = bytearray(whole)
        position = random.randrange(len(damaged))
        damaged[position] = random.choice(b'0123456789{}[]",:aF ')
        path.write_bytes(damaged)
        try:
            theirs = {name: t["data"] for name, t in deserialize(bytes(damaged))}
        except SafetensorError:
            theirs = None
        try:
            with st.SafetensorsFile(path) as file:
                ours = {n: bytes(damaged[i.begin : i.end]) for n, i in file.tensors.items()}
        except InputError:
            ours = None
        # A dtype we do not know (F4, F6) is the one thing the package takes and we refuse.
        assert ours == (None if theirs is None else {n: bytes(d) for n, d in theirs.items()})


ROUND_TRIP = {
    "bf16": mx.array([[1.0, -2.5], [3e38, 1e-40]], mx.bfloat16),
    "f16": mx.array([65504.0, 6e-8], mx.float16),
    "f32": mx.array(3.25),
    "i64": mx.array([-(2**63), 2**63 - 1], mx.int64),
    "bool": mx.array([True, False, True]),
    "c64": mx.array([1 + 2j]),
    "u8": mx.arange(256).astype(mx.uint8),
    "transposed": mx.arange(6).reshape(2, 3).T,
    "empty": mx.zeros((0, 4)),
}


def test_round_trip_of_every_written_dtype(tmp_path):
    st.save(tmp_path / "a", ROUND_TRIP, dtypes={"u8": "F8_E4M3"})
    with st.SafetensorsFile(tmp_path / "a") as file:
        assert file.metadata == {"format": "pt"}
        assert file.tensors["u8"].dtype == "F8_E4M3"
        assert file.tensors["bf16"].dtype == "BF16"
        for name, array in ROUND_TRIP.items():
            back = file.read(name)
            assert back.dtype == array.dtype and back.shape == array.shape
            assert mx.array_equal(back, array).item()


def test_written_file_opens_in_torch(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    st.save(tmp_path / "a", ROUND_TRIP, dtypes={"u8": "F8_E4M3"})
    theirs = load_file(tmp_path / "a")
    assert theirs["u8"].dtype == torch.float8_e4m3fn
    assert theirs["bf16"].dtype == torch.bfloat16
    expected = np.asarray(ROUND_TRIP["bf16"].astype(mx.float32))
    np.testing.assert_array_equal(theirs["bf16"].float().numpy(), expected)
    np.testing.assert_array_equal(theirs["transposed"].numpy(), [[0, 3], [1, 4], [2, 5]])


def test_torch_file_opens_here(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    kinds = [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int16]
    torch.manual_seed(0)
    tensors = {str(kind)[6:]: (torch.randn(4, 3) * 50).to(kind) for kind in kinds}
    save_file(tensors, tmp_path / "a")
    with st.SafetensorsFile(tmp_path / "a") as file, mx.stream(mx.cpu):
        for name, tensor in tensors.items():
            raw = np.asarray(file.read(name).reshape(-1).view(mx.uint8))
            np.testing.assert_array_equal(raw, tensor.reshape(-1).view(torch.uint8).numpy())


def test_saving_is_atomic(tmp_path, monkeypatch):
    st.save(tmp_path / "a", {"w": mx.array([1.0])})
    monkeypatch.setattr(st, "sync", lambda path: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        st.save(tmp_path / "a", {"w": mx.array([2.0])})
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    with st.SafetensorsFile(tmp_path / "a") as file:
        assert file.read("w").tolist() == [1.0]


def test_wrong_dtype_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="w: 4 bytes cannot be BF16"):
        st.save(tmp_path / "a", {"w": mx.array([1.0])}, dtypes={"w": "BF16"})


def test_shards_are_filled_in_order():
    assert st.plan_shards({"a": 4, "b": 4, "c": 9, "d": 1}, 8) == [["a", "b"], ["c"], ["d"]]
    assert st.plan_shards({}, 8) == [[]]


def test_sharded_files_and_index(tmp_path):
    arrays = {name: mx.full((2,), index) for index, name in enumerate("abc")}
    sizes = {name: array.nbytes for name, array in arrays.items()}
    files = st.save_sharded(
        tmp_path, sizes, lambda name: ("F32", arrays[name].astype(mx.float32)), 16
    )
    assert [file.name for file in files] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 24
    assert index["weight_map"]["c"] == files[1].name
    with st.SafetensorsFile(files[1]) as file:
        assert file.read("c").tolist() == [2.0, 2.0]


def test_reading_lets_file_pages_go(tmp_path):
    """Resident file pages after reading 64 MB stay near zero: a model must not count twice."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc")
    st.save(tmp_path / "a", {f"w{i}": mx.zeros((1 << 22,)) for i in range(4)})

    def file_pages() -> int:
        line = next(x for x in status.read_text().splitlines() if x.startswith("RssFile"))
        return int(line.split()[1]) * 1024

    with st.SafetensorsFile(tmp_path / "a") as file:
        before = file_pages()
        for _, array in file.items():
            del array
        assert file_pages() - before < 20 << 20
