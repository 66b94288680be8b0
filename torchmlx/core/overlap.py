"""Writes into memory that is written twice, or also read: torch's rules, in its words."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile

import mlx.core as mx
import numpy as np

from . import layout, views
from .tensor import MANY_IN_ONE, Tensor
from .views import Bits, Part

_SHARED = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
    "single memory location. Please clone() the tensor before performing the operation."
)
# In-place methods that write part by part: what they read may not be written at all.
_IN_PARTS = frozenset(
    (
        "index_put", "put", "index_fill", "index_add", "index_copy", "index_reduce", "scatter",
        "scatter_add", "scatter_reduce", "addr",
    )
)  # fmt: skip
# Methods that read everything first, or do not look.
_UNCHECKED = frozenset(("masked_scatter", "addmm", "addbmm", "baddbmm", "addmv"))
_FILLS = frozenset(("masked_fill", "index_fill"))
_WARNED = frozenset(("masked_fill", "index_fill", "index_put"))
_SILENT = frozenset(("tril", "triu"))
# Computed apart, then copied element after element.
_COMPUTED_FIRST = frozenset(("addmm", "addbmm", "mvlgamma"))


def check_apart(written: Tensor, inputs: Iterable[Tensor], wholly: bool = False) -> None:
    """torch's error where `written` shares part of its memory with an input, or (wholly) all."""
    for x in inputs:
        if x._cell is written._cell and (x is not written or wholly) and _meet(x, written, wholly):
            raise RuntimeError(_SHARED)


def check_in_place(name: str, written: Tensor, inputs: Iterable[Tensor]) -> None:
    """check_apart for the arguments of the in-place variant of `name`."""
    if name in _FILLS:  # the number is read before
        inputs = (x for x in inputs if x.ndim)
    if name not in _UNCHECKED:
        check_apart(written, inputs, name in _IN_PARTS)


def _meet(a: Tensor, b: Tensor, wholly: bool) -> bool:
    """Whether tensors without gaps share memory, but not (unless `wholly`) all of it in one order.

    at::get_overlap_status; with gaps torch does not look.
    """
    if 0 in a.shape or 0 in b.shape:
        return False
    if not (layout.is_dense(a.shape, a._strides) and layout.is_dense(b.shape, b._strides)):
        return False
    (start, end), (other, last) = _extent(a), _extent(b)
    if (start, end) == (other, last):
        return wholly or a._strides_or_contiguous != b._strides_or_contiguous
    return start < last and other < end


def _extent(x: Tensor) -> tuple[int, int]:
    """The bytes of a tensor without gaps in its storage: first, and one after the last."""
    start = x._offset * x.dtype.itemsize
    return start, start + math.prod(x.shape) * x.dtype.itemsize


def in_rounds(name: str, target: Tensor, compute: Callable[[], Tensor]) -> bool:
    """Overwrite a target whose elements share memory by compute(), as if element after element.

    An element that was written through another index is read anew: the first elements of each
    place are written, then, computed again, the second ones, and so on. False, and nothing done,
    where each element has memory of its own.
    """
    if not layout.repeats(target.shape, target._strides):
        return False
    if layout.overlaps(target.shape, target._strides) and name not in _SILENT:
        if name not in _WARNED:
            raise RuntimeError(MANY_IN_ONE)
        warnings.warn(
            f"Use of {name}_ on expanded tensors is deprecated. Please clone() the tensor before "
            "performing this operation. This also applies to advanced indexing e.g. "
            f"tensor[{'indices' if name == 'index_put' else 'mask'}] = "
            f"{'tensor' if name == 'index_put' else 'scalar'}",
            stacklevel=4,
        )
    cell, steps = target._cell, target._steps
    moves = tuple(takewhile(lambda s: type(s) not in (Bits, Part), steps))
    if len(moves) < len(steps):
        return False
    where = views.read(mx.arange(cell.array.size).reshape(cell.array.shape), moves)
    if name in _COMPUTED_FIRST:
        result = compute()
        compute = lambda: result  # noqa: E731
    for elements, places in _rounds(np.array(where).ravel()):
        new = mx.reshape(compute()._read(), (-1,)).astype(target.dtype.mx)
        base = cell.array
        flat = mx.reshape(base, (-1,))
        flat[mx.array(places)] = new[mx.array(elements)]
        cell.write(mx.reshape(flat, base.shape), target._silent)
        target._cached = None
    return True


def _rounds(places: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(elements, their places): the first element of every place, then the second ones, ..."""
    order = np.argsort(places, kind="stable")
    first = np.flatnonzero(np.diff(places[order], prepend=-1))  # where each place's run begins
    rank = np.empty(places.size, np.int64)
    rank[order] = np.arange(places.size) - np.repeat(first, np.diff(first, append=places.size))
    for k in range(rank.max(initial=-1) + 1):
        elements = np.flatnonzero(rank == k)
        yield elements, places[elements]
