"""torch.cuda.amp: torch.amp for CUDA, under its older names."""

from __future__ import annotations

import functools

from ..amp import GradScaler
from ..amp import autocast as _autocast
from ..amp import custom_bwd as _custom_bwd
from ..amp import custom_fwd as _custom_fwd

autocast = functools.partial(_autocast, "cuda")
custom_fwd = functools.partial(_custom_fwd, device_type="cuda")
custom_bwd = functools.partial(_custom_bwd, device_type="cuda")

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]
