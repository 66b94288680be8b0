"""torch.multiprocessing: Python's, and spawn. Tensors go between processes as copies."""

from __future__ import annotations

import multiprocessing
from multiprocessing import *  # noqa: F403
from typing import Any

from .threads import get_num_threads as get_num_threads


class ProcessRaisedException(Exception):
    """A process that spawn() started has failed."""


def _named(fn: Any, rank: int, args: tuple) -> None:
    fn(rank, *args)


def spawn(
    fn: Any, args: tuple = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
    start_method: str = "spawn",
) -> Any:  # fmt: skip
    """Run fn(rank, *args) in `nprocs` new processes, and wait; without `join` they are returned.

    ProcessRaisedException if one of them fails; it has printed why.
    """
    context: Any = multiprocessing.get_context(start_method)
    running = [
        context.Process(target=_named, args=(fn, rank, args), daemon=daemon)
        for rank in range(nprocs)
    ]
    for process in running:
        process.start()
    if not join:
        return running
    for rank, process in enumerate(running):
        process.join()
        if process.exitcode:
            for other in running:
                other.terminate()
            raise ProcessRaisedException(f"process {rank} ended with exit code {process.exitcode}")
    return None


def get_all_sharing_strategies() -> set[str]:
    """Copies: MLX's arrays do not lie in shared memory."""
    return {"copy"}


def get_sharing_strategy() -> str:
    """Always `copy`."""
    return "copy"


def set_sharing_strategy(new_strategy: str) -> None:
    """Accepted: whatever is asked for, tensors are copied."""
