"""DataLoader: batches of a dataset, in torch's order for a seed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from .collate import default_collate, default_convert
from .dataset import IterableDataset
from .sampler import BatchSampler, RandomSampler, SequentialSampler, draw_seed
from .workers import Workers


class _Fetch:
    """Makes a worker's (or the loader's own) function from a task to a batch."""

    def __init__(self, collate, batched: bool, stream: bool, drop_last: bool):
        self.collate, self.batched, self.stream = collate, batched, stream
        self.drop_last = drop_last

    def __call__(self, dataset):
        if self.stream:
            samples = iter(dataset)
            return lambda task: self.of_stream(samples, task)
        return lambda task: self.by_index(dataset, task)

    def of_stream(self, samples: Iterator, task) -> Any:
        if not self.batched:
            return self.collate(next(samples))
        batch = list(itertools.islice(samples, len(task)))
        if not batch or (self.drop_last and len(batch) < len(task)):
            raise StopIteration
        return self.collate(batch)

    def by_index(self, dataset, task) -> Any:
        if not self.batched:
            return self.collate(dataset[task])
        several = getattr(dataset, "__getitems__", None)
        return self.collate(several(task) if several else [dataset[i] for i in task])


class DataLoader:
    """Batches of a dataset. torch.utils.data.DataLoader.

    num_workers: threads that make batches ahead; with multiprocessing_context ("spawn",
    "forkserver" or a context) they are processes.
    """

    def __init__(
        self, dataset, batch_size: int | None = 1, shuffle=None, sampler=None, batch_sampler=None,
        num_workers=0, collate_fn=None, pin_memory=False, drop_last=False, timeout: float = 0,
        worker_init_fn=None, multiprocessing_context=None, generator=None, *, prefetch_factor=None,
        persistent_workers=False, pin_memory_device="", in_order=True,
    ):  # fmt: skip
        self.dataset, self.num_workers, self.timeout = dataset, num_workers, timeout
        self.pin_memory, self.pin_memory_device = pin_memory, pin_memory_device
        self.worker_init_fn, self.generator = worker_init_fn, generator
        self.multiprocessing_context, self.in_order = multiprocessing_context, in_order
        self.persistent_workers = persistent_workers
        self.prefetch_factor = _prefetch(num_workers, prefetch_factor)
        _check_workers(num_workers, timeout, persistent_workers)
        self._stream = isinstance(dataset, IterableDataset)
        if self._stream:
            _check_stream(shuffle, sampler, batch_sampler)
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, "
                    "and drop_last"
                )
            batch_size = None
        elif batch_size is None and drop_last:
            raise ValueError(
                "batch_size=None option disables auto-batching and is mutually exclusive with "
                "drop_last"
            )
        self.batch_size, self.drop_last = batch_size, drop_last
        self.sampler = self._default_sampler(shuffle) if sampler is None else sampler
        if batch_size is not None and batch_sampler is None:
            batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)
        self.batch_sampler = batch_sampler
        batched = batch_sampler is not None
        default = default_collate if batched else default_convert
        self.collate_fn = default if collate_fn is None else collate_fn

    def _default_sampler(self, shuffle) -> Any:
        if self._stream:
            return itertools.repeat(None)
        if shuffle:
            return RandomSampler(self.dataset, generator=self.generator)
        return SequentialSampler(self.dataset)

    def __iter__(self) -> Iterator:
        batched = self.batch_sampler is not None
        # torch draws a seed for the workers at each pass, workers or not, and before the sampler.
        seed = draw_seed(self.generator)
        tasks = iter(self.batch_sampler if self.batch_sampler is not None else self.sampler)
        fetch_of = _Fetch(self.collate_fn, batched, self._stream, self.drop_last)
        if self.num_workers == 0:
            return _alone(fetch_of, self.dataset, tasks)
        return self._with_workers(fetch_of, tasks, seed)

    def _with_workers(self, fetch_of, tasks: Iterator, seed: int) -> Iterator:
        workers = Workers(self, fetch_of, seed)
        try:
            yield from workers.batches(tasks, self.prefetch_factor or 2)
        finally:
            workers.stop()

    def __len__(self) -> int:
        if self._stream:
            n = len(self.dataset)
            if self.batch_size is None:
                return n
            return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
        return len(self.batch_sampler if self.batch_sampler is not None else self.sampler)


def _alone(fetch_of: _Fetch, dataset, tasks: Iterator) -> Iterator:
    fetch = fetch_of(dataset)
    for task in tasks:
        try:
            batch = fetch(task)
        except StopIteration:
            return
        yield batch


def _prefetch(workers: int, factor: int | None) -> int | None:
    if workers == 0 and factor is not None:
        raise ValueError(
            "prefetch_factor option could only be specified in multiprocessing.let num_workers > 0 "
            "to enable multiprocessing, otherwise set prefetch_factor to None."
        )
    if factor is not None and factor < 0:
        raise ValueError("prefetch_factor option should be non-negative")
    return 2 if workers > 0 and factor is None else factor


def _check_workers(workers: int, timeout: float, persistent: bool) -> None:
    if workers < 0:
        raise ValueError(
            "num_workers option should be non-negative; use num_workers=0 to disable "
            "multiprocessing."
        )
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if persistent and workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")


def _check_stream(shuffle, sampler, batch_sampler) -> None:
    given = {"shuffle": shuffle or None, "sampler": sampler, "batch_sampler": batch_sampler}
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"DataLoader with IterableDataset: expected unspecified {name} option, but got "
                f"{name}={value}"
            )
