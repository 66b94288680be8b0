"""The project's one safetensors reader, and a writer on top of the safetensors package.

The reader trusts nothing: every length and offset of the header is checked against the file before
a byte of data is touched, so a damaged or hostile file ends in one `SafetensorsError`. It exists
because `safe_open` raises for BF16 and F8 outside torch and `mx.load` loses the F8 type.

Format: https://github.com/huggingface/safetensors#format
"""

import json
import math
import mmap
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeGuard

import mlx.core as mx
import numpy as np

from ..errors import InputError

# The format's own limit (safetensors/src/tensor.rs, MAX_HEADER_SIZE).
MAX_HEADER_BYTES = 100_000_000
MAX_DIMS = 32
MAX_EXTENT = 2**31 - 1
MAX_ELEMENTS = 2**59  # of NumPy, at 8 bytes each
DEFAULT_SHARD_BYTES = 5 * 10**9


class SafetensorsError(InputError):
    """A safetensors file that cannot be read; one line naming file, tensor and remedy."""


class DType(NamedTuple):
    """How a safetensors dtype is held: NumPy's type for the bytes, and MLX's for the array.

    `mlx` is None where NumPy's type is already the one MLX maps to. The float8 types have no MLX
    counterpart and stay uint8, so a caller must look at the dtype's name.
    """

    storage: type[np.generic]
    mlx: mx.Dtype | None = None

    @property
    def itemsize(self) -> int:
        return np.dtype(self.storage).itemsize


DTYPES: dict[str, DType] = {
    # NumPy float64 would become float32 in mx.array, hence the detour over uint64.
    "F64": DType(np.uint64, mx.float64),
    "F32": DType(np.float32),
    "F16": DType(np.float16),
    "BF16": DType(np.uint16, mx.bfloat16),
    "F8_E4M3": DType(np.uint8),
    "F8_E5M2": DType(np.uint8),
    "F8_E8M0": DType(np.uint8),
    "I64": DType(np.int64),
    "I32": DType(np.int32),
    "I16": DType(np.int16),
    "I8": DType(np.int8),
    "U64": DType(np.uint64),
    "U32": DType(np.uint32),
    "U16": DType(np.uint16),
    "U8": DType(np.uint8),
    "BOOL": DType(np.uint8, mx.bool_),
    "C64": DType(np.complex64),
}

NAME_OF_MLX: dict[mx.Dtype, str] = {
    mx.float64: "F64",
    mx.float32: "F32",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.int64: "I64",
    mx.int32: "I32",
    mx.int16: "I16",
    mx.int8: "I8",
    mx.uint64: "U64",
    mx.uint32: "U32",
    mx.uint16: "U16",
    mx.uint8: "U8",
    mx.bool_: "BOOL",
    mx.complex64: "C64",
}

# safetensors.TensorSpec speaks the frameworks' names, not the format's.
_SPEC_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}


class TensorInfo(NamedTuple):
    """What a file says about one tensor. `begin` and `end` are byte offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class SafetensorsFile:
    """One open, validated, memory-mapped safetensors file.

    `tensors` maps names to `TensorInfo` in file order and `metadata` holds the free strings; both
    are known without reading data. `read` hands out one tensor and lets its file pages go again, so
    that reading a whole file never keeps more than one tensor of it resident.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self._file = open(self.path, "rb")  # noqa: SIM115 - closed by close()
        except FileNotFoundError:
            raise SafetensorsError(f"{self.path}: no such file; download it again") from None
        except OSError as error:
            raise SafetensorsError(f"{self.path}: cannot open it: {error.strerror}") from None
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            header, start = _read_header(self.path, self._file.fileno(), self._size)
            self.metadata = _check_metadata(self.path, header.pop("__metadata__", None))
            self.tensors = _check_tensors(self.path, header, start, self._size)
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except BaseException:
            self._file.close()
            raise

    def read(self, name: str) -> mx.array:
        """The tensor `name` as an array of its own memory (float8 types as uint8).

        float64 arrays can only be used on MLX's CPU stream. Raises SafetensorsError if the tensor
        is not there or the file has shrunk since it was opened.
        """
        with self._mapped(name) as (info, raw):
            return _to_mlx(raw, DTYPES[info.dtype])

    def read_into(self, name: str, out: np.ndarray) -> None:
        """Copy the tensor `name` into `out`, of its shape and its bytes' NumPy type (see `DType`).

        So a part of a larger array is filled without holding the part twice. Raises as `read`.
        """
        with self._mapped(name) as (_, raw):
            np.copyto(out, raw, casting="no")

    @contextmanager
    def _mapped(self, name: str) -> Iterator[tuple[TensorInfo, np.ndarray]]:
        """A tensor's entry, and its bytes in the mapped file; their pages go again at the end."""
        info = self.tensors.get(name)
        if info is None:
            raise SafetensorsError(f"{self.path}: it holds no tensor {_quote(name)}")
        # Touching a mapped page behind the end of the file kills the process with SIGBUS.
        if os.fstat(self._file.fileno()).st_size < self._size:
            raise SafetensorsError(f"{self.path}: it shrank while being read; download it again")
        storage = DTYPES[info.dtype].storage
        yield info, np.ndarray(info.shape, storage, buffer=self._map, offset=info.begin)
        release_pages(self._map, info.begin, info.end)

    def items(self) -> Iterator[tuple[TensorInfo, mx.array]]:
        """Every tensor in file order, one at a time."""
        for info in self.tensors.values():
            yield info, self.read(info.name)

    def close(self) -> None:
        self._map.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def release_pages(mapping: mmap.mmap, begin: int, end: int) -> None:
    """Drop the pages of bytes `begin` to `end` of a read-only mapping from this process.

    Without this a 30 GB checkpoint counts twice while it loads: as arrays and as mapped pages. No
    array may still use them: pages are read again when touched, and that costs time.
    """
    if not hasattr(mmap, "MADV_DONTNEED") or end - begin < mmap.PAGESIZE:
        return
    start = begin - begin % mmap.PAGESIZE
    with suppress(OSError):
        mapping.madvise(mmap.MADV_DONTNEED, start, end - start)


