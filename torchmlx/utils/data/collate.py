"""Batches from samples: tensors stacked, numbers as tensors, containers by element."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...core import dtype as dtypes
from ...core.op import TABLE
from ...core.tensor import Tensor

_MESSAGE = (
    "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {}"
)


def default_collate(batch: Sequence) -> Any:
    """Samples as one batch with a new first dimension. torch.utils.data.default_collate."""
    first = batch[0]
    if isinstance(first, Tensor):
        return TABLE["stack"].call(batch, 0)
    if isinstance(first, np.ndarray):
        if first.dtype.kind in "SUO":
            raise TypeError(_MESSAGE.format(first.dtype))
        return TABLE["stack"].call([TABLE["as_tensor"].call(b) for b in batch], 0)
    if isinstance(first, (np.bool_, np.number)):
        return TABLE["as_tensor"].call(np.asarray(batch))
    if isinstance(first, float):
        return TABLE["tensor"].call(batch, dtype=dtypes.float64)
    if isinstance(first, int):
        return TABLE["tensor"].call(batch)
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return _mapped(first, {k: default_collate([d[k] for d in batch]) for k in first})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(default_collate(part) for part in zip(*batch, strict=True)))
    if isinstance(first, Sequence):
        if any(len(b) != len(first) for b in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        parts = [default_collate(part) for part in zip(*batch, strict=True)]
        return parts if isinstance(first, tuple) else _listed(first, parts)
    raise TypeError(_MESSAGE.format(type(first)))


def default_convert(data: Any) -> Any:
    """NumPy arrays and numbers in a sample as tensors. torch.utils.data.default_convert."""
    if isinstance(data, (np.ndarray, np.bool_, np.number)):
        if isinstance(data, np.ndarray) and data.dtype.kind in "SUO":
            return data
        return TABLE["as_tensor"].call(data)
    if isinstance(data, Mapping):
        return _mapped(data, {k: default_convert(v) for k, v in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(default_convert(d) for d in data))
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        parts = [default_convert(d) for d in data]
        return parts if isinstance(data, tuple) else _listed(data, parts)
    return data


def _mapped(like: Mapping, values: dict) -> Any:
    """A mapping of like's type, where it can be made."""
    try:
        if hasattr(like, "update"):
            made: Any = copy.copy(like)
            made.update(values)
            return made
        return type(like)(values)  # type: ignore[call-arg]
    except TypeError:
        return values


def _listed(like: Sequence, values: list) -> Any:
    try:
        return type(like)(values)  # type: ignore[call-arg]
    except TypeError:
        return values
