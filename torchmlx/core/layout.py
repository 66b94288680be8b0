"""Sizes, strides and offsets: torch's view arithmetic, in elements.

MLX never sees these; they are what `stride()` answers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

Shape = tuple[int, ...]


class Size(tuple[int, ...]):
    """torch.Size: a tuple of ints that knows its number of elements."""

    __slots__ = ()

    def numel(self) -> int:
        return math.prod(self)

    def __getitem__(self, index) -> Any:
        found = tuple.__getitem__(self, index)
        return Size(found) if isinstance(index, slice) else found

    def __add__(self, other):
        return Size(tuple.__add__(self, tuple(other)))

    def __radd__(self, other):
        return Size(tuple(other) + tuple(self))

    def __mul__(self, times):
        return Size(tuple.__mul__(self, times))

    __rmul__ = __mul__

    def __repr__(self):
        return f"torch.Size({list(self)})"

    def __reduce__(self):
        return (Size, (tuple(self),))


@functools.lru_cache(maxsize=4096)
def contiguous(shape: Shape) -> Shape:
    """Row-major strides. A dimension of size 0 counts as 1, as in torch."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: Sequence[int], strides: Sequence[int] | None) -> bool:
    """Whether elements lie in row-major order without gaps; size-1 dimensions do not matter."""
    if strides is None or 0 in shape:
        return True
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def channels_last(shape: Sequence[int]) -> Shape:
    """Strides of torch.channels_last (4-D) and torch.channels_last_3d (5-D)."""
    order = (*range(2, len(shape)), 1)
    strides, step = [0] * len(shape), 1
    for d in reversed((0, *order)):
        strides[d] = step
        step *= max(shape[d], 1)
    return tuple(strides)


def is_channels_last(shape: Sequence[int], strides: Sequence[int] | None) -> bool:
    strides = contiguous(shape) if strides is None else strides
    expected = channels_last(shape)
    return all(n == 1 or a == b for n, a, b in zip(shape, strides, expected, strict=True))


def overlaps(shape: Sequence[int], strides: Sequence[int] | None) -> bool:
    """Whether two indices surely name one element (an expanded dimension): it cannot be written."""
    return (
        strides is not None
        and 0 not in shape
        and any(n > 1 and s == 0 for n, s in zip(shape, strides, strict=True))
    )


def repeats(shape: Sequence[int], strides: Sequence[int] | None) -> bool:
    """Whether two indices may name one element: an expanded dimension, or windows that overlap."""
    if strides is None or 0 in shape:
        return False
    reach = 0  # how far the faster dimensions go
    for stride, size in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n != 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def is_dense(shape: Sequence[int], strides: Sequence[int] | None) -> bool:
    """Non-overlapping and without gaps, in any order of dimensions."""
    if strides is None or 0 in shape:
        return True
    step = 1
    for stride, size in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n != 1):
        if stride != step:
            return False
        step *= size
    return True


def view_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Strides under which memory of (shape, strides) reads as `new`, or None when a copy is needed.

    Old dimensions are grouped into runs that are contiguous among themselves; each run must be
    filled exactly by consecutive new dimensions (at::detail::computeStride).
    """
    if math.prod(shape) == 0:
        return strides if shape == new else contiguous(new)
    result = [0] * len(new)
    d = len(new) - 1
    run, run_stride = 1, strides[-1] if strides else 1
    for old in range(len(shape) - 1, -1, -1):
        run *= shape[old]
        ends_run = old == 0 or (shape[old - 1] != 1 and strides[old - 1] != run * run_stride)
        if not ends_run:
            continue
        filled = 1
        while d >= 0 and (filled < run or new[d] == 1):
            result[d] = filled * run_stride
            filled *= new[d]
            d -= 1
        if filled != run:
            return None
        if old > 0:
            run, run_stride = 1, strides[old - 1]
    while d >= 0 and not shape:
        result[d], d = 1, d - 1
    return tuple(result) if d == -1 else None


def infer_size(shape: Sequence[int], numel: int) -> Shape:
    """`shape` with its one -1 filled in to hold `numel` elements; torch's errors otherwise."""
    shape = tuple(shape)
    unknown = shape.count(-1)
    if unknown > 1:
        raise RuntimeError("only one dimension can be inferred")
    if any(n < -1 for n in shape):
        raise RuntimeError(f"invalid shape dimension {min(shape)}")
    known = math.prod(n for n in shape if n != -1)
    if unknown and known == 0 and numel == 0:
        raise RuntimeError(
            f"cannot reshape tensor of 0 elements into shape {list(shape)} because the unspecified "
            "dimension size -1 can be any value and is ambiguous"
        )
    if (unknown and (known == 0 or numel % known)) or (not unknown and known != numel):
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {numel}")
    return tuple(numel // known if n == -1 else n for n in shape) if unknown else shape


def wrap_dim(dim: int, ndim: int) -> int:
    """A dimension in [0, ndim), or torch's IndexError. A 0-d tensor takes 0 and -1."""
    n = max(ndim, 1)
    if not -n <= dim < n:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})"
        )
    return dim + n if dim < 0 else dim


