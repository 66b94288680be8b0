"""torch's streams and events on MLX's.

MLX keeps the order of what depends on each other, across streams too, and computes an array only
when it is asked for. So a wait has nothing to add; and what torch would have started before an
event or a `synchronize()` is computed there: every living tensor that is still to be computed.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import threading
import time
from typing import Any, Self

import mlx.core as mx

from .core import device as devices
from .core.tensor import Tensor

POOL = 32  # streams beyond the default one, handed out in turn as in torch

_turns = itertools.count()
_NO_TIMING = "Both events must be created with argument 'enable_timing=True'."
_NOT_RECORDED = "Both events must be recorded before calculating elapsed time."


class _Thread(threading.local):
    """A thread's own: MLX's streams belong to a thread. Keys are torch's device type and number."""

    def __init__(self) -> None:
        self.made: dict[tuple[str, int], mx.Stream] = {}
        self.current: dict[str, Stream] = {}


_thread = _Thread()


def settle() -> None:
    """Compute every tensor that is still to be computed, and wait.

    Looking for them took 20 ms with 250,000 Python objects (2 cores, 2026-12-02).
    """
    mx.eval(_pending())
    mx.synchronize()


def _pending() -> list[mx.array]:
    return [
        x._cell.array
        for x in gc.get_objects()
        if issubclass(type(x), Tensor) and hasattr(x, "_cell") and x.device.type != "meta"
    ]


def _before_fork() -> None:
    """A child could not compute what is pending: MLX's threads stay with the parent."""
    with contextlib.suppress(RuntimeError):  # what is another thread's, that one computes
        settle()


def _in_child() -> None:
    """MLX's streams so far have no threads here; new ones have."""
    _thread.made.clear()
    mx.set_default_stream(mx.new_stream(mx.cpu))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)


class Stream:
    """A queue of work on a device. torch.Stream.

    Operations inside `with stream:` go there. device: the GPU where there is one, else the CPU.
    """

    _kind: str | None = None  # the device type, where the class is of one

    def __init__(self, device: Any = None, priority: int = 0, **ids: Any) -> None:
        self.device = devices.resolve(_device(self._kind, device))
        self.priority = priority
        self.stream_id = ids["stream_id"] if "stream_id" in ids else 1 + next(_turns) % POOL
        self._before: list[tuple[Stream, Any]] = []

    @property
    def device_index(self) -> int:
        """The device's number; -1 for the CPU."""
        return -1 if self.device.type == "cpu" else self.device.index or 0

    @property
    def device_type(self) -> str:
        """The device's type."""
        return self.device.type

    @property
    def mx(self) -> mx.Stream:
        """MLX's stream, of this thread."""
        key = self.device.type, self.stream_id
        found = _thread.made.get(key)
        if found is None:
            place = mx.cpu if self.device.type == "cpu" else mx.gpu
            new = mx.new_stream(place) if self.stream_id else mx.default_stream(place)
            found = _thread.made[key] = new
        return found

    def synchronize(self) -> None:
        """Compute what is still to be computed, and wait."""
        settle()

    def query(self) -> bool:
        """True, after waiting: MLX cannot be asked."""
        settle()
        return True

    def wait_event(self, event: Event) -> None:
        """Nothing to do: MLX waits for what it needs."""

    def wait_stream(self, stream: Stream) -> None:
        """Nothing to do: MLX waits for what it needs."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event (a new one if None) here and return it."""
        event = Event(self.device) if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Self:
        inside: Any = mx.stream(self.mx)
        inside.__enter__()
        self._before.append((current_stream(self.device), inside))
        set_stream(self)
        return self

    def __exit__(self, *exc: Any) -> None:
        before, inside = self._before.pop()
        set_stream(before)
        inside.__exit__(*exc)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.device, self.stream_id) == (
            other.device, other.stream_id,
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self.device, self.stream_id))

    def __repr__(self) -> str:
        return (
            f"torch.Stream device_type={self.device.type}, device_index={self.device_index}, "
            f"stream_id={self.stream_id}"
        )


def _device(kind: str | None, device: Any) -> Any:
    """What a stream or event of this kind is made on."""
    if device is None:
        return kind or devices.GPU or devices.CPU
    return devices.device(kind, device) if kind and isinstance(device, int) else device


def default_stream(device: Any = None, kind: str | None = None) -> Stream:
    """The stream that operations go to when none is chosen: number 0."""
    return Stream(_device(kind, device), stream_id=0)


def current_stream(device: Any = None, kind: str | None = None) -> Stream:
    """The stream that this thread's operations on the device go to."""
    where = devices.resolve(_device(kind, device))
    return _thread.current.get(where.type) or default_stream(where)


def set_stream(stream: Stream) -> None:
    """This thread's operations on the stream's device go there from now on."""
    _thread.current[stream.device.type] = stream
    if stream.device is devices.GPU:
        devices.choose_stream(stream.mx)


class StreamContext:
    """`with stream(s):`, where s may be None. torch.cuda.StreamContext."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *exc: Any) -> None:
        if self.stream is not None:
            self.stream.__exit__(*exc)


class Event:
    """A moment in the work. torch.Event.

    record() of an event with enable_timing computes what is still to be computed, so that
    elapsed_time measures the work itself, not only its description.
    """

    _kind: str | None = None

    def __init__(
        self, device: Any = None, *, enable_timing: bool = False, blocking: bool = False,
        interprocess: bool = False,
    ) -> None:  # fmt: skip
        if interprocess:
            raise NotImplementedError("torch.Event(interprocess=True): torchmlx is one process")
        self.device = devices.resolve(_device(self._kind, device))
        self.enable_timing = enable_timing
        self._recorded = False
        self._ends = self._starts = 0.0

    def record(self, stream: Stream | None = None) -> None:
        """This is the moment. `stream`: accepted, all streams count."""
        self._recorded = True
        if not self.enable_timing:
            return
        began = time.perf_counter()
        arrays = _pending()
        looking = time.perf_counter() - began
        mx.eval(arrays)
        mx.synchronize()
        self._starts = time.perf_counter()
        # What ends here has not taken the time of looking for it.
        self._ends = max(began, self._starts - looking)

    def wait(self, stream: Stream | None = None) -> None:
        """Nothing to do: MLX waits for what it needs."""

    def query(self) -> bool:
        """True, after waiting: MLX cannot be asked."""
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Wait until all before the moment is computed."""
        if self._recorded and not self.enable_timing:
            settle()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this moment to `end_event`'s."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError(_NO_TIMING)
        if not (self._recorded and end_event._recorded):
            raise ValueError(_NOT_RECORDED)
        if end_event._starts < self._starts:
            raise ValueError("End event must be recorded after start event.")
        return max(0.0, 1e3 * (end_event._ends - self._starts))

    def __repr__(self) -> str:
        return f"torch.Event device_type={self.device.type}, recorded={self._recorded}"


def of(kind: str) -> tuple[type[Stream], type[Event]]:
    """The Stream and Event classes of one device type."""
    place = {"_kind": kind, "__module__": f"torchmlx.{kind}"}
    stream = type("Stream", (Stream,), {**place, "__doc__": f"torch.{kind}.Stream."})

    def initialise(self, enable_timing=False, blocking=False, interprocess=False, external=False):
        Event.__init__(
            self, enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )

    event = type(
        "Event", (Event,), {**place, "__doc__": f"torch.{kind}.Event.", "__init__": initialise}
    )
    return stream, event
