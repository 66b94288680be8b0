"""torch.linalg: filled from the op table (torchmlx/aten/linalg.py, norms.py)."""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:  # what the op table adds

    def __getattr__(name: str) -> _Any: ...


__all__ = ["LinAlgError"]


class LinAlgError(RuntimeError):
    """A matrix is singular, or a factorisation does not exist. torch.linalg.LinAlgError."""
