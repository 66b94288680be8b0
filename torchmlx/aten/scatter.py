"""Reading and writing along a dimension by index tensors: gather, scatter, the index_ family."""

from __future__ import annotations

import mlx.core as mx

from ..core import dtype as dtypes
from ..core.layout import wrap_dim
from ..core.op import checked_number, composite
from ..core.record import computed
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
    result = computed("index_select", lambda a: mx.take(a, where, axis=d), source)
    return result.reshape(()) if input.ndim == 0 else result


@composite()
def take(input, index):
    """Elements of the flattened input at flat indices. torch.take."""
    where = _checked_index(index, input.numel(), "take")
    return computed("take", lambda a: mx.take(a.reshape(-1), where), input)


@composite()
def gather(input, dim, index, *, sparse_grad=False):
    """out[i][j] = input[index[i][j]][j] for dim 0, and so on. torch.gather."""
    d = wrap_dim(dim, input.ndim)
    if index.numel() == 0:
        none = mx.zeros(index.shape, input.dtype.mx)
        return computed("gather", lambda a: none, input)
    if index.dtype not in (dtypes.int64, dtypes.int32):
        raise RuntimeError("gather(): Expected dtype int64 for index")
    if input.ndim == 0:
        return input.expand(index.shape).clone()
    where = _checked_gather(index, input.shape[d], d)
    corner = _corner(index.shape, d)
    return computed("gather", lambda a: mx.take_along_axis(a[corner], where, axis=d), input)


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
    if index.numel() == 0:
        return input.clone()
    if input.ndim == 0:
        return _scatter(input.reshape(1), 0, index.reshape(1), _flat1(source), reduce).reshape(())
    where = _checked_gather(index, input.shape[d], d)
    if isinstance(source, Tensor):
        _same_dtype(input, source, "scatter")
    else:
        number = from_array(checked_number(source, input.dtype), input.device, input.dtype)
        source = number.expand(index.shape)
    places = [
        where
        if a == d
        else mx.reshape(mx.arange(n), [-1 if k == a else 1 for k in range(input.ndim)])
        for a, n in enumerate(index.shape)
    ]
    places = tuple(mx.broadcast_to(p, index.shape) for p in places)
    corner = tuple(slice(0, n) for n in index.shape)
    name = "scatter_add" if reduce == "add" else "scatter"
    return computed(name, lambda a, v: assigned(a, places, v[corner], reduce), input, source)


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


def _along(input: Tensor, dim: int, index: Tensor, name: str) -> tuple:
    """The places that an index_ operation writes, in an input of at least one dimension."""
    if index.ndim > 1:
        raise IndexError(f"{name}(): Index is supposed to be a vector, got {index.ndim} dims")
    d = wrap_dim(dim, input.ndim)
    where = _checked_index(index, input.shape[d] if input.ndim else 1, name).reshape(-1)
    return (slice(None),) * d + (where,)


def _same_dtype(input: Tensor, source: Tensor, name: str) -> None:
    if source.dtype is not input.dtype:
        raise RuntimeError(
            f"{name}(): self and source expected to have the same dtype, but got (self) "
            f"{input.dtype.torch_name} and (source) {source.dtype.torch_name}"
        )


def _check_slices(values: Tensor, array: Tensor, places: tuple, name: str) -> None:
    """The shape of the values brought to `places` must be array's but for the index."""
    d, n = len(places) - 1, places[-1].size
    if values.ndim != array.ndim or values.shape[d] != n:
        error = IndexError if values.ndim == array.ndim and name == "index_copy" else RuntimeError
        raise error(
            f"{name}_(): Number of indices ({n}) should be equal to source.size(dim): "
            f"({values.shape[d] if d < values.ndim else 1}), for dim: {d}"
        )
    expected = (*array.shape[:d], n, *array.shape[d + 1 :])
    if tuple(values.shape) != expected:
        raise RuntimeError(
            f"{name}_(): source has shape {list(values.shape)}, but {list(expected)} is needed"
        )


def _at_least_1d(x: Tensor) -> Tensor:
    return x if x.ndim else x.reshape(1)


def _written(input: Tensor, places: tuple, source: Tensor, name: str, reduce=None) -> Tensor:
    """`input` with the slices of `source` written (or reduced) at `places`."""
    _same_dtype(input, source, name)
    base, values = _at_least_1d(input), _at_least_1d(source)
    _check_slices(values, base, places, name)
    result = computed(name, lambda a, v: assigned(a, places, v, reduce), base, values)
    return result.reshape(input.shape)


@composite(inplace=True)
def index_add(input, dim, index, source, *, alpha=1):
    """`input` with the slices of `source` added at `index`. torch.index_add."""
    places = _along(input, dim, index, "index_add")
    return _written(input, places, source if alpha == 1 else source * alpha, "index_add", "add")


@composite(inplace=True)
def index_copy(input, dim, index, source):
    """`input` with the slices of `source` written at `index`. torch.index_copy."""
    return _written(input, _along(input, dim, index, "index_copy"), source, "index_copy")


@composite(inplace=True)
def index_fill(input, dim, index, value):
    """`input` with a number written at `index`. torch.index_fill."""
    places = _along(input, dim, index, "index_fill")
    if not isinstance(value, Tensor):
        value = from_array(checked_number(value, input.dtype), input.device, input.dtype)
    base = _at_least_1d(input)
    kind = base.dtype.mx
    no, yes = mx.zeros(base.shape, mx.bool_), mx.array(True)
    written = assigned(no, places, yes) if places[-1].size else no
    result = computed("index_fill", lambda a, v: mx.where(written, v.astype(kind), a), base, value)
    return result.reshape(input.shape)
