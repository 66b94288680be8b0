"""torch.utils.hooks: what register_hook returns."""

from __future__ import annotations

from ..core.tape import Removable as RemovableHandle

__all__ = ["RemovableHandle"]
