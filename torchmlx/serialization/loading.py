"""torch.load: checkpoints in torch's own formats, read without torch.

There are two: the zip archive (torch >= 1.6; `data.pkl` beside one stored record per storage) and
the older stream of pickles. By default nothing in a file can run code.

Formats: PyTorch, torch/serialization.py; caffe2/serialize/inline_container.h (records are stored
uncompressed and start at multiples of 64 bytes).
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import pickle
import pickletools
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import IO, Any

import mlx.core as mx
import numpy as np

from ..core import device as devices
from ..core import dtype as dtypes
from ..core import layout, modes
from ..core import tensor as tensors
from ..core.cell import Cell
from ..core.device import device
from ..core.dtype import dtype
from ..core.tensor import Tensor
from . import pickles
from .pickles import LoadError, StorageType

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
MAX_DIMS = 64


class Storage:
    """The elements that a file's tensors share. map_location functions receive it."""

    def __init__(self, cell: Cell, of: dtype, where: device) -> None:
        self.cell, self.dtype, self.device = cell, of, where
        self.size = cell.array.size

    def cpu(self) -> Storage:
        return Storage(self.cell, self.dtype, devices.CPU)

    def cuda(self, index: int | None = None) -> Storage:
        return Storage(self.cell, self.dtype, devices.resolve(device("cuda", index)))

    def mps(self) -> Storage:
        return Storage(self.cell, self.dtype, devices.resolve("mps"))


class _Storages:
    """Answers a pickle's persistent ids; each storage is read once."""

    def __init__(
        self, read: Callable[[str, int], np.ndarray], map_location: Any, big: bool
    ) -> None:
        self._read, self._map, self._swap = read, map_location, big != (sys.byteorder == "big")
        self._kept: dict[str, tuple[StorageType, int, Storage]] = {}

    def __call__(self, pid: Any) -> Storage:
        match pid:
            case ("storage", StorageType() as kind, str() as key, str() as place, int() as count):
                pass
            case ("storage", StorageType() as kind, str() as key, str() as place, int() as count,
                  None):  # fmt: skip
                pass
            case ("storage", *_):
                raise LoadError("a storage inside of a storage (torch < 0.4), or a damaged one")
            case _:
                raise LoadError(f"the file refers to something that is no storage: {pid!r:.80}")
        if key not in self._kept:
            self._kept[key] = kind, count, self._make(kind.dtype, key, place, count)
        first_kind, first_count, found = self._kept[key]
        if first_kind.dtype is not kind.dtype or first_count != count:
            raise LoadError(f"storage {key} is named in two ways")
        return found

    def _make(self, of: dtype, key: str, location: str, count: int) -> Storage:
        if not 0 <= count <= sys.maxsize // of.itemsize:
            raise LoadError(f"storage {key} would have {count} elements")
        content = self._read(key, count * of.itemsize)
        if self._swap:
            width = of.itemsize // 2 if of.is_complex else of.itemsize
            content = content.reshape(-1, width)[:, ::-1].reshape(-1)
        array = mx.view(mx.array(content), of.mx) if count else mx.zeros((0,), of.mx)
        return place(Storage(Cell(array), of, devices.CPU), location, self._map)


def place(storage: Storage, location: str, map_location: Any) -> Storage:
    """`storage` on the device that torch.load's map_location gives its saved location."""
    if callable(map_location):
        found: Any = map_location(storage, location)
        return place(storage, location, None) if found is None else found
    if isinstance(map_location, dict):
        location = str(map_location.get(location, location))
    elif map_location is not None:
        location = str(devices.device(map_location))
    try:
        storage.device = devices.resolve(location)
    except (AssertionError, RuntimeError) as error:
        raise LoadError(
            f"Attempting to deserialize object on a {location} device, which is not available here "
            f"({error}). Use torch.load with map_location=torch.device('cpu') to map your storages "
            "to the CPU."
        ) from None
    return storage


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _rebuild_tensor_v2(
    storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, metadata=None
) -> Tensor:
    if not isinstance(storage, Storage):
        raise LoadError("a tensor of the file has no storage")
    return _tensor(storage, storage.dtype, offset, size, stride, bool(requires_grad))


def _rebuild_tensor_v3(
    storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, of: Any,
    metadata=None,
) -> Tensor:  # fmt: skip
    if not isinstance(storage, Storage) or not isinstance(of, dtype) or of.mx is None:
        raise LoadError(f"a tensor of the file has no storage, or an unknown dtype: {of!r:.40}")
    if storage.dtype is not of:  # named as bytes; the first tensor says what they are
        array = storage.cell.array
        if array.nbytes % of.itemsize:
            raise LoadError(f"{array.nbytes} bytes are not a whole number of {of}")
        if storage.dtype is not dtypes.uint8:
            raise LoadError(f"one storage of the file is {storage.dtype} and {of}")
        storage.cell.array = mx.view(array, of.mx)
        storage.dtype = of
    return _tensor(storage, of, offset, size, stride, bool(requires_grad))


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any) -> Tensor:
    return _rebuild_tensor_v2(storage, offset, size, stride, False, None)


