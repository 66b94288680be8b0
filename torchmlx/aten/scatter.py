"""Reading and writing along a dimension by index tensors: gather, scatter, the index_ family."""

from __future__ import annotations

import mlx.core as mx

from ..core import dtype as dtypes
from ..core import layout
from ..core.layout import wrap_dim
from ..core.op import checked_number, composite
from ..core.record import computed
from ..core.tensor import Tensor, from_array
from . import places as checks
from .index import assigned, check_bounds


@composite()
def index_select(input, dim, index):
    """Slices of a dimension at the given indices, a copy. torch.index_select."""
    checks.require_tensors("index_select", 2, index=index)
    d = wrap_dim(dim, input.ndim)
    source = _at_least_1d(input)
    where = _checked_select(input, d, index).reshape(-1)
    result = computed("index_select", lambda a: mx.take(a, where, axis=d), source)
    return result if input.ndim else result.reshape(())


def _checked_select(input: Tensor, dim: int, index: Tensor) -> mx.array:
    if index.ndim > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    if input.ndim == 0 and index.numel() != 1:
        raise RuntimeError(
            f"index_select(): Index to scalar can have only 1 value, got {index.numel()} value(s)"
        )
    if index.dtype not in checks.INDICES:
        raise RuntimeError("index_select(): Expected dtype int32 or int64 for index")
    size = input.shape[dim] if input.ndim else 1
    if size == 0 and index.numel():
        raise RuntimeError("index_select(): self indexing axis dim should be positive")
    return checks.within(index, size, lambda bad: IndexError("index out of range in self"))


@composite()
def take(input, index):
    """Elements of the flattened input at flat indices. torch.take."""
    checks.require_tensors("take", 1, index=index)
    where = checks.check_flat("take", input, index)
    return computed("take", lambda a: mx.take(a.reshape(-1), where), input)


@composite()
def gather(input, dim, index, *, sparse_grad=False):
    """out[i][j] = input[index[i][j]][j] for dim 0, and so on. torch.gather."""
    checks.require_tensors("gather", 2, index=index)
    d = wrap_dim(dim, input.ndim)
    if index.numel() == 0:
        none = mx.zeros(index.shape, input.dtype.mx)
        return computed("gather", lambda a: none, input)
    checks.check_gather(input, d, index)
    if input.ndim == 0:
        checks.along(index, 1, 0)
        return input.expand(index.shape).clone()
    where = checks.along(index, input.shape[d], d)
    if index.ndim == 0:
        return computed("gather", lambda a: mx.take(a, where), input)
    corner = _corner(index.shape, d)
    return computed("gather", lambda a: mx.take_along_axis(a[corner], where, axis=d), input)


def _corner(shape, dim: int):
    """The part of the input that an index of `shape` reads: other dimensions may be shorter."""
    return tuple(slice(None) if d == dim else slice(0, n) for d, n in enumerate(shape))


def _scatter(input: Tensor, dim: int, index: Tensor, source, reduce: str | None) -> Tensor:
    d = wrap_dim(dim, input.ndim)
    checks.check_scatter(input, d, index, source)
    if index.numel() == 0:
        return input.clone()
    base, index = _at_least_1d(input), _at_least_1d(index)
    where = checks.along(index, base.shape[d], d)
    if isinstance(source, Tensor):
        source = _at_least_1d(source)
    else:
        number = from_array(checked_number(source, input.dtype), input.device, input.dtype)
        source = number.expand(index.shape)
    places = grid(where, d)
    corner = tuple(slice(0, n) for n in index.shape)
    name = "scatter_add" if reduce == "add" else "scatter"
    result = computed(name, lambda a, v: assigned(a, places, v[corner], reduce), base, source)
    return result if input.ndim else result.reshape(())


def grid(index: mx.array, dim: int) -> tuple[mx.array, ...]:
    """The places that scatter's index along `dim` names: one index array per dimension."""
    places = (
        index
        if a == dim
        else mx.reshape(mx.arange(n), [-1 if k == a else 1 for k in range(index.ndim)])
        for a, n in enumerate(index.shape)
    )
    return tuple(mx.broadcast_to(p, index.shape) for p in places)


@composite(inplace=True)
def scatter(input, dim, index, src=None, *, value=None, reduce=None):
    """`input` with `src` (tensor or number) written at the indices of a dimension.

    torch.scatter.
    """
    checks.require_tensors("scatter", 2, index=index)
    source = value if src is None else src
    if not isinstance(source, (Tensor, bool, int, float, complex)):
        raise TypeError(
            "scatter(): argument 'src' (position 3) must be Tensor or Number, "
            f"not {type(source).__name__}"
        )
    if reduce not in (None, "add", "multiply"):
        raise RuntimeError("reduce argument must be either add or multiply.")
    return _scatter(input, dim, index, source, reduce)


