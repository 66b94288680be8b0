"""torch.fft: filled from the op table (torchmlx/aten/fft.py)."""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:  # what the op table adds

    def __getattr__(name: str) -> _Any: ...
