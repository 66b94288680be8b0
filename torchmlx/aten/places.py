"""What gather, scatter and the index_ family check of their index and source, and torch's errors.

MLX checks none of it on the CPU: it reads and writes outside of the array.
"""

from __future__ import annotations

import mlx.core as mx

from ..core import dtype as dtypes
from ..core.layout import wrap_dim
from ..core.tensor import Tensor
from .index import check_bounds

INDICES = (dtypes.int64, dtypes.int32)


def require_tensors(name: str, position: int, **arguments) -> None:
    """torch's TypeError if one of the arguments, the first of them at `position`, is no Tensor."""
    for k, (argument, value) in enumerate(arguments.items(), position):
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name}(): argument '{argument}' (position {k}) must be Tensor, "
                f"not {type(value).__name__}"
            )


def out_of_bounds(bad: int, dim: int, size: int) -> str:
    return f"index {bad} is out of bounds for dimension {dim} with size {size}"


def within(index: Tensor, size: int, message) -> mx.array:
    """The index's array; its elements lie in [0, size)."""
    array = index._read()
    check_bounds(array, size, index.device, message, least=0)
    return array


def along(index: Tensor, size: int, dim: int) -> mx.array:
    """The index of gather or scatter, whose elements lie in [0, size)."""
    return within(index, size, lambda bad: RuntimeError(out_of_bounds(bad, dim, size)))


def check_gather(input: Tensor, dim: int, index: Tensor) -> None:
    """Dtype and shape of gather's index, which has elements."""
    if index.dtype not in INDICES:
        raise RuntimeError("gather(): Expected dtype int32/int64 for index")
    if max(index.ndim, 1) != max(input.ndim, 1):
        raise RuntimeError("Index tensor must have the same number of dimensions as input tensor")
    for d, n in enumerate(index.shape):
        if d != dim and n > input.shape[d]:
            raise RuntimeError(
                f"Size does not match at dimension {d} expected index {list(index.shape)} to be no "
                f"larger than self {list(input.shape)} apart from dimension {dim}"
            )


def check_scatter(input: Tensor, dim: int, index: Tensor, source) -> None:
    """Dtype and shape of scatter's index and of its source, a Tensor or a number."""
    if index.numel() and index.dtype not in INDICES:
        raise RuntimeError("scatter(): Expected dtype int32/int64 for index")
    tensor = isinstance(source, Tensor)
    if tensor and source.dtype is not input.dtype:
        raise RuntimeError("scatter(): Expected self.dtype to be equal to src.dtype")
    if not index.numel():
        return
    if max(index.ndim, 1) != max(input.ndim, 1):
        raise RuntimeError("Index tensor must have the same number of dimensions as self tensor")
    own = list(index.shape)
    large = any(n > input.shape[d] for d, n in enumerate(own) if d != dim)
    room = ""
    if tensor:
        large = large or any(
            n > source.shape[wrap_dim(d, source.ndim)] if source.ndim else n > 1
            for d, n in enumerate(own)
        )
        room = f" and to be no larger size than src {list(source.shape)}"
    if large:
        raise RuntimeError(
            f"Expected index {own} to be no larger than self {list(input.shape)} apart from "
            f"dimension {dim}{room}"
        )
    if tensor and max(source.ndim, 1) != max(index.ndim, 1):
        raise RuntimeError("Index tensor must have the same number of dimensions as src tensor")


def check_slices(name: str, input: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    """What index_add_ and index_reduce_ want of index and source."""
    if index.ndim > 1:
        raise IndexError(
            f"{name}(): Index is supposed to be a vector, but got dim: {index.ndim} with type: "
            f"{index.dtype.torch_name} and size: {list(index.shape)}"
        )
    if index.dtype not in INDICES:
        raise RuntimeError(
            f"{name}(): Expected dtype int32/int64 for index but got: {index.dtype.torch_name}"
        )
    if source.dtype is not input.dtype:
        raise RuntimeError(
            f"{name}(): self ({input.dtype.torch_name}) and source ({source.dtype.torch_name}) "
            "must have the same scalar type"
        )
    if source.ndim and dim >= source.ndim:
        raise RuntimeError(
            f"{name}(): Indexing dim {dim} is out of bounds of the source tensor with dim "
            f"{source.ndim}"
        )
    n = source.shape[dim] if source.ndim else 1
    if index.numel() != n:
        raise RuntimeError(
            f"{name}(): Number of indices ({index.numel()}) should be equal to source.size(dim): "
            f"({n}), for dim: {dim}"
        )
    if _slice(input, dim) != _slice(source, dim) or input.ndim != source.ndim:
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {list(input.shape)} source.shape = {list(source.shape)}"
        )


def _slice(x: Tensor, dim: int) -> list[int]:
    return [n for d, n in enumerate(x.shape) if d != dim]


def check_index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    """What index_copy_ wants of index and source."""
    name, n = "index_copy_()", index.numel()
    if index.ndim > 1:
        raise IndexError(f"{name}: Index should have dimension 1 or 0 (got {index.ndim})")
    if source.ndim == 0 and n != 1:
        raise IndexError(f"{name}: When source is scalar, index should have one element (got {n})")
    if input.ndim and source.ndim and source.ndim != input.ndim:
        raise IndexError(
            f"{name}: When source and destination are not scalars, their dimensionality must "
            f"match. Source dimensionality ({source.ndim}), destination dimensionality "
            f"({input.ndim})"
        )
    if source.ndim and n != source.shape[dim]:
        raise IndexError(
            f"{name}: Number of indices ({n}) should be equal to source.size(dim) "
            f"({source.shape[dim]})"
        )
    if index.dtype is not dtypes.int64:
        raise RuntimeError(
            f"{name}: Expected a long tensor for index, but got {index.dtype.torch_name}"
        )
    if source.dtype is not input.dtype:
        raise RuntimeError(
            f"{name}: self and source expected to have the same dtype, but got (self) "
            f"{input.dtype.torch_name} and (source) {source.dtype.torch_name}"
        )
    ours, theirs = _slice(input, dim), _slice(source, dim)
    if ours != theirs:
        raise RuntimeError(
            f"{name}: Source/destination tensor must have same slice shapes. Destination slice "
            f"shape: {' '.join(map(str, ours))} at dimension {dim} and source slice shape: "
            f"{' '.join(map(str, theirs))} at dimension 0."
        )


def check_flat(name: str, input: Tensor, index: Tensor) -> mx.array:
    """The index of take or put_ into the flattened input; negative ones count from its end."""
    if index.dtype is not dtypes.int64:
        raise RuntimeError(
            f"{name}(): Expected a long tensor for index, but got {index.dtype.torch_name}"
        )
    n = input.numel()
    if not n and index.numel():
        raise IndexError(f"{name}(): tried to {name.rstrip('_')} from an empty tensor")

    def message(bad):
        return IndexError(f"out of range: tried to access index {bad} on a tensor of {n} elements.")

    array = index._read()
    check_bounds(array, n, index.device, message)
    return array
