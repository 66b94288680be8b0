"""A video's pixels, in memory or in a temporary file: written by region, read by frames."""

from __future__ import annotations

import math
import mmap
import tempfile
from typing import Any

import mlx.core as mx
import numpy as np

import torchmlx as torch
from torchmlx import Tensor

from ..errors import InputError

# A video of 4 seconds at 1280 x 704 in uint8 takes a quarter of this. Not measured: the size above
# which a laptop with 16 GiB would rather have its memory for the model.
FILE_ABOVE = 1 << 30
DTYPES = {
    torch.uint8: np.uint8,
    torch.float16: np.float16,
    torch.bfloat16: np.uint16,  # its bits: NumPy has no bfloat16
    torch.float32: np.float32,
}


class FrameBuffer:
    """Pixels [B, C, T, H, W] of a NumPy array [B, T, H, W, C]; in uint8, -1..1 are 0..255."""

    def __init__(self, array: np.ndarray, dtype: Any = torch.uint8) -> None:
        batch, frames, height, width, channels = array.shape
        self.array, self.dtype = array, dtype
        self.shape, self.ndim = (batch, channels, frames, height, width), 5

    @classmethod
    def allocate(cls, shape: tuple[int, ...], dtype: Any, memory: int = FILE_ABOVE) -> FrameBuffer:
        """One of that shape [B, C, T, H, W]. Above `memory` bytes it lies in a temporary file.

        The file has no name, and goes with the buffer. Raises InputError where the disk is full.
        """
        batch, channels, frames, height, width = shape
        inside = (batch, frames, height, width, channels)
        kind = np.dtype(DTYPES[dtype])
        size = math.prod(shape) * kind.itemsize
        if size <= memory:
            return cls(np.empty(inside, kind), dtype)
        return cls(np.frombuffer(_mapped_file(size), kind).reshape(inside), dtype)

    def is_floating_point(self) -> bool:
        """Whether pixels are numbers in -1..1; uint8 stands for them."""
        return self.dtype.is_floating_point

    def write(self, part: Tensor, frame: int, row: int, column: int) -> None:
        """Take pixels in -1..1, [B, T, H, W, C], the first of which belongs there."""
        pixels = as_bytes(part) if self.dtype is torch.uint8 else part.to(self.dtype)
        values = pixels.mx.view(mx.uint16) if self.dtype is torch.bfloat16 else pixels.mx
        _, frames, rows, columns, _ = part.shape
        where = (slice(frame, frame + frames), slice(row, row + rows))
        self.array[:, *where, column : column + columns] = np.asarray(values)

    def read(
        self, frames: slice, rows: slice = slice(None), columns: slice = slice(None)
    ) -> Tensor:
        """A region [B, T, H, W, C] as it is stored."""
        values = mx.array(self.array[:, frames, rows, columns])
        if self.dtype is torch.bfloat16:
            values = values.view(mx.bfloat16)
        return torch.from_mx(values)


def as_bytes(pixels: Tensor) -> Tensor:
    """-1..1 as 0..255 in uint8, rounded as diffusers' image processor does.

    Raises InputError for NaN, which no byte stands for.
    """
    if bool(pixels.isnan().any()):
        raise InputError(
            f"decoded pixels are NaN: latents or weights are damaged, or {pixels.dtype} does not "
            "hold this model's numbers (try float32)"
        )
    return ((pixels.float() + 1.0) * 127.5).round().clamp(0, 255).to(torch.uint8)


def of_bytes(pixels: Tensor) -> Tensor:
    """0..255 as -1..1 in float32."""
    return pixels.float() / 127.5 - 1.0


def _mapped_file(size: int) -> mmap.mmap:
    """A mapping of an unnamed file, every byte of which is there: writing to it cannot fail."""
    try:
        with tempfile.TemporaryFile() as file:
            zeros = bytes(1 << 22)
            for begin in range(0, size, len(zeros)):
                file.write(zeros[: size - begin])
            file.flush()
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise InputError(
            f"no room for {size / 2**30:.2f} GiB of frames in {tempfile.gettempdir()} "
            f"({error.strerror}); free some, or set TMPDIR to a larger disk"
        ) from None
