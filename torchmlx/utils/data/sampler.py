"""Samplers: the order in which a dataset is read. Random ones draw torch's numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

from ...core import dtype as dtypes
from ...core.op import TABLE
from ...random import Generator

T = TypeVar("T", covariant=True)


def draw_seed(generator=None) -> int:
    """A seed from the generator, by torch's draw."""
    empty = TABLE["empty"].call((), dtype=dtypes.int64)
    return int(empty.random_(generator=generator).item())


class Sampler(Generic[T]):
    """Yields indices, or lists of indices. torch.utils.data.Sampler."""

    def __init__(self, data_source=None):
        pass

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError


class SequentialSampler(Sampler[int]):
    """0, 1, 2, ..."""

    def __init__(self, data_source: Sized):
        self.data_source = data_source

    def __iter__(self):
        return iter(range(len(self.data_source)))

    def __len__(self):
        return len(self.data_source)


def _checked_generator(generator) -> None:
    if generator is not None and not isinstance(generator, Generator):
        raise TypeError(
            "Expected a torch.Generator object for argument generator but got "
            f"{type(generator).__name__}"
        )


class RandomSampler(Sampler[int]):
    """A random order, or random indices with replacement."""

    def __init__(self, data_source: Sized, replacement=False, num_samples=None, generator=None):
        if not isinstance(replacement, bool):
            raise TypeError(
                f"replacement should be a boolean value, but got replacement={replacement}"
            )
        self.data_source, self.replacement = data_source, replacement
        self._num_samples, self.generator = num_samples, generator
        if not isinstance(self.num_samples, int) or self.num_samples < 0:
            raise ValueError(
                "num_samples should be a non-negative integer value, but got "
                f"num_samples={self.num_samples}"
            )

    @property
    def num_samples(self) -> int:
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self):
        n, generator = len(self.data_source), self.generator
        if generator is None:
            generator = Generator()
            generator.manual_seed(draw_seed())
        if self.replacement:
            sizes = [32] * (self.num_samples // 32) + [self.num_samples % 32]
            for size in sizes:
                drawn = TABLE["randint"].call(n, (size,), generator=generator)
                yield from drawn.tolist()
            return
        if n == 0:
            return
        permutation = TABLE["randperm"].call
        for _ in range(self.num_samples // n):
            yield from permutation(n, generator=generator).tolist()
        yield from permutation(n, generator=generator).tolist()[: self.num_samples % n]

    def __len__(self):
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """Given indices in a random order."""

    def __init__(self, indices: Sequence[int], generator=None):
        self.indices, self.generator = indices, generator

    def __iter__(self):
        order = TABLE["randperm"].call(len(self.indices), generator=self.generator)
        return (self.indices[i] for i in order.tolist())

    def __len__(self):
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """Indices with given weights."""

    def __init__(self, weights, num_samples: int, replacement: bool = True, generator=None):
        if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples <= 0:
            raise ValueError(
                f"num_samples should be a positive integer value, but got num_samples={num_samples}"
            )
        if not isinstance(replacement, bool):
            raise ValueError(
                f"replacement should be a boolean value, but got replacement={replacement}"
            )
        weights = TABLE["as_tensor"].call(weights, dtype=dtypes.float64)
        if weights.ndim != 1:
            raise ValueError(
                "weights should be a 1d sequence but given weights have shape "
                f"{tuple(weights.shape)}"
            )
        self.weights, self.num_samples = weights, num_samples
        self.replacement, self.generator = replacement, generator

    def __iter__(self):
        drawn = TABLE["multinomial"].call(
            self.weights, self.num_samples, self.replacement, generator=self.generator
        )
        return iter(drawn.tolist())

    def __len__(self):
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """Lists of batch_size indices of another sampler."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool):
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
            raise ValueError(
                f"batch_size should be a positive integer value, but got batch_size={batch_size}"
            )
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler: Iterable[int] = sampler
        self.batch_size, self.drop_last = batch_size, drop_last

    def __iter__(self):
        indices = iter(self.sampler)
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) < self.batch_size and self.drop_last:
                return
            yield batch

    def __len__(self):
        n = len(self.sampler)  # type: ignore[arg-type]
        return n // self.batch_size if self.drop_last else math.ceil(n / self.batch_size)


class DistributedSampler(Sampler[int]):
    """The part of a (shuffled) dataset that belongs to one of num_replicas processes."""

    def __init__(
        self, dataset: Sized, num_replicas=None, rank=None, shuffle=True, seed=0, drop_last=False
    ):
        self.dataset = dataset
        self.num_replicas, self.rank = num_replicas or 1, rank or 0
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(
                f"Invalid rank {self.rank}, rank should be in the interval "
                f"[0, {self.num_replicas - 1}]"
            )
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0
        n = len(dataset)
        self.num_samples = n // self.num_replicas if drop_last else -(-n // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self):
        n = len(self.dataset)
        order = list(range(n))
        if self.shuffle:
            generator = Generator()
            generator.manual_seed(self.seed + self.epoch)
            order = TABLE["randperm"].call(n, generator=generator).tolist()
        order = (order * (self.total_size // max(n, 1) + 1))[: self.total_size]
        return iter(order[self.rank : self.total_size : self.num_replicas])

    def __len__(self):
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Another epoch shuffles otherwise."""
        self.epoch = epoch