def _to_mlx(raw: np.ndarray, dtype: DType) -> mx.array:
    """A copy of `raw` as an MLX array; `raw` may be unaligned (headers need not be padded)."""
    if dtype.mlx is mx.bool_:
        return mx.array(raw != 0)
    array = mx.array(np.require(raw, requirements=["A", "C"]))
    if dtype.mlx is None:
        return array
    # float64 exists on the CPU stream only, and reinterpreting bytes gains nothing from a GPU.
    with mx.stream(mx.cpu):
        return array.view(dtype.mlx)


def _quote(name: object) -> str:
    """`name` for a one-line message: escaped, and short even if a hostile file made it long."""
    text = ascii(name)
    return text if len(text) <= 120 else text[:100] + "...'"


def _read_header(path: Path, descriptor: int, size: int) -> tuple[dict[str, Any], int]:
    """The header as a dict, and where the data starts."""
    again = "download it again"
    if size < 8:
        raise SafetensorsError(f"{path}: only {size} bytes, not a safetensors file; {again}")
    (length,) = struct.unpack("<Q", os.pread(descriptor, 8, 0))
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise SafetensorsError(
            f"{path}: header length {length} is out of range, not a safetensors file; {again}"
        )
    if length > size - 8:
        raise SafetensorsError(
            f"{path}: truncated: the header needs {length} bytes, {size - 8} are there; {again}"
        )
    text = os.pread(descriptor, length, 8)
    try:
        header = json.loads(
            text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except RecursionError:
        raise SafetensorsError(f"{path}: header is nested too deeply; {again}") from None
    except ValueError as error:  # includes UnicodeDecodeError and JSONDecodeError
        raise SafetensorsError(f"{path}: header is not valid JSON ({error}); {again}") from None
    if not isinstance(header, dict):
        raise SafetensorsError(f"{path}: header is not a JSON object; {again}")
    return header, 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"{_quote(twice)} appears twice")
    return found


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number")