@composite(inplace=True)
def scatter_add(input, dim, index, src):
    """`input` with `src` added at the indices of a dimension. torch.scatter_add."""
    checks.require_tensors("scatter_add", 2, index=index, src=src)
    return _scatter(input, dim, index, src, "add")


def _at_least_1d(x: Tensor) -> Tensor:
    return x if x.ndim else x.reshape(1)


def _written(input: Tensor, dim: int, where: mx.array, source: Tensor, name: str, reduce=None):
    """`input` with the slices of `source` written (or reduced) at `where` along dim."""
    base, values = _at_least_1d(input), _at_least_1d(source)
    if input.ndim and not source.ndim:  # one element, for a dimension of one
        values = values.expand((*base.shape[:dim], 1, *base.shape[dim + 1 :]))
    places = (slice(None),) * dim + (where.reshape(-1),)
    result = computed(name, lambda a, v: assigned(a, places, v, reduce), base, values)
    return result.reshape(input.shape)


def _length(input: Tensor, dim: int) -> int:
    return input.shape[dim] if input.ndim else 1


@composite(inplace=True)
def index_add(input, dim, index, source, *, alpha=1):
    """`input` with the slices of `source` added at `index`. torch.index_add."""
    checks.require_tensors("index_add", 2, index=index, source=source)
    d = wrap_dim(dim, input.ndim)
    checks.check_slices("index_add_", input, d, index, source)
    size = _length(input, d)

    def message(bad):
        if input.ndim > 1:
            return RuntimeError(checks.out_of_bounds(bad, d, size))
        return IndexError("index out of range in self")

    where = checks.within(index, size, message)
    if alpha != 1:
        source = source * (alpha if source.dtype.category >= dtypes.FLOAT else int(alpha))
        source = source.to(input.dtype)
    return _written(input, d, where, source, "index_add", "add")


@composite(inplace=True)
def index_copy(input, dim, index, source):
    """`input` with the slices of `source` written at `index`. torch.index_copy."""
    checks.require_tensors("index_copy", 2, index=index, source=source)
    d = wrap_dim(dim, input.ndim)
    checks.check_index_copy(input, d, index, source)
    size = _length(input, d)

    def message(bad):
        return IndexError("index_copy_(): " + checks.out_of_bounds(bad, d, size))

    return _written(input, d, checks.within(index, size, message), source, "index_copy")


@composite(inplace=True)
def index_fill(input, dim, index, value):
    """`input` with a number written at `index`. torch.index_fill."""
    checks.require_tensors("index_fill", 2, index=index)
    d = wrap_dim(dim, input.ndim)
    if index.dtype is not dtypes.int64:
        raise IndexError("index_fill_(): Expected dtype int64 for index.")
    if index.ndim > 1:
        raise RuntimeError("Index has to be a vector/scalar")
    value = _fill_value(value, input)
    base, where = _at_least_1d(input), index._read().reshape(-1)
    size = base.shape[d]
    check_bounds(
        where, size, index.device, lambda bad: IndexError(checks.out_of_bounds(bad, d, size))
    )
    no, yes = mx.zeros(base.shape, mx.bool_), mx.array(True)
    written = assigned(no, (slice(None),) * d + (where,), yes) if where.size else no
    result = computed(
        "index_fill", _filled, base, value, from_array(written, base.device),
        strides=layout.preserved(base.shape, base._strides),
    )  # fmt: skip
    return result.reshape(input.shape)


def _filled(input, value, written):
    return mx.where(written, value.astype(input.dtype), input)


def _fill_value(value, input: Tensor) -> Tensor:
    if isinstance(value, Tensor) and value.ndim:
        raise RuntimeError(
            "index_fill_ only supports a 0-dimensional value tensor, but got tensor with "
            f"{value.ndim} dimension(s)."
        )
    imaginary = value.dtype.is_complex if isinstance(value, Tensor) else isinstance(value, complex)
    if imaginary and not input.dtype.is_complex:
        raise RuntimeError(
            "index_fill_(): Converting complex Scalar to non-complex type is not supported"
        )
    if isinstance(value, Tensor):
        return value
    return from_array(checked_number(value, input.dtype), input.device, input.dtype)
