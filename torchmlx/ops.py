"""Operations that torch lacks and models need, on Tensors: from the op table (torchmlx/aten)."""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:  # what the op table adds

    def __getattr__(name: str) -> _Any: ...
