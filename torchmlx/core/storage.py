"""UntypedStorage: bytes that tensors lie on, or that a file holds."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .device import CPU
from .tensor import Tensor


class UntypedStorage:
    """Bytes without a dtype. torch.UntypedStorage.

    Of a tensor (Tensor.untyped_storage) it tells identity and size only; of a file or of a number
    of bytes it can be read: by index, by slice, as torch.asarray(storage, dtype=torch.uint8).
    """

    def __init__(self, size: int = 0, *, _of: Tensor | np.ndarray | None = None) -> None:
        self._bytes = np.zeros(size, np.uint8) if _of is None else None
        self._cell: Any = None
        self.device, self.filename = CPU, None
        if isinstance(_of, Tensor):
            self._cell, self.device = _of._cell, _of.device
        elif _of is not None:
            self._bytes = _of

    @classmethod
    def from_file(cls, filename: str, shared: bool = False, nbytes: int = 0) -> UntypedStorage:
        """The first `nbytes` bytes of a file, mapped: read when they are used.

        Changes stay in memory, or with `shared` go to the file, which is made, or made longer,
        where needed. Raises RuntimeError where a file that is not shared is missing or too short.
        """
        there = os.path.getsize(filename) if os.path.exists(filename) else None
        if shared and (there is None or there < nbytes):
            with open(filename, "ab") as file:
                file.truncate(nbytes)
        elif there is None:
            raise RuntimeError(
                f"unable to open file <{os.fspath(filename)}> in read-only mode: "
                "No such file or directory (2)"
            )
        elif there < nbytes:
            raise RuntimeError(f"file <{os.fspath(filename)}> has {there} bytes, not {nbytes}")
        data = np.zeros(0, np.uint8)
        if nbytes:  # nothing cannot be mapped
            data = np.memmap(filename, np.uint8, "r+" if shared else "c", shape=(nbytes,))
        storage = cls(_of=data)
        storage.filename = os.fspath(filename) if shared else None
        return storage

    def numpy(self) -> np.ndarray:
        """The bytes, shared, as a uint8 array. Raises NotImplementedError for a tensor's."""
        if self._bytes is None:
            raise NotImplementedError(
                "a tensor's storage tells its size and address here, not its bytes; "
                "read them by tensor.view(torch.uint8)"
            )
        return self._bytes

    def data_ptr(self) -> int:
        return self._cell.address() if self._bytes is None else self._bytes.ctypes.data

    def nbytes(self) -> int:
        return self._cell.array.nbytes if self._bytes is None else self._bytes.nbytes

    size = nbytes

    def __len__(self) -> int:
        return self.nbytes()

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            if index.step not in (None, 1):
                raise RuntimeError(
                    f"Trying to slice with a step of {index.step}, but only a step of 1 is "
                    "supported"
                )
            return UntypedStorage(_of=self.numpy()[index])
        return int(self.numpy()[index])

    def __iter__(self):
        return iter(self.tolist())

    def tolist(self) -> list[int]:
        """The bytes as integers."""
        return self.numpy().tolist()

    def untyped(self) -> UntypedStorage:
        """Itself."""
        return self
