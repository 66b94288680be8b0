"""torch.utils.dlpack."""

from __future__ import annotations

from ..aten.dlpack import DLDeviceType, from_dlpack, to_dlpack

__all__ = ["DLDeviceType", "from_dlpack", "to_dlpack"]
