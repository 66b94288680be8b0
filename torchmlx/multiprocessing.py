"""torch.multiprocessing: Python's; tensors go between processes as copies.

A new process begins without the runner, so spawn(), which would run the script's functions there,
is absent.
"""

from __future__ import annotations

from multiprocessing import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
from typing import Any, NoReturn


def spawn(
    fn: Any, args: tuple = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
    start_method: str = "spawn",
) -> NoReturn:  # fmt: skip
    """NotImplementedError: torchmlx trains in one process. torch.multiprocessing.spawn."""
    raise NotImplementedError("torch.multiprocessing.spawn: torchmlx computes in one process")


def get_all_sharing_strategies() -> set[str]:
    """Copies: MLX's arrays do not lie in shared memory."""
    return {"copy"}


def get_sharing_strategy() -> str:
    """Always `copy`."""
    return "copy"


def set_sharing_strategy(new_strategy: str) -> None:
    """Accepted: whatever is asked for, tensors are copied."""
