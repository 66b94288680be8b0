"""torch.nn.attention: which attention torch would choose. Here there is one, and it is exact."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextlib import contextmanager

from ...aten.attention import SWITCHES

__all__ = ["SDPBackend", "sdpa_kernel"]


class SDPBackend(enum.IntEnum):
    """torch's ways to compute scaled_dot_product_attention."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


_SWITCHES = {
    SDPBackend.MATH: "math",
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.EFFICIENT_ATTENTION: "mem_efficient",
    SDPBackend.CUDNN_ATTENTION: "cudnn",
}


@contextmanager
def sdpa_kernel(backends: Sequence[SDPBackend] | SDPBackend, set_priority: bool = False):
    """Inside, torch.backends.cuda's switches stand as asked; the attention is the same.

    torch.nn.attention.sdpa_kernel.
    """
    if not isinstance(backends, (list, SDPBackend)):
        raise AssertionError("Backend must be an instance of SDPBackend or a list of SDPBackend")
    chosen = set([backends] if isinstance(backends, SDPBackend) else backends)
    before = dict(SWITCHES)
    SWITCHES.update({name: b in chosen for b, name in _SWITCHES.items()})
    try:
        yield {}
    finally:
        SWITCHES.update(before)