def _check_metadata(path: Path, metadata: object) -> dict[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise SafetensorsError(f"{path}: __metadata__ must map strings to strings; save it again")
    return metadata


def _check_tensors(
    path: Path, header: dict[str, Any], start: int, size: int
) -> dict[str, TensorInfo]:
    """Every entry checked by itself, then all together: the data must be covered without overlap
    and without holes, as the format demands."""
    infos = [_check_entry(path, name, entry, start) for name, entry in header.items()]
    infos.sort(key=lambda info: (info.begin, info.end))
    expected = start
    for info in infos:
        if info.begin < expected:
            raise SafetensorsError(
                f"{path}: tensor {_quote(info.name)} overlaps another one; download it again"
            )
        if info.begin > expected:
            raise SafetensorsError(
                f"{path}: {info.begin - expected} unused bytes before tensor {_quote(info.name)}; "
                "download it again"
            )
        if info.end > size:
            raise SafetensorsError(
                f"{path}: truncated: tensor {_quote(info.name)} ends at byte {info.end}, "
                f"the file at {size}; download it again"
            )
        expected = info.end
    if expected != size:
        raise SafetensorsError(
            f"{path}: {size - expected} bytes after the last tensor; download it again"
        )
    return {info.name: info for info in infos}


def _check_entry(path: Path, name: str, entry: object, start: int) -> TensorInfo:
    def fail(what: str) -> SafetensorsError:
        return SafetensorsError(f"{path}: tensor {_quote(name)}: {what}")

    if not name.isascii() and re.search("[\ud800-\udfff]", name):
        raise fail("its name is not valid Unicode; save it again")
    if not isinstance(entry, dict):
        raise fail("its entry is not a JSON object; download it again")
    dtype: object = entry.get("dtype")
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise fail(f"dtype {_quote(dtype)} is not supported; supported: {', '.join(DTYPES)}")
    if not _are_sizes(shape) or len(shape) > MAX_DIMS:
        raise fail("its shape is not a list of non-negative integers; download it again")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise fail("its data_offsets are not two increasing integers; download it again")
    if max(shape, default=0) > MAX_EXTENT:
        raise fail(f"an axis is longer than {MAX_EXTENT}, which MLX arrays cannot hold")
    needed = math.prod(shape) * DTYPES[dtype].itemsize
    if needed != offsets[1] - offsets[0]:
        raise fail(
            f"shape {_quote(shape)} of {dtype} needs {_quote(needed)} bytes, "
            f"its offsets give {offsets[1] - offsets[0]}; download it again"
        )
    if not needed and math.prod(max(extent, 1) for extent in shape) > MAX_ELEMENTS:
        raise fail(f"shape {_quote(shape)} is too large for an array, even where an axis is empty")
    return TensorInfo(name, dtype, tuple(shape), start + offsets[0], start + offsets[1])


def _are_sizes(values: object) -> TypeGuard[list[int]]:
    """Whether `values` is a list of integers in [0, 2^63); bool is not an integer here."""
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**63 for v in values)


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, mx.array | np.ndarray],
    dtypes: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write `tensors` to `path`, atomically: a crash leaves the old file or none, never half.

    `dtypes` names the safetensors dtype where the array does not: F8_* for uint8 arrays, BF16 for
    NumPy uint16. `metadata` defaults to {"format": "pt"}; transformers refuses files without it.
    """
    from safetensors import TensorSpec, serialize_file

    path = Path(path)
    dtypes = dtypes or {}
    # The specs hold bare addresses: `bytes_of` keeps the buffers alive until the file is written.
    bytes_of = {name: _raw_bytes(array) for name, array in tensors.items()}
    specs = {}
    for name, array in tensors.items():
        dtype = dtypes.get(name) or name_of(array)
        raw = bytes_of[name]
        if math.prod(array.shape) * DTYPES[dtype].itemsize != raw.nbytes:
            raise ValueError(f"{name}: {raw.nbytes} bytes cannot be {dtype} of {array.shape}")
        specs[name] = TensorSpec(
            dtype=_SPEC_NAMES[dtype],
            shape=tuple(array.shape),
            data_ptr=raw.ctypes.data,
            data_len=raw.nbytes,
        )
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # The package makes files that only their owner can read; ours obey the umask.
        temporary.touch()
        mode = temporary.stat().st_mode
        with _system_errors(path):
            serialize_file(specs, temporary, metadata=dict(metadata or {"format": "pt"}))
        temporary.chmod(mode)
        sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


@contextmanager
def _system_errors(path: Path) -> Iterator[None]:
    """A full disk and its like as the OSErrors that they are: the package raises its own kind."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(path)) from None


def name_of(array: mx.array | np.ndarray) -> str:
    """The safetensors dtype of an array, e.g. 'BF16'."""
    if isinstance(array, mx.array):
        return NAME_OF_MLX[array.dtype]
    names = {np.dtype(name): key for key, name in _SPEC_NAMES.items() if hasattr(np, name)}
    return "BOOL" if array.dtype == np.bool_ else names[array.dtype]


def _raw_bytes(array: mx.array | np.ndarray) -> np.ndarray:
    """The array's bytes, row-major, as uint8 [nbytes]; shares memory where it can."""
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    with mx.stream(mx.cpu):
        return np.asarray(mx.contiguous(array).reshape(-1).view(mx.uint8))


def sync(path: Path) -> None:
    """fsync a file or folder; a rename is only atomic across a crash once both are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def plan_shards(sizes: Mapping[str, int], max_bytes: int = DEFAULT_SHARD_BYTES) -> list[list[str]]:
    """Names grouped in order into shards of at most `max_bytes`; a larger tensor stands alone."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def save_sharded(
    folder: str | os.PathLike[str],
    sizes: Mapping[str, int],
    load: Callable[[str], tuple[str, mx.array | np.ndarray]],
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> Sequence[Path]:
    """Write model.safetensors, or model-0000i-of-0000n.safetensors with their index, into `folder`.

    `sizes` gives every tensor's bytes in the order to write; `load(name)` returns its safetensors
    dtype and its array when its turn comes. No more than one shard is in memory. Returns the files.
    """
    folder = Path(folder)
    shards = plan_shards(sizes, max_shard_bytes)
    count = len(shards)
    files = []
    for number, names in enumerate(shards, 1):
        stem = "model" if count == 1 else f"model-{number:05d}-of-{count:05d}"
        files.append(folder / f"{stem}.safetensors")
        loaded = {name: load(name) for name in names}
        save(
            files[-1],
            {name: array for name, (_, array) in loaded.items()},
            {name: dtype for name, (dtype, _) in loaded.items()},
        )
        del loaded
    if count > 1:
        index = {
            "metadata": {"total_size": sum(sizes.values())},
            "weight_map": {
                name: file.name for file, names in zip(files, shards, strict=True) for name in names
            },
        }
        write_text(folder / "model.safetensors.index.json", json.dumps(index, indent=2) + "\n")
    return files


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