def wrap_dims(dims, ndim: int) -> Shape:
    """One dim, several, or None (all), wrapped; a repeated one is torch's RuntimeError."""
    if dims is None:
        return tuple(range(ndim))
    found = tuple(wrap_dim(d, ndim) for d in ((dims,) if isinstance(dims, int) else dims))
    for d in found:
        if found.count(d) > 1:
            raise RuntimeError(f"dim {d} appears multiple times in the list of dims")
    return found


def broadcast_shapes(*shapes: Sequence[int]) -> Shape:
    """The common shape, aligned at the last dimension, or torch's RuntimeError."""
    result: list[int] = []
    ndim = max((len(s) for s in shapes), default=0)
    for d in range(-ndim, 0):
        size = 1
        for s in shapes:
            n = s[d] if len(s) >= -d else 1
            if n != 1 and size not in (1, n):
                raise RuntimeError(
                    f"The size of tensor a ({size}) must match the size of tensor b ({n}) at "
                    f"non-singleton dimension {ndim + d}"
                )
            size = n if n != 1 else size
        result.append(size)
    return tuple(result)


def pointwise_strides(shape: Shape, operands: Sequence[tuple[Shape, Shape | None]]) -> Shape | None:
    """Strides of an elementwise result (None: contiguous), in its operands' order of dimensions.

    TensorIterator's rule.
    """
    strides_of = [aligned(shape, s, contiguous(s) if st is None else st) for s, st in operands]
    same = [st for (s, _), st in zip(operands, strides_of, strict=True) if s == shape]
    if (
        len(same) == len(operands)
        and all(st == same[0] for st in same)
        and is_dense(shape, same[0])
    ):
        return None if is_contiguous(shape, same[0]) else same[0]
    order = list(range(len(shape) - 1, -1, -1))  # fastest first
    for i in range(1, len(order)):
        j = i
        for k in range(i - 1, -1, -1):
            comparison = _faster(order[j], order[k], shape, strides_of)
            if comparison > 0:
                order[j], order[k] = order[k], order[j]
                j = k
            elif comparison < 0:
                break
    strides, step = [0] * len(shape), 1
    for d in order:
        strides[d] = step
        step *= max(shape[d], 1)
    return None if tuple(strides) == contiguous(shape) else tuple(strides)


def preserved(shape: Shape, strides: Shape | None) -> Shape | None:
    """Strides of a copy that keeps the order of dimensions (torch.preserve_format)."""
    if strides is None or is_dense(shape, strides):
        return strides
    return pointwise_strides(tuple(shape), [(tuple(shape), strides)])


def aligned(shape: Shape, own: Shape, strides: Shape) -> Shape:
    """Strides over the broadcast shape: 0 where the operand is repeated."""
    pad = len(shape) - len(own)
    return (0,) * pad + tuple(
        0 if n == 1 and m != 1 else st for n, m, st in zip(own, shape[pad:], strides, strict=True)
    )


def _faster(a: int, b: int, shape: Shape, operands: list[Shape]) -> int:
    """1 if dimension `a` varies faster than `b`, -1 if slower, 0 if the operands do not say."""
    for strides in operands:
        if strides[a] == 0 or strides[b] == 0:
            continue
        if strides[a] != strides[b]:
            return 1 if strides[a] < strides[b] else -1
        if shape[a] > shape[b]:
            return -1
        if shape[a] < shape[b]:
            return 1
    return 0
