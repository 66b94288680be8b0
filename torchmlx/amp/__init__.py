"""torch.amp: mixed precision."""

from __future__ import annotations

from .autocast_mode import autocast, custom_bwd, custom_fwd
from .grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]


def is_autocast_available(device_type: str) -> bool:
    """Whether autocast knows the device type."""
    return device_type in ("cpu", "cuda", "mps")
