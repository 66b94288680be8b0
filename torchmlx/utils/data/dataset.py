"""Datasets: by index or as a stream, and ways to combine and split them."""

from __future__ import annotations

import bisect
import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from ...core.op import TABLE
from ...core.tensor import Tensor

T = TypeVar("T", covariant=True)


class Dataset(Generic[T]):
    """Samples by index: subclasses define `__getitem__`, and `__len__` where samplers need it."""

    def __getitem__(self, index) -> T:
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def __add__(self, other: Dataset) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T], Iterable[T]):
    """A stream of samples: subclasses define `__iter__`."""

    def __add__(self, other: Dataset):  # type: ignore[override]
        return ChainDataset([self, other])

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError("Subclasses of IterableDataset should implement __iter__.")


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Slices of tensors of one first dimension."""

    def __init__(self, *tensors: Tensor):
        if any(t.size(0) != tensors[0].size(0) for t in tensors):
            raise AssertionError("Size mismatch between tensors")
        self.tensors = tensors

    def __getitem__(self, index):
        return tuple(t[index] for t in self.tensors)

    def __len__(self):
        return self.tensors[0].size(0)


class StackDataset(Dataset):
    """Samples of several datasets of one length, as a tuple or, by keyword, a dict."""

    def __init__(self, *args: Dataset, **kwargs: Dataset):
        if args and kwargs:
            raise ValueError(
                "Supported either ``tuple``- (via ``args``) or ``dict``- (via ``kwargs``) like "
                "input/output, but both types are given."
            )
        if not args and not kwargs:
            raise ValueError("At least one dataset should be passed")
        self.datasets: Any = args or kwargs
        lengths = [len(d) for d in self._parts()]  # type: ignore[arg-type]
        if len(set(lengths)) > 1:
            raise ValueError("Size mismatch between datasets")
        self._length = lengths[0]

    def _parts(self):
        return self.datasets.values() if isinstance(self.datasets, dict) else self.datasets

    def __getitem__(self, index):
        if isinstance(self.datasets, dict):
            return {k: d[index] for k, d in self.datasets.items()}
        return tuple(d[index] for d in self.datasets)

    def __len__(self):
        return self._length


class ConcatDataset(Dataset[T]):
    """One dataset after the other."""

    def __init__(self, datasets: Iterable[Dataset]):
        self.datasets = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets should not be an empty iterable")
        if any(isinstance(d, IterableDataset) for d in self.datasets):
            raise AssertionError("ConcatDataset does not support IterableDataset")
        lengths = (len(d) for d in self.datasets)  # type: ignore[arg-type]
        self.cumulative_sizes = list(itertools.accumulate(lengths))

    def __len__(self):
        return self.cumulative_sizes[-1]

    def __getitem__(self, index):
        if index < 0:
            if -index > len(self):
                raise ValueError("absolute value of index should not exceed dataset length")
            index += len(self)
        which = bisect.bisect_right(self.cumulative_sizes, index)
        before = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which][index - before]


class ChainDataset(IterableDataset):
    """One stream after the other."""

    def __init__(self, datasets: Iterable[Dataset]):
        self.datasets = datasets

    def __iter__(self):
        for d in self.datasets:
            if not isinstance(d, IterableDataset):
                raise AssertionError("ChainDataset only supports IterableDataset")
            yield from d

    def __len__(self):
        return sum(len(d) for d in self.datasets)  # type: ignore[arg-type]


class Subset(Dataset[T]):
    """The samples of a dataset at some indices."""

    def __init__(self, dataset: Dataset[T], indices: Sequence[int]):
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index):
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: list[int]) -> list:
        several = getattr(self.dataset, "__getitems__", None)
        if callable(several):
            return list(several([self.indices[i] for i in indices]))  # type: ignore[arg-type]
        return [self.dataset[self.indices[i]] for i in indices]

    def __len__(self):
        return len(self.indices)


def random_split(dataset: Dataset[T], lengths, generator=None) -> list[Subset[T]]:
    """Random parts of given lengths, or of given fractions of the whole.

    torch.utils.data.random_split.
    """
    size = len(dataset)  # type: ignore[arg-type]
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        lengths = _from_fractions(lengths, size)
    if sum(lengths) != size:
        raise ValueError("Sum of input lengths does not equal the length of the input dataset!")
    order = TABLE["randperm"].call(size, generator=generator).tolist()
    ends = itertools.accumulate(lengths)
    return [Subset(dataset, order[e - n : e]) for e, n in zip(ends, lengths, strict=True)]


def _from_fractions(fractions, size: int) -> list[int]:
    for i, f in enumerate(fractions):
        if not 0 <= f <= 1:
            raise ValueError(f"Fraction at index {i} is not between 0 and 1")
    lengths = [math.floor(size * f) for f in fractions]
    for i in range(size - sum(lengths)):  # what rounding left goes round
        lengths[i % len(lengths)] += 1
    for i, n in enumerate(lengths):
        if n == 0:
            warnings.warn(
                f"Length of split at index {i} is 0. This might result in an empty dataset.",
                stacklevel=3,
            )
    return lengths
