"""Workers that make batches ahead of time: threads, or processes where a context is given.

Threads are the default: a sample need not be pickled, and a fork copies locks that other threads
may hold. Each worker has torch's numbers of its own: its generator is seeded with the loader's seed
plus its number, as torch seeds a worker process.
"""

from __future__ import annotations

import multiprocessing.process
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ... import random
from ...core.tensor import Tensor

# Seconds after which the main thread looks whether the worker it waits for is still there.
LOOK = 2.0


@dataclass(frozen=True)
class WorkerInfo:
    """What a worker knows of itself. torch.utils.data.get_worker_info."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_local = threading.local()


def get_worker_info() -> WorkerInfo | None:
    """The worker that this code runs in, or None. torch.utils.data.get_worker_info."""
    return getattr(_local, "info", None)


class End:
    """A stream has no more samples."""


@dataclass(frozen=True)
class Failure:
    """An exception in a worker."""

    kind: type
    text: str

    def raise_again(self, worker: int):
        message = (
            f"Caught {self.kind.__name__} in DataLoader worker process {worker}.\n"
            f"Original {self.text}"
        )
        try:
            error = self.kind(message)
        except Exception:  # an exception that takes other arguments
            error = RuntimeError(message)
        raise error


def _evaluated(batch: Any) -> Any:
    """Evaluate tensors here: MLX's streams belong to their thread."""
    if isinstance(batch, Tensor):
        mx.eval(batch._cell.array, batch._read())
    elif isinstance(batch, dict):
        for value in batch.values():
            _evaluated(value)
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            _evaluated(value)
    return batch


def evaluate_within(value: Any, depth: int = 6) -> None:
    """Evaluate the tensors that a dataset holds, so that other threads can read them."""
    if isinstance(value, Tensor):
        _evaluated(value)
    elif depth and isinstance(value, dict):
        for part in value.values():
            evaluate_within(part, depth - 1)
    elif depth and isinstance(value, (tuple, list)):
        if value and not isinstance(value[0], (int, float, str, bytes)):
            for part in value:
                evaluate_within(part, depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, type):
        evaluate_within(vars(value), depth - 1)


def tell_of_the_unpicklable(queue_, outbox, what: str) -> None:
    """Let a process's queue answer for `what` it cannot pickle: its thread would drop it, and the
    other side wait for ever."""

    def answer(error: Exception, item: Any) -> None:
        if isinstance(item, Failure):  # of a kind that the other process cannot know
            outbox.put(Failure(RuntimeError, item.text))
            return
        reason = f"{type(error).__name__}: {error}"
        text = (
            f"error: {what} cannot be pickled ({reason}), as a worker process needs; make it of "
            "tensors, arrays, numbers and text, or leave out multiprocessing_context: then "
            "workers are threads"
        )
        outbox.put(Failure(RuntimeError, text))

    if hasattr(queue_, "_on_queue_feeder_error"):
        queue_._on_queue_feeder_error = answer


class Elsewhere:
    """A worker met a tensor whose evaluation belongs to the main thread."""


def _work(info: WorkerInfo, fetch_of, init, inbox, outbox) -> None:
    """A worker's life: indices in, batches out, until None comes."""
    _local.info = info
    tell_of_the_unpicklable(outbox, outbox, "a batch")
    random.use_own_generator(info.seed)
    fetch = None
    try:
        if init is not None:
            init(info.id)
        fetch = fetch_of(info.dataset)
    except Exception as error:
        failure = Failure(type(error), traceback.format_exc())
        while inbox.get() is not None:
            outbox.put(failure)
        _leave(outbox)
        return
    while (task := inbox.get()) is not None:
        try:
            result = _evaluated(fetch(task[0]))
        except StopIteration:
            result = End()
        except Exception as error:
            foreign = isinstance(error, RuntimeError) and "There is no Stream" in str(error)
            result = Elsewhere() if foreign else Failure(type(error), traceback.format_exc())
        outbox.put(result)
    _leave(outbox)


def _leave(outbox) -> None:
    """Told to end: whatever nobody has taken, nobody wants, and a full pipe must not hold it up."""
    if hasattr(outbox, "cancel_join_thread"):
        outbox.cancel_join_thread()


class Workers:
    """The workers of one pass over a loader."""

    def __init__(self, loader, fetch_of, seed: int):
        self.count, self.timeout = loader.num_workers, loader.timeout or None
        context: Any = loader.multiprocessing_context
        if isinstance(context, str):
            # Not by a fork: the loader's own threads run.
            context = multiprocessing.get_context("spawn" if context == "fork" else context)
        make_queue = queue.Queue if context is None else context.Queue
        start = threading.Thread if context is None else context.Process
        self.inboxes = [make_queue() for _ in range(self.count)]
        self.outboxes = [make_queue() for _ in range(self.count)]
        for inbox, outbox in zip(self.inboxes, self.outboxes, strict=True):
            tell_of_the_unpicklable(inbox, outbox, "what the sampler gives")
        self.members = []
        self.own_fetch = None if fetch_of.stream else fetch_of(loader.dataset)
        if context is None:
            evaluate_within(loader.dataset)
        for i in range(self.count):
            info = WorkerInfo(i, self.count, seed + i, loader.dataset)
            args = (info, fetch_of, loader.worker_init_fn, self.inboxes[i], self.outboxes[i])
            member = start(target=_work, args=args, daemon=True)
            member.start()
            self.members.append(member)

    def batches(self, tasks: Iterator, prefetch: int) -> Iterator:
        """The results of tasks, in their order; task k goes to worker k modulo their number."""
        waiting: deque[tuple[int, Any]] = deque()
        alive = list(range(self.count))
        turn = 0

        def send() -> None:
            nonlocal turn
            for task in tasks:
                worker = alive[turn % len(alive)]
                turn += 1
                self.inboxes[worker].put((task,))
                waiting.append((worker, task))
                return

        for _ in range(prefetch * self.count):
            send()
        while waiting:
            worker, task = waiting.popleft()
            result = self.receive(worker)
            if isinstance(result, Elsewhere):
                result = self.here(task)
            if isinstance(result, End):
                if worker in alive:
                    turn = alive.index(worker)
                    alive.remove(worker)
                if alive:
                    send()
                continue
            send()
            yield result

    def here(self, task) -> Any:
        """The batch, made by the main thread."""
        if self.own_fetch is None:
            raise RuntimeError(
                "a worker read a tensor that the main thread has not evaluated; evaluate it "
                "before the loop, for example by tensor.numpy(), or use num_workers=0"
            )
        return self.own_fetch(task)

    def receive(self, worker: int) -> Any:
        end = None if self.timeout is None else time.monotonic() + self.timeout
        while True:
            left = LOOK if end is None else min(LOOK, max(0.0, end - time.monotonic()))
            alive = self.members[worker].is_alive()  # asked first: its last words come before
            try:
                result = self.outboxes[worker].get(timeout=left)
                break
            except queue.Empty:
                if end is not None and time.monotonic() >= end:
                    raise RuntimeError(
                        f"DataLoader timed out after {self.timeout} seconds"
                    ) from None
                if not alive:
                    name = getattr(self.members[worker], "pid", self.members[worker].name)
                    raise RuntimeError(
                        f"DataLoader worker (pid(s) {name}) exited unexpectedly"
                    ) from None
        if isinstance(result, Failure):
            result.raise_again(worker)
        return result

    def stop(self) -> None:
        for inbox in self.inboxes:
            inbox.put(None)
        for member in self.members:
            member.join(timeout=5)
            if isinstance(member, multiprocessing.process.BaseProcess) and member.is_alive():
                member.terminate()
