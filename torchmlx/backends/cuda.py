"""torch.backends.cuda."""

from typing import Any

from ..aten.attention import SWITCHES as _attention
from ..cuda import is_available as _is_available


class _MatmulSwitches:
    """torch.backends.cuda.matmul."""

    allow_tf32 = False
    allow_fp16_reduced_precision_reduction = True
    allow_bf16_reduced_precision_reduction = True


matmul = _MatmulSwitches()


def is_built() -> bool:
    """Whether MLX computes on CUDA here."""
    return _is_available()


def flash_sdp_enabled() -> bool:
    """What was set. There is one attention kernel here, and it is exact."""
    return _attention["flash"]


def mem_efficient_sdp_enabled() -> bool:
    """What was set."""
    return _attention["mem_efficient"]


def math_sdp_enabled() -> bool:
    """What was set."""
    return _attention["math"]


def enable_flash_sdp(enabled: bool) -> None:
    """Keep the setting."""
    _attention["flash"] = bool(enabled)


def enable_mem_efficient_sdp(enabled: bool) -> None:
    """Keep the setting."""
    _attention["mem_efficient"] = bool(enabled)


def enable_math_sdp(enabled: bool) -> None:
    """Keep the setting."""
    _attention["math"] = bool(enabled)


def enable_cudnn_sdp(enabled: Any) -> None:
    """Keep the setting."""
    _attention["cudnn"] = bool(enabled)
