"""Reading and writing along a dimension by index tensors: gather, scatter, the index_ family."""

from __future__ import annotations

import mlx.core as mx

from ..core import dtype as dtypes
from ..core.layout import wrap_dim
from ..core.op import checked_number, composite
from ..core.tensor import Tensor, from_array
from .index import assigned, check_bounds


def _checked_index(index: Tensor, size: int, name: str, expected=(dtypes.int64, dtypes.int32)):
    if index.dtype not in expected:
        raise RuntimeError(f"{name}(): Expected dtype int32/int64 for index")
    array = index._read()
    check_bounds(
        array, size, index.device,
        lambda bad: IndexError(f"{name}(): index {bad} is out of bounds for size {size}"),
    )  # fmt: skip
    return array


@composite()
def index_select(input, dim, index):
    """Slices of a dimension at the given indices, a copy. torch.index_select."""
    d = wrap_dim(dim, input.ndim)
    source = input.reshape(1) if input.ndim == 0 else input
    if index.ndim > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    where = _checked_index(index, source.shape[d], "index_select").reshape(-1)
    result = mx.take(source._read(), where, axis=d)
    return from_array(result.reshape(()) if input.ndim == 0 else result, input.device, input.dtype)


@composite()
def take(input, index):
    """Elements of the flattened input at flat indices. torch.take."""
    where = _checked_index(index, input.numel(), "take")
    return from_array(mx.take(input._read().reshape(-1), where), input.device, input.dtype)


@composite()
def gather(input, dim, index, *, sparse_grad=False):
    """out[i][j] = input[index[i][j]][j] for dim 0, and so on. torch.gather."""
    d = wrap_dim(dim, input.ndim)
    if index.numel() == 0:
        return from_array(mx.zeros(index.shape, input.dtype.mx), input.device, input.dtype)
    if index.dtype not in (dtypes.int64, dtypes.int32):
        raise RuntimeError("gather(): Expected dtype int64 for index")
    if input.ndim == 0:
        return input.expand(index.shape).clone()
    where = _checked_gather(index, input.shape[d], d)
    source = input._read()[_corner(index.shape, d)]
    return from_array(mx.take_along_axis(source, where, axis=d), input.device, input.dtype)


def _checked_gather(index: Tensor, size: int, dim: int) -> mx.array:
    array = index._read()
    check_bounds(
        array, size, index.device,
        lambda bad: RuntimeError(
            f"index {bad} is out of bounds for dimension {dim} with size {size}"
        ),
    )  # fmt: skip
    return array


def _corner(shape, dim: int):
    """The part of the input that an index of `shape` reads: other dimensions may be shorter."""
    return tuple(slice(None) if d == dim else slice(0, n) for d, n in enumerate(shape))


def _scatter(input: Tensor, dim: int, index: Tensor, source, reduce: str | None) -> Tensor:
    d = wrap_dim(dim, input.ndim)
    array = input._read()
    if index.numel() == 0:
        return from_array(array, input.device, input.dtype)
    if input.ndim == 0:
        return _scatter(input.reshape(1), 0, index.reshape(1), _flat1(source), reduce).reshape(())
    where = _checked_gather(index, input.shape[d], d)
    if isinstance(source, Tensor):
        _same_dtype(input, source, "scatter")
        values = source._read()[tuple(slice(0, n) for n in index.shape)]
    else:
        values = mx.broadcast_to(checked_number(source, input.dtype), index.shape)
    places = [
        where
        if a == d
        else mx.reshape(mx.arange(n), [-1 if k == a else 1 for k in range(input.ndim)])
        for a, n in enumerate(index.shape)
    ]
    places = tuple(mx.broadcast_to(p, index.shape) for p in places)
    return from_array(assigned(array, places, values, reduce), input.device, input.dtype)


def _flat1(source):
    return source.reshape(1) if isinstance(source, Tensor) else source


@composite(inplace=True)
def scatter(input, dim, index, src=None, *, value=None, reduce=None):
    """`input` with `src` (tensor or number) written at the indices of a dimension.

    torch.scatter.
    """
    return _scatter(input, dim, index, value if src is None else src, reduce)


@composite(inplace=True)
def scatter_add(input, dim, index, src):
    """`input` with `src` added at the indices of a dimension. torch.scatter_add."""
    return _scatter(input, dim, index, src, "add")


def _along(input: Tensor, dim: int, index: Tensor, name: str):
    """The array, with at least one dimension, and the places that an index_ operation writes."""
    if index.ndim > 1:
        raise IndexError(f"{name}(): Index is supposed to be a vector, got {index.ndim} dims")
    d = wrap_dim(dim, input.ndim)
    array = input._read() if input.ndim else mx.reshape(input._read(), (1,))
    where = _checked_index(index, array.shape[d], name).reshape(-1)
    return array, (slice(None),) * d + (where,)


def _same_dtype(input: Tensor, source: Tensor, name: str) -> None:
    if source.dtype is not input.dtype:
        raise RuntimeError(
            f"{name}(): self and source expected to have the same dtype, but got (self) "
            f"{input.dtype.torch_name} and (source) {source.dtype.torch_name}"
        )


def _slices(source: Tensor, array: mx.array, places: tuple, name: str) -> mx.array:
    """The values that `source` brings to `places`: its shape must be array's but for the index."""
    values = source._read()
    if values.ndim == 0:
        values = mx.reshape(values, (1,))
    d, n = len(places) - 1, places[-1].size
    if values.ndim != array.ndim or values.shape[d] != n:
        error = IndexError if values.ndim == array.ndim and name == "index_copy" else RuntimeError
        raise error(
            f"{name}_(): Number of indices ({n}) should be equal to source.size(dim): "
            f"({values.shape[d] if d < values.ndim else 1}), for dim: {d}"
        )
    expected = (*array.shape[:d], n, *array.shape[d + 1 :])
    if values.shape != expected:
        raise RuntimeError(
            f"{name}_(): source has shape {list(values.shape)}, but {list(expected)} is needed"
        )
    return values


def _like_input(array: mx.array, input: Tensor) -> Tensor:
    return from_array(mx.reshape(array, input.shape), input.device, input.dtype)


@composite(inplace=True)
def index_add(input, dim, index, source, *, alpha=1):
    """`input` with the slices of `source` added at `index`. torch.index_add."""
    array, places = _along(input, dim, index, "index_add")
    _same_dtype(input, source, "index_add")
    values = _slices(source if alpha == 1 else source * alpha, array, places, "index_add")
    return _like_input(assigned(array, places, values, "add"), input)


@composite(inplace=True)
def index_copy(input, dim, index, source):
    """`input` with the slices of `source` written at `index`. torch.index_copy."""
    array, places = _along(input, dim, index, "index_copy")
    _same_dtype(input, source, "index_copy")
    values = _slices(source, array, places, "index_copy")
    return _like_input(assigned(array, places, values), input)


@composite(inplace=True)
def index_fill(input, dim, index, value):
    """`input` with a number written at `index`. torch.index_fill."""
    array, places = _along(input, dim, index, "index_fill")
    return _like_input(assigned(array, places, checked_number(_number(value), input.dtype)), input)


def _number(value):
    return value.item() if isinstance(value, Tensor) else value