def _rebuild_meta_tensor_no_storage(of: Any, size: Any, stride: Any, requires_grad: Any) -> Tensor:
    import torchmlx

    return torchmlx.empty_strided(size, stride, dtype=of, device="meta").requires_grad_(
        bool(requires_grad)
    )


pickles.REBUILD |= {
    function.__name__: function
    for function in (
        _rebuild_tensor,
        _rebuild_tensor_v2,
        _rebuild_tensor_v3,
        _rebuild_meta_tensor_no_storage,
    )
}


def _tensor(
    storage: Storage, of: dtype, offset: Any, size: Any, stride: Any, requires_grad: bool
) -> Tensor:
    """The tensor of this geometry on `storage`, whose cell all of its tensors share."""
    size, stride = tuple(size), tuple(stride)
    sane = len(size) == len(stride) <= MAX_DIMS and all(map(_whole, (offset, *size, *stride)))
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=False)) if sane else 0
    count = storage.cell.array.size
    if not sane or (0 not in size and last >= count):
        raise LoadError(
            f"a tensor of size {size}, stride {stride} and offset {offset} does not lie inside of "
            f"its storage of {count} elements"
        )
    cell = storage.cell
    if offset == 0 and math.prod(size) == count and layout.is_dense(size, stride):
        # The usual case: the tensor is its whole storage, which takes its shape, once.
        if cell.array.ndim == 1 and cell.strides is None:
            contiguous = layout.is_contiguous(size, stride)
            cell.strides = None if contiguous else stride
            cell.array = _laid_out(cell.array, size, stride)
        if tuple(cell.array.shape) == size and (cell.strides or layout.contiguous(size)) == stride:
            return _finish(tensors.from_cell(cell, of, storage.device), requires_grad)
    whole = tensors.from_cell(cell, of, storage.device)
    return _finish(whole.as_strided(size, stride, offset), requires_grad)


def _laid_out(flat: mx.array, size: tuple[int, ...], stride: tuple[int, ...]) -> mx.array:
    """A dense tensor's values out of its memory."""
    order = sorted(range(len(size)), key=lambda d: (-stride[d], -size[d], d))
    return mx.reshape(flat, [size[d] for d in order]).transpose(
        [order.index(d) for d in range(len(size))]
    )


def _finish(tensor: Tensor, requires_grad: bool) -> Tensor:
    if requires_grad:
        tensor.requires_grad = True
    return tensor


def load(
    f: Any,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args: Any,
) -> Any:
    """What `torch.save` wrote to a path or a seekable file object. torch.load.

    `map_location`: a device, a dictionary of locations, or function(storage, location) -> storage.
    weights_only=True, the default, builds plain data and tensors only, and raises LoadError for
    everything else; False runs whatever the file says. `mmap` is accepted: bytes are read once, and
    never held twice.
    """
    if weights_only is None:
        weights_only = pickle_module is None
    if weights_only and pickle_module is not None:
        raise RuntimeError("Can not safely load weights when explicit pickle_module is specified")
    if mmap and not isinstance(f, (str, os.PathLike)):
        raise ValueError("f must be a file path in order to use the mmap argument")
    pickle_load_args.setdefault("encoding", "utf-8")
    kind = pickles.RestrictedUnpickler if weights_only else pickles.Unpickler
    with _opened(f) as (file, name), modes.no_grad():
        start = file.tell()
        head = file.read(4)
        file.seek(start)
        read = _load_zip if head == b"PK\x03\x04" else _load_stream
        try:
            return read(file, map_location, kind, pickle_load_args)
        except LoadError as error:
            raise LoadError(f"{name}: {error}") from error.__cause__


@contextlib.contextmanager
def _opened(f: Any) -> Iterator[tuple[Any, str]]:
    if isinstance(f, (str, os.PathLike)):
        with open(f, "rb") as file:
            yield file, os.fspath(f)
    elif all(hasattr(f, name) for name in ("read", "seek", "tell", "readline")):
        yield f, str(getattr(f, "name", "the file"))
    else:
        raise AttributeError(
            "You can only torch.load from a file that is seekable. Please pre-load the data into a "
            "buffer like io.BytesIO and try to load from it instead."
        )


