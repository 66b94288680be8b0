"""What a simulated launch gives back: outputs, reports, traffic."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import mlx.core as mx

# The two severities of a report.
ERROR = "error"  # wrong on any hardware
SPECIFICATION = "specification"  # outside what Metal promises; this or that chip may bear it


@dataclass(frozen=True)
class Report:
    """A fault that a launch showed.

    severity: ERROR or SPECIFICATION.
    kind: "bounds", "race", "barrier" (not all threads reach it), "divergence" (not all lanes reach
        a simdgroup function), "undefined-lane", "uninitialised", "unwritten", "read-only",
        "misaligned", "private", "threadgroup-memory", "arithmetic", "crash" or "timeout".
    line: of the source that MLX generates, or of `file` where that is an included one; 0 for
        faults without a place. `text` is that line.
    place: the same as "source line 3", "header line 12" or "gemv.h line 40": what one has written.
    variable: the buffer or threadgroup variable, "" if none.
    threadgroup, thread: positions of the first thread that showed it, None for faults without one.
    count: how often it showed.
    """

    severity: str
    kind: str
    message: str
    line: int = 0
    file: str = ""
    place: str = ""
    text: str = ""
    variable: str = ""
    threadgroup: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None
    simdgroup: int = 0
    lane: int = 0
    count: int = 1
    other_place: str = ""

    def __str__(self) -> str:
        where = f" at {self.place}" if self.place else ""
        who = ""
        if self.thread is not None:
            who = (
                f", threadgroup {self.threadgroup} thread {self.thread}"
                f" (simdgroup {self.simdgroup} lane {self.lane})"
            )
        other = f"; the earlier access is at {self.other_place}" if self.other_place else ""
        times = f", {self.count} times" if self.count > 1 else ""
        text = f"\n    {self.text}" if self.text else ""
        return f"{self.severity}: {self.kind}{where}: {self.message}{other}{who}{times}{text}"


@dataclass(frozen=True)
class Traffic:
    """Memory traffic of one or several launches, of buffers only; see runtime/traffic.h.

    requested_read, requested_written: bytes that threads asked for.
    cache_read, cache_written: bytes through the modelled cache (LRU, lines of 128 bytes, 4 MiB).
    loads, stores: accesses of simdgroups; of them `_coalesced` touched no more lines than their
        bytes need; `_lines` are the lines they touched.
    most_loads: the most loads that one thread does, an upper bound of its chain of dependent ones.
    most_phases: the most stretches with loads between simdgroup functions and barriers, of one
        simdgroup: a lower bound, as each waits for the one before.
    """

    requested_read: int = 0
    requested_written: int = 0
    cache_read: int = 0
    cache_written: int = 0
    loads: int = 0
    loads_coalesced: int = 0
    load_lines: int = 0
    stores: int = 0
    stores_coalesced: int = 0
    store_lines: int = 0
    most_loads: int = 0
    most_phases: int = 0

    @property
    def requested(self) -> int:
        return self.requested_read + self.requested_written

    @property
    def cached(self) -> int:
        return self.cache_read + self.cache_written

    @property
    def coalesced_share(self) -> float:
        """Share of the loads that are coalesced; 1 without loads."""
        return self.loads_coalesced / self.loads if self.loads else 1.0

    @staticmethod
    def total(parts: Iterable["Traffic"]) -> "Traffic":
        """The traffic of launches one after the other, each with a cold cache."""
        names = Traffic.__dataclass_fields__
        parts = list(parts)
        return Traffic(**{name: sum(getattr(part, name) for part in parts) for name in names})


@dataclass(frozen=True)
class Result:
    """A simulated launch.

    outputs: in the order of the signature. After a fault that ended the run (`completed` is
        False) they are what is there.
    seconds: of the launch alone. threads, threadgroups, threadgroup_bytes, barriers (summed over
        threadgroups) and simdgroup_functions (over simdgroups) are counts.
    traffic: where it was asked for.
    """

    name: str
    outputs: tuple[mx.array, ...]
    reports: tuple[Report, ...] = ()
    traffic: Traffic | None = None
    completed: bool = True
    seconds: float = 0.0
    threads: int = 0
    threadgroups: int = 0
    threadgroup_bytes: int = 0
    barriers: int = 0
    simdgroup_functions: int = 0
    source: str = field(default="", repr=False)

    @property
    def errors(self) -> tuple[Report, ...]:
        """The reports of what is wrong on any hardware."""
        return tuple(report for report in self.reports if report.severity == ERROR)


class SimulationError(Exception):
    """A launch has reports that its caller does not accept; `result` has them all."""

    def __init__(self, result: Result) -> None:
        shown = result.errors or result.reports
        more = f"\n({len(shown) - 3} more)" if len(shown) > 3 else ""
        super().__init__(f"{result.name}: " + "\n".join(map(str, shown[:3])) + more)
        self.result = result
