"""Works measured in turns with somebody else's, as lines with their bars."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import torch

# A side stops when it has been measured this often, or for this long (s) after a few times.
MOST, LEAST, SECONDS = 15, 3, 2.0
# A turn of something short: at most so many calls, and so long (s); the pause before it (s).
CALLS, TURN, PAUSE = 32, 0.01, 0.01

# Copies of weights that take turns: together larger than a last-level cache of 32 MiB.
ROTATED = 128 << 20


@dataclass(frozen=True)
class Work:
    """Something both can do `calls` times.

    bar: their time over ours that is asked for; 0 if nothing is. reads: bytes that a call must
    read from memory, 0 if that is not the limit; share: of the read bandwidth, that is asked for.
    """

    name: str
    ours: Callable[[], object]
    theirs: Callable[[], object]
    bar: float = 0.0
    reads: int = 0
    calls: int = 1
    share: float = 0.0


def print_header() -> None:
    """Names of the columns."""
    print(f"{'work':54}{'ours ms':>9}{'theirs':>9}{'ratio':>8}{'bar':>7}", end="")
    print(f"{'of bandwidth':>14}{'bar':>6}  verdict")


def print_works(works: Iterable[Work | str], bandwidth: float, below: str) -> int:
    """Measure each and print its line, or the text that stands for it; how many are below a bar.

    `below` is the verdict on those.
    """
    count = 0
    for work in works:
        if isinstance(work, str):
            print(work, flush=True)
            continue
        ours, theirs = (time / work.calls for time in alternate(work.ours, work.theirs))
        ratio, share = theirs / ours, work.reads / ours / bandwidth
        missed = ratio < work.bar or share < work.share
        count += missed
        print(
            f"{work.name:54}{1e3 * ours:9.3f}{1e3 * theirs:9.3f}{ratio:7.2f}x"
            f"{f'{work.bar:.2f}x' if work.bar else '':>7}"
            f"{f'{share:.0%}' if work.reads else '':>14}"
            f"{f'{work.share:.0%}' if work.share else '':>6}"
            f"  {(below if missed else 'met') if work.bar or work.share else ''}",
            flush=True,
        )
    return count


def alternate(*sides: Callable[[], object]) -> list[float]:
    """The median time of a call of each side in seconds; they take turns.

    First calls do not count, unless one takes so long that it has to do. A turn of something short
    begins after a pause and is many calls, of which the first does not count either: OpenMP's
    threads keep a core busy for some ms after their last loop, ours go to sleep after 0.1 ms.
    """
    first = [timed(side) for side in sides]
    times: list[list[float]] = [[] for _ in sides]
    calls = [max(1, min(CALLS, int(TURN / seconds))) for seconds in first]
    began = time.perf_counter()
    turns = 0
    while max(first) < SECONDS and turns < MOST:
        if turns >= LEAST and time.perf_counter() - began > SECONDS * len(sides):
            break
        for side, taken, count in zip(sides, times, calls, strict=True):
            if count > 1:
                time.sleep(PAUSE)
                side()
            taken.extend(timed(side) for _ in range(count))
        turns += 1
    return [statistics.median(taken or [once]) for taken, once in zip(times, first, strict=True)]


def timed(side: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    side()
    return time.perf_counter() - start


def read_bandwidth(module: Any) -> float:
    """Bytes per second that all threads read from memory: the better of torch's and our loop."""
    x, ours = torch.ones(ROTATED), mx.ones(ROTATED)
    mx.eval(ours)
    sides: list[Callable[[], object]] = [lambda: x.sum()]
    if module:
        sides.append(lambda: module.read_all(ours))
    return 4 * ROTATED / min(alternate(*sides))
