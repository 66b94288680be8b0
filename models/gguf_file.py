"""A GGUF file's metadata and tensor table, read and checked.

The table is read here and not by `gguf.GGUFReader`, which follows a damaged length until memory is
full (a 64-bit count of zero-length items). The numbers of types and block sizes are the package's.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from ..errors import InputError
from ..serialization.safetensors import release_pages

MAX_ITEMS = 1 << 28


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One entry of the tensor table. `shape` is row-major, as in Hugging Face; offsets in bytes."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    begin: int
    nbytes: int


class GGUFFile:
    """An open GGUF file: `metadata` (plain Python values) and `tensors`, both checked."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < 24:
                    raise self._error(f"only {size} bytes, not a GGUF file")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise InputError(f"{self.path}: cannot open it: {error.strerror}") from None
        try:
            self._read_table()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._map.close()

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """Metadata `key`, checked to be of type `kind`; `...` as the default makes it required."""
        value = self.metadata.get(key)
        if value is None:
            if default is ...:
                raise self._error(f"metadata {key!r} is missing")
            return default
        # bool counts as int in Python, but not here.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self._error(f"metadata {key!r} has the wrong type")
        return value

    def rows(self, tensor: GGUFTensor) -> np.ndarray:
        """The stored rows, as bytes [rows, bytes a row]; a view of the file."""
        rows = math.prod(tensor.shape[:-1])
        shape = (rows, tensor.nbytes // rows)
        return np.ndarray(shape, np.uint8, buffer=self._map, offset=tensor.begin)

    def release(self, tensor: GGUFTensor) -> None:
        """Let the tensor's file pages go; no view of them may be in use."""
        release_pages(self._map, tensor.begin, tensor.begin + tensor.nbytes)

    def _error(self, what: str) -> InputError:
        return InputError(f"{self.path}: {what}; download it again")

    def _read_table(self) -> None:
        cursor = _Cursor(self._map, self._error)
        if cursor.take(4) != b"GGUF":
            raise self._error("not a GGUF file")
        version = cursor.number("<I")
        if version not in (2, 3):
            raise InputError(f"{self.path}: GGUF version {version} is not supported (2 and 3 are)")
        count, entries = cursor.number("<Q"), cursor.number("<Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = cursor.text()
            if key in self.metadata:
                raise self._error(f"metadata {ascii(key)} appears twice")
            self.metadata[key] = cursor.value(cursor.number("<I"))
        table = [cursor.tensor() for _ in range(count)]
        alignment = self.get("general.alignment", int, 32)
        if alignment <= 0 or alignment & (alignment - 1):
            raise self._error(f"alignment {alignment} is not a power of two")
        start = -(-cursor.position // alignment) * alignment
        self.tensors: dict[str, GGUFTensor] = {}
        for name, kind, shape, offset in table:
            if name in self.tensors:
                raise self._error(f"tensor {ascii(name)} appears twice")
            self.tensors[name] = self._check_tensor(name, kind, shape, start + offset)

    def _check_tensor(self, name: str, kind: int, shape: tuple[int, ...], begin: int) -> GGUFTensor:
        try:
            quantization = GGMLQuantizationType(kind)
            block, block_bytes = GGML_QUANT_SIZES[quantization]
        except (ValueError, KeyError):
            raise self._error(f"tensor {ascii(name)} has the unknown type {kind}") from None
        if 0 in shape or shape[-1] % block:
            raise self._error(f"tensor {ascii(name)}: shape {list(shape)} is not whole blocks")
        nbytes = math.prod(shape) // block * block_bytes
        if begin + nbytes > len(self._map):
            raise self._error(
                f"truncated: tensor {ascii(name)} ends at byte {begin + nbytes}, "
                f"the file at {len(self._map)}"
            )
        return GGUFTensor(name, quantization, shape, begin, nbytes)


class _Cursor:
    """Reads the table front to back; running off the end of the file is an InputError."""

    _FORMATS = {
        GGUFValueType.UINT8: "<B",
        GGUFValueType.INT8: "<b",
        GGUFValueType.UINT16: "<H",
        GGUFValueType.INT16: "<h",
        GGUFValueType.UINT32: "<I",
        GGUFValueType.INT32: "<i",
        GGUFValueType.FLOAT32: "<f",
        GGUFValueType.BOOL: "<?",
        GGUFValueType.UINT64: "<Q",
        GGUFValueType.INT64: "<q",
        GGUFValueType.FLOAT64: "<d",
    }

    def __init__(self, data: mmap.mmap, error: Callable[[str], InputError]) -> None:
        self._data = data
        self._error = error
        self.position = 0

    def take(self, length: int) -> bytes:
        end = self.position + length
        if end > len(self._data):
            raise self._error("truncated inside its table")
        piece = self._data[self.position : end]
        self.position = end
        return piece

    def number(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def text(self) -> str:
        try:
            return self.take(self.number("<Q")).decode("utf-8")
        except UnicodeDecodeError:
            raise self._error("a text of its table is not UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind == GGUFValueType.STRING:
            return self.text()
        if kind == GGUFValueType.ARRAY:
            inner, count = self.number("<I"), self.number("<Q")
            # Each item takes a byte or more, so a lying count cannot cost more than the file.
            if count > MAX_ITEMS or count > len(self._data) - self.position:
                raise self._error(f"truncated: a list of {count} items does not fit")
            if inner == GGUFValueType.ARRAY:
                raise self._error("lists of lists are not supported")
            if inner == GGUFValueType.STRING:
                return [self.text() for _ in range(count)]
            code = self._format(inner)
            raw = self.take(count * struct.calcsize(code))
            return list(struct.unpack(f"<{count}{code[1]}", raw))
        return self.number(self._format(kind))

    def _format(self, kind: int) -> str:
        if kind not in self._FORMATS:
            raise self._error(f"metadata of the unknown type {kind}")
        return self._FORMATS[GGUFValueType(kind)]

    def tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        """Name, type, shape (row-major) and offset in the data."""
        name, axes = self.text(), self.number("<I")
        if not 1 <= axes <= 4:
            raise self._error(f"tensor {ascii(name)} has {axes} axes")
        shape = tuple(self.number("<Q") for _ in range(axes))
        return name, self.number("<I"), shape[::-1], self.number("<Q")
