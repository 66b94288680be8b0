"""torch.utils.tensorboard without tensorboard: scalars and texts in the files that it reads.

A file is a row of records, each an Event message (length, checksum, protobuf, checksum: the
TFRecord format of TensorFlow). tensorboard itself is needed only to look at them.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path
from typing import Any, NoReturn

_POLYNOMIAL = 0x82F63B78  # CRC-32C, bits reversed


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def _checksum(data: bytes) -> bytes:
    """CRC-32C, turned and shifted as TFRecord wants it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(n: int) -> bytes:
    n &= (1 << 64) - 1
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def _message(number: int, data: bytes) -> bytes:
    """A protobuf field of bytes."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


class SummaryWriter:
    """Writes scalars and texts for tensorboard. torch.utils.tensorboard.SummaryWriter.

    log_dir: folder, by default runs/TIME_HOST. Other kinds of summary raise NotImplementedError.
    """

    def __init__(
        self, log_dir: str | os.PathLike | None = None, comment: str = "",
        purge_step: int | None = None, max_queue: int = 10, flush_secs: int = 120,
        filename_suffix: str = "",
    ) -> None:  # fmt: skip
        if log_dir is None:
            moment = time.strftime("%b%d_%H-%M-%S")
            log_dir = f"runs/{moment}_{socket.gethostname()}{comment}"
        self.log_dir = str(log_dir)
        folder = Path(log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._file = open(folder / (name + filename_suffix), "ab")  # noqa: SIM115  (close())
        self._event(_message(3, b"brain.Event:2"), None, None)

    def _event(self, content: bytes, step: Any, walltime: float | None) -> None:
        event = b"\x09" + struct.pack("<d", time.time() if walltime is None else walltime)
        if step is not None:
            event += b"\x10" + _varint(int(step))
        event += content
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))

    def get_logdir(self) -> str:
        """The folder of the files."""
        return self.log_dir

    def add_scalar(
        self, tag: str, scalar_value: Any, global_step: int | None = None,
        walltime: float | None = None, new_style: bool = False, double_precision: bool = False,
    ) -> None:  # fmt: skip
        """A number, or a tensor of one element, under `tag` at a step."""
        value = b"\x15" + struct.pack("<f", float(scalar_value))
        summary = _message(1, _message(1, tag.encode()) + value)
        self._event(_message(5, summary), global_step, walltime)

    def add_scalars(
        self, main_tag: str, tag_scalar_dict: dict[str, Any], global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:  # fmt: skip
        """Several numbers, each under main_tag/its name."""
        for name, value in tag_scalar_dict.items():
            self.add_scalar(f"{main_tag}/{name}", value, global_step, walltime)

    def add_text(
        self, tag: str, text_string: str, global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:  # fmt: skip
        """A text under `tag` at a step."""
        plugin = _message(1, _message(1, b"text") + _message(2, b""))
        # TensorProto: DT_STRING, a shape of one dimension of 1, the string.
        shape = _message(2, _message(2, b"\x08\x01"))
        tensor = b"\x08\x07" + shape + _message(8, text_string.encode())
        name = _message(1, f"{tag}/text_summary".encode())
        summary = _message(1, name + _message(9, plugin) + _message(8, tensor))
        self._event(_message(5, summary), global_step, walltime)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("add_"):
            raise AttributeError(f"'SummaryWriter' object has no attribute '{name}'")

        def absent(*args: Any, **kwargs: Any) -> NoReturn:
            raise NotImplementedError(f"SummaryWriter.{name}: only scalars and texts are written")

        return absent

    def flush(self) -> None:
        """Write what is buffered to the disk."""
        self._file.flush()

    def close(self) -> None:
        """Write the rest and close the file."""
        self._file.close()

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
