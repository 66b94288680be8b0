"""torch.multiprocessing: Python's; tensors go between processes as copies.

There is no torch.distributed of several processes: each one computes by itself.
"""

from __future__ import annotations

import time
import traceback
from multiprocessing import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import Any


class ProcessRaisedException(Exception):
    """A process ended with an exception, whose traceback this is."""

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg)
        self.error_index, self.error_pid = error_index, error_pid


class ProcessExitedException(ProcessRaisedException):
    """A process ended with an exit code or by a signal."""

    def __init__(self, msg: str, error_index: int, error_pid: int, exit_code: int) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code


def _call(fn: Any, rank: int, args: tuple, told: Any) -> None:
    try:
        fn(rank, *args)
    except Exception:
        told.put(traceback.format_exc())
        raise SystemExit(1) from None


class ProcessContext:
    """Processes that spawn() started. torch.multiprocessing.ProcessContext."""

    def __init__(self, processes: list, told: list) -> None:
        self.processes, self._told = processes, told

    def pids(self) -> list[int]:
        """The processes' ids."""
        return [p.pid for p in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait until all have ended (True); one that fails ends the others and raises."""
        end = None if timeout is None else time.monotonic() + timeout
        while any(p.exitcode is None for p in self.processes):
            left = None if end is None else max(0.0, end - time.monotonic())
            alive = [p.sentinel for p in self.processes if p.exitcode is None]
            if not wait(alive, left):
                return False
            self._raise_failure()
        self._raise_failure()
        return True

    def _raise_failure(self) -> None:
        for rank, process in enumerate(self.processes):
            if not process.exitcode:
                continue
            for other in self.processes:
                other.terminate()
                other.join()
            if not self._told[rank].empty():
                said = f"\n\n-- Process {rank} terminated with the following error:\n"
                raise ProcessRaisedException(said + self._told[rank].get(), rank, process.pid)
            raise ProcessExitedException(
                f"process {rank} terminated with exit code {process.exitcode}", rank, process.pid,
                process.exitcode,
            )  # fmt: skip


def start_processes(
    fn: Any, args: tuple = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:  # fmt: skip
    """fn(rank, *args) in `nprocs` new processes. torch.multiprocessing.start_processes."""
    context: Any = get_context(start_method)
    processes, told = [], []
    for rank in range(nprocs):
        told.append(context.SimpleQueue())
        process = context.Process(target=_call, args=(fn, rank, args, told[-1]), daemon=daemon)
        process.start()
        processes.append(process)
    started = ProcessContext(processes, told)
    if not join:
        return started
    started.join()
    return None


spawn = start_processes


def get_all_sharing_strategies() -> set[str]:
    """Copies: MLX's arrays do not lie in shared memory."""
    return {"copy"}


def get_sharing_strategy() -> str:
    """Always `copy`."""
    return "copy"


def set_sharing_strategy(new_strategy: str) -> None:
    """Accepted: whatever is asked for, tensors are copied."""
