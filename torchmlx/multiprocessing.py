"""torch.multiprocessing: Python's; tensors go between processes as copies.

There is no torch.distributed of several processes: each one computes by itself.
"""

from __future__ import annotations

import contextlib
import signal
import time
import traceback
from multiprocessing import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any


class ProcessRaisedException(Exception):
    """A process ended with an exception, whose traceback this is."""

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg)
        self.error_index, self.error_pid = error_index, error_pid


class ProcessExitedException(ProcessRaisedException):
    """A process ended with an exit code or by a signal."""

    def __init__(
        self, msg: str, error_index: int, error_pid: int, exit_code: int,
        signal_name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(msg, error_index, error_pid)
        self.exit_code, self.signal_name = exit_code, signal_name


def _call(fn: Any, rank: int, args: tuple, told: Connection) -> None:
    try:
        fn(rank, *args)
    except Exception:
        told.send(traceback.format_exc())
        raise SystemExit(1) from None


class ProcessContext:
    """Processes that spawn() started. torch.multiprocessing.ProcessContext."""

    def __init__(self, processes: list, told: list[Connection]) -> None:
        self.processes = processes
        self._told = dict(enumerate(told))  # each may yet tell of an exception
        self._said: dict[int, str] = {}

    def pids(self) -> list[int]:
        """The processes' ids."""
        return [p.pid for p in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait until all have ended: True, or False when `timeout` seconds have passed.

        A process that fails ends the others, which have `grace_period` seconds to end by
        themselves. Raises ProcessRaisedException or ProcessExitedException for it.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            # Asked once: one that ends after this is met again, by its sentinel, in the next turn.
            alive = [p.sentinel for p in self.processes if p.exitcode is None]
            self._listen()
            self._raise_failure(grace_period)
            if not alive:
                return True
            left = None if end is None else max(0.0, end - time.monotonic())
            if not wait([*alive, *self._told.values()], left):
                return False

    def _listen(self) -> None:
        """Read what processes tell: one with more to tell than a pipe holds waits for that."""
        for rank, connection in list(self._told.items()):
            if connection.poll():
                with contextlib.suppress(EOFError):
                    self._said[rank] = connection.recv()
                connection.close()
                del self._told[rank]

    def _raise_failure(self, grace_period: float | None) -> None:
        for rank, process in enumerate(self.processes):
            if not (code := process.exitcode):
                continue
            self._listen()
            self._end(grace_period)
            if rank in self._said:
                said = f"\n\n-- Process {rank} terminated with the following error:\n"
                raise ProcessRaisedException(said + self._said[rank], rank, process.pid)
            name = signal.Signals(-code).name if code < 0 else None
            how = f"exit code {code}" if name is None else f"signal {name}"
            raise ProcessExitedException(
                f"process {rank} terminated with {how}", rank, process.pid, code, name
            )

    def _end(self, grace_period: float | None) -> None:
        """End all: by themselves in the time given, then asked, then killed."""
        for seconds, how in ((grace_period or 0, "terminate"), (30, "kill")):
            end = time.monotonic() + seconds
            for process in self.processes:
                process.join(max(0.0, end - time.monotonic()))
            for process in self.processes:
                if process.exitcode is None:
                    getattr(process, how)()
        for process in self.processes:
            process.join()


def start_processes(
    fn: Any, args: tuple = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:  # fmt: skip
    """fn(rank, *args) in `nprocs` new processes. torch.multiprocessing.start_processes."""
    context: Any = get_context(start_method)
    processes, told = [], []
    for rank in range(nprocs):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_call, args=(fn, rank, args, theirs), daemon=daemon)
        process.start()
        theirs.close()
        processes.append(process)
        told.append(ours)
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
