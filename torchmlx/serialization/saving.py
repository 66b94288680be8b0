"""torch.save: checkpoints in torch's own formats, written without torch.

The formats are those of loading.py. Objects are named as torch names them, so torch reads them.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import tempfile
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import IO, Any

import mlx.core as mx
import numpy as np

from ..core import tensor as tensors
from ..core.cell import Cell
from ..core.dtype import dtype
from ..core.tensor import Tensor
from ..nn.parameter import Parameter
from . import pickles
from .loading import MAGIC, PROTOCOL
from .pickles import Name

ALIGNMENT = 64  # of a zip archive's records, so that torch can map them


class _Saved:
    """The storages that a pickle refers to, in order of their keys."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []
        self.dtypes: list[dtype] = []
        self._keys: dict[int, int] = {}

    def key(self, cell: Cell, of: dtype) -> str:
        if id(cell) not in self._keys:
            self._keys[id(cell)] = len(self.cells)
            self.cells.append(cell)
            self.dtypes.append(of)
        number = self._keys[id(cell)]
        if self.dtypes[number] is not of:
            raise RuntimeError(
                "Cannot save multiple tensors or storages that view the same data as different "
                "types"
            )
        return str(number)

    def bytes_of(self, number: int) -> np.ndarray:
        """A storage's bytes, in the order in which torch keeps them."""
        cell = self.cells[number]
        array, strides = cell.array, cell.strides
        if array.size == 0:
            return np.empty(0, np.uint8)
        if strides is not None:
            array = array.transpose(sorted(range(array.ndim), key=lambda d: -strides[d]))
        return np.asarray(mx.view(mx.contiguous(mx.reshape(array, (-1,))), mx.uint8))


class _Reference:
    """What stands for a storage in the pickled object: its persistent id."""

    def __init__(self, pid: tuple) -> None:
        self.pid = pid


_FUNCTIONS = {name: Name("torch._utils", name) for name in (
    "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter",
    "_rebuild_parameter_with_state", "_rebuild_meta_tensor_no_storage",
)}  # fmt: skip
# What a parameter has beside its tensor's own attributes.
_INTERNAL = tensors._OWN


def _pickle(obj: Any, saved: _Saved, protocol: int, legacy: bool) -> bytes:
    def reduce(tensor: Tensor) -> tuple:
        if isinstance(tensor, Parameter):
            state = {k: v for k, v in vars(tensor).items() if k not in _INTERNAL and k[:1] != "_"}
            arguments = (tensor.detach(), tensor.requires_grad, OrderedDict())
            name = "_rebuild_parameter" + ("_with_state" if state else "")
            return _FUNCTIONS[name], (*arguments, state) if state else arguments
        geometry = (tuple(tensor.shape), tuple(tensor.stride()))
        if tensor.device.type == "meta":
            arguments = (tensor.dtype, *geometry, tensor.requires_grad)
            return _FUNCTIONS["_rebuild_meta_tensor_no_storage"], arguments
        if tensor.requires_grad and not tensor.is_leaf:
            tensor = tensor.detach()
        of = tensor.dtype
        kind, key = pickles.STORAGE_OF.get(of, pickles.UNTYPED), saved.key(tensor._cell, of)
        count = tensor._cell.array.nbytes // kind.dtype.itemsize
        pid = ("storage", kind, key, str(tensor.device), count) + ((None,) if legacy else ())
        common = (tensor.storage_offset(), *geometry, tensor.requires_grad, OrderedDict())
        if kind is pickles.UNTYPED:
            return _FUNCTIONS["_rebuild_tensor_v3"], (_Reference(pid), *common, of)
        return _FUNCTIONS["_rebuild_tensor_v2"], (_Reference(pid), *common)

    def persistent_id(item: Any) -> Any:
        return item.pid if isinstance(item, _Reference) else None

    buffer = io.BytesIO()
    pickles.Pickler(buffer, protocol, reduce, persistent_id).dump(obj)
    return buffer.getvalue()


def save(
    obj: Any,
    f: Any,
    pickle_module: Any = pickle,
    pickle_protocol: int = 2,
    _use_new_zipfile_serialization: bool = True,
) -> None:
    """Write any picklable object to a path or a file object, for either torch to load. torch.save.

    Tensors that share a storage share it in the file. A file at the path is replaced only when all
    is written.
    """
    write = _save_zip if _use_new_zipfile_serialization else _save_stream
    if not isinstance(f, (str, os.PathLike)):
        write(obj, f, "archive", pickle_protocol)
        return
    path = Path(f)
    if not path.parent.is_dir():
        raise RuntimeError(f"Parent directory {path.parent} does not exist.")
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "wb") as file:
            write(obj, file, path.stem or "archive", pickle_protocol)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _save_zip(obj: Any, file: IO[bytes], root: str, protocol: int) -> None:
    saved = _Saved()
    pickled = _pickle(obj, saved, protocol, legacy=False)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:

        def record(name: str, content: Any) -> None:
            info = zipfile.ZipInfo(f"{root}/{name}")  # its date is 1980: same bytes every time
            head = 30 + len(info.filename.encode()) + 4
            padding = -(archive.fp.tell() + head) % ALIGNMENT  # pyright: ignore[reportOptionalMemberAccess]
            info.extra = struct.pack("<HH", 0x4246, padding) + b"Z" * padding
            large = len(content) >= zipfile.ZIP64_LIMIT
            with archive.open(info, "w", force_zip64=large) as out:
                out.write(memoryview(content))

        record("data.pkl", pickled)
        record("byteorder", sys.byteorder.encode())
        for number in range(len(saved.cells)):
            record(f"data/{number}", saved.bytes_of(number))
        record("version", b"3\n")


def _save_stream(obj: Any, file: IO[bytes], root: str, protocol: int) -> None:
    saved = _Saved()
    pickled = _pickle(obj, saved, protocol, legacy=True)
    sizes = {"short": 2, "int": 4, "long": 4}
    system = {
        "protocol_version": PROTOCOL,
        "little_endian": sys.byteorder == "little",
        "type_sizes": sizes,
    }
    for head in (MAGIC, PROTOCOL, system):
        pickle.dump(head, file, protocol)
    file.write(pickled)
    pickle.dump([str(n) for n in range(len(saved.cells))], file, protocol)
    for number, of in enumerate(saved.dtypes):
        content: Any = saved.bytes_of(number)
        width = pickles.STORAGE_OF.get(of, pickles.UNTYPED).dtype.itemsize
        file.write(struct.pack("<q", content.size // width))
        file.write(memoryview(content))