def _load_zip(file: IO[bytes], map_location: Any, unpickler: type, options: dict) -> Any:
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, OSError, ValueError, struct.error) as error:
        raise LoadError(f"failed reading zip archive: {error}. Fetch or save it again") from None
    with archive:
        names = archive.namelist()
        pickled = next((n for n in names if n.count("/") == 1 and n.endswith("/data.pkl")), None)
        if pickled is None:
            raise LoadError("a zip archive without data.pkl: not one of torch.save's")
        root = pickled.removesuffix("data.pkl")
        if f"{root}constants.pkl" in names:
            raise LoadError("a TorchScript program: torch.jit.load reads it, torchmlx does not")
        big = f"{root}byteorder" in names and _record(archive, f"{root}byteorder") == b"big"

        def read(key: str, size: int) -> np.ndarray:
            content = np.frombuffer(_record(archive, f"{root}data/{key}"), np.uint8)
            if len(content) != size:
                raise LoadError(f"storage {key} has {len(content)} bytes instead of {size}")
            return content

        storages = _Storages(read, map_location, big)
        return unpickler(io.BytesIO(_record(archive, pickled)), storages, **options).load()


def _record(archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        info = archive.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED:
            raise LoadError(f"record {name} is compressed; torch.save never does that")
        return archive.read(info)
    except KeyError:
        raise LoadError(f"record {name} is missing: the file is cut short or damaged") from None
    except LoadError:
        raise
    except (zipfile.BadZipFile, OSError, EOFError, RuntimeError, ValueError) as error:
        raise LoadError(f"record {name} is damaged: {error}") from None


def _load_stream(file: IO[bytes], map_location: Any, unpickler: type, options: dict) -> Any:
    """magic, protocol, system, the object, the storages' keys: five pickles; then the bytes."""

    def plain() -> Any:
        return pickles.RestrictedUnpickler(file, _no_storage).load()

    start = file.tell()
    file.seek(0, os.SEEK_END)
    if file.tell() == start:
        raise LoadError("the file is empty (EOFError: Ran out of input)")
    file.seek(start)
    if file.read(1) != b"\x80":
        raise LoadError("not one of torch.save's files (safetensors: torchmlx.serialization)")
    file.seek(start)
    if plain() != MAGIC or plain() != PROTOCOL:
        raise LoadError("a pickle that torch.save did not write (wrong magic number)")
    system = plain()
    body = file.tell()
    _skip_pickle(file)
    keys = plain()
    if not isinstance(keys, list) or not isinstance(system, dict):
        raise LoadError("the list of storages is damaged")
    places = _places(file, keys, _widths(file, body))
    end = file.tell()

    def read(key: str, size: int) -> np.ndarray:
        place, length = places.get(key, (0, -1))
        if size != length:
            raise LoadError(f"storage {key} has {length} bytes instead of {size}")
        after = file.tell()
        file.seek(place)
        content = np.frombuffer(file.read(size), np.uint8)
        file.seek(after)
        return content

    file.seek(body)
    storages = _Storages(read, map_location, not system.get("little_endian", True))
    found = unpickler(file, storages, **options).load()
    file.seek(end)
    return found


def _no_storage(pid: Any) -> Any:
    raise LoadError(f"a storage where there can be none: {pid!r:.80}")


def _skip_pickle(file: IO[bytes]) -> None:
    try:
        for _ in pickletools.genops(file):
            pass
    except pickles.DAMAGE as error:
        raise LoadError(f"the pickle is damaged: {error}") from None


def _widths(file: IO[bytes], body: int) -> dict[str, int]:
    """Bytes an element of every storage that the pickle at `body` names, without running it."""
    after = file.tell()
    file.seek(body)
    widths: dict[str, int] = {}

    class Scan(pickles.RestrictedUnpickler):
        """Everything that is called gives None; only persistent ids matter."""

        def find_class(self, module: str, name: str) -> Any:
            found = self._known.get(f"{module}.{name}")
            return found if isinstance(found, StorageType) else None

        def _nothing(self) -> None:
            self.stack.pop()
            self.stack[-1] = OrderedDict()

        def _stateless(self) -> None:
            self.stack.pop()

        dispatch = pickles.RestrictedUnpickler.dispatch | {
            pickle.REDUCE[0]: _nothing,
            pickle.NEWOBJ[0]: _nothing,
            pickle.BUILD[0]: _stateless,
        }

    def note(pid: Any) -> None:
        match pid:
            case ("storage", StorageType() as kind, str() as key, *_):
                widths[key] = kind.dtype.itemsize

    Scan(file, note).load()
    file.seek(after)
    return widths


def _places(file: IO[bytes], keys: list, widths: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Where each storage's bytes begin, and how many there are."""
    places = {}
    begin = file.tell()
    end = file.seek(0, os.SEEK_END)
    file.seek(begin)
    for key in keys:
        head = file.read(8)
        count = struct.unpack("<q", head)[0] if len(head) == 8 else -1
        length = count * widths.get(key, 1)
        if count < 0 or length > end - file.tell():
            raise LoadError(f"storage {key!r:.40} ends after the file: it is cut short or damaged")
        places[key] = (file.tell(), length)
        file.seek(length, os.SEEK_CUR)
    return places
