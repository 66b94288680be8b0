"""torch.types: names for annotations."""

import builtins
import os
from collections.abc import Sequence
from typing import IO

from .core.device import device
from .core.dtype import dtype
from .core.layout import Size
from .core.tensor import Tensor

__all__ = ["Device", "FileLike", "Number", "Size", "Tensor"]

Number = builtins.int | builtins.float | builtins.bool
Device = device | builtins.str | builtins.int | None
FileLike = builtins.str | os.PathLike[builtins.str] | IO[builtins.bytes]
_device, _dtype = device, dtype
_bool, _bytes, _complex, _float, _int, _str = bool, bytes, complex, float, int, str
_TensorOrTensors = Tensor | Sequence[Tensor]
_size = Size | list[builtins.int] | tuple[builtins.int, ...]
