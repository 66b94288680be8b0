"""torch.distributed, which is not available: one process, and questions that say so."""

from __future__ import annotations

from typing import Any, NoReturn

_NONE = (
    "Default process group has not been initialized, please make sure to call init_process_group."
)


def is_available() -> bool:
    """False: torchmlx computes in one process."""
    return False


def is_initialized() -> bool:
    """False: there are no process groups."""
    return False


is_torchelastic_launched = is_initialized


def get_rank(group: Any = None) -> NoReturn:
    """torch's error before init_process_group. Scripts ask is_initialized first."""
    raise ValueError(_NONE)


get_world_size = get_rank


def init_process_group(*args: Any, **kwargs: Any) -> NoReturn:
    """There is nothing to initialise."""
    raise NotImplementedError("torch.distributed.init_process_group: torchmlx runs in one process")
