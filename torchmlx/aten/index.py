"""Indexing: `x[...]`, `x[...] = v`, gather, scatter, index_select and their relatives.

Ints, slices, None and Ellipsis make views; tensors, lists and masks gather. Masks and nonzero are
read on the host, since their result's size depends on the data. On the CPU an index out of range is
torch's IndexError (MLX would answer 0); on a GPU, as in torch, it is not checked.
"""

from __future__ import annotations

from contextlib import nullcontext

import mlx.core as mx
import numpy as np

from ..core import device as devices
from ..core import dtype as dtypes
from ..core import layout, views
from ..core.op import checked_number, composite
from ..core.overlap import check_apart, in_rounds
from ..core.record import computed, needed, snapshot
from ..core.tensor import Tensor, check_leaf_write, from_array
from ._calling import chosen, host
from .convert import cast_array


def check_bounds(
    index: mx.array, size: int, where: devices.device, message, least: int | None = None
) -> None:
    """Raise `message(first bad index)` if a CPU index is outside [least, size); least is -size."""
    if where.type != "cpu" or index.size == 0:
        return
    low, high = mx.min(index), mx.max(index)
    mx.eval(low, high)
    for bad in (low.item(), high.item()):
        if not (-size if least is None else least) <= int(bad) < size:  # type: ignore[arg-type]
            raise message(bad)


# ---- basic indexing: views

_PLAIN = {int, slice, type(None), type(Ellipsis)}


def _plain_view(x: Tensor, items) -> Tensor:
    """The view that ints, slices, Nones and at most one Ellipsis make."""
    shape, strides, offset = x.shape, x._strides_or_contiguous, x._offset
    picks, kept, kept_strides = [], [], []
    whole, inserted, d = True, [], 0
    missing = len(shape) - len(items) + items.count(None) + items.count(Ellipsis)
    if missing < 0:
        raise _too_many(x)
    if items.count(Ellipsis) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    for item in items:
        if type(item) is int:
            n = shape[d]
            if not -n <= item < n:
                raise _out_of_range(x, item, d)
            i = item + n if item < 0 else item
            offset += i * strides[d]
            picks.append(i)
            whole = False
            d += 1
        elif type(item) is slice:
            n = shape[d]
            start, stop, step = _bounds(item, n)
            whole = whole and stop - start == n and step == 1
            picks.append(slice(start, stop, step))
            kept.append(-(-(stop - start) // step))
            kept_strides.append(strides[d] * step)
            offset += start * strides[d]
            d += 1
        elif item is None:
            inserted.append(len(kept))
            kept.append(1)
            kept_strides.append(shape[d] * strides[d] if d < len(shape) else 1)
        else:
            picks.extend([slice(None)] * missing)
            kept.extend(shape[d : d + missing])
            kept_strides.extend(strides[d : d + missing])
            d += missing
    kept.extend(shape[d:])
    kept_strides.extend(strides[d:])
    return _indexed(x, picks, whole, inserted, tuple(kept), tuple(kept_strides), offset)


def _indexed(x: Tensor, picks, whole, inserted, kept, strides, offset) -> Tensor:
    """The view: an Index step, a Reshape for inserted dimensions, or both."""
    if whole:
        return x._view(views.Reshape(tuple(x.shape), kept), kept, strides, offset)
    step = views.Index(tuple(picks))
    if not inserted:
        return x._view(step, kept, strides, offset)
    middle = tuple(n for i, n in enumerate(kept) if i not in inserted)
    view = x._view(step, middle, None, offset)
    return view._view(views.Reshape(middle, kept), kept, strides, offset)


def _out_of_range(x: Tensor, index: int, dim: int) -> IndexError:
    return IndexError(
        f"index {index} is out of bounds for dimension {dim} with size {x.shape[dim]}"
    )


def _too_many(x: Tensor) -> IndexError:
    if x.ndim:
        return IndexError(f"too many indices for tensor of dimension {x.ndim}")
    return IndexError(
        "invalid index of a 0-dim tensor. Use `tensor.item()` in Python or `tensor.item<T>()` in "
        "C++ to convert a 0-dim tensor to a number"
    )


def _bounds(item: slice, size: int) -> tuple[int, int, int]:
    start, stop, step = item.start, item.stop, item.step
    if step is not None and _as_int(step) <= 0:
        raise ValueError("step must be greater than zero")
    if not (type(start) is int or start is None) or not (type(stop) is int or stop is None):
        item = slice(_maybe_int(start), _maybe_int(stop), step)
    start, stop, step = item.indices(size)
    return start, max(start, stop), step


def _maybe_int(value) -> int | None:
    return None if value is None else _as_int(value)


def _as_int(value) -> int:
    if isinstance(value, float):
        raise TypeError("slice indices must be integers or None or have an __index__ method")
    return value.__index__()


def basic(x: Tensor, items) -> tuple[Tensor, list]:
    """Apply the ints, slices and Nones of an index.

    Returns the view and, per remaining dimension, its index tensor or None.
    """
    items = [_as_item(i, x.device) for i in items]
    plain, rest = [], []
    for item in _expand_ellipsis(x, items):
        if isinstance(item, Tensor):
            plain.extend([slice(None)] * _dims_used(item))
            rest.append(item)
        elif isinstance(item, bool):
            plain.append(None)
            rest.append(from_array(mx.array([item]), x.device))
        else:
            plain.append(item)
            if type(item) is not int:
                rest.append(None)
    return _plain_view(x, plain), rest


def _as_item(item, where):
    """An index's item as an int, bool, slice, None, Ellipsis or Tensor with dimensions."""
    kind = type(item)
    if kind in _PLAIN or kind is bool:
        return item
    if isinstance(item, Tensor):
        if item.ndim or item.dtype.category != dtypes.INTEGER:
            if item.ndim == 0 and item.dtype is dtypes.bool_:
                return bool(item)
            return item
        return int(item) if item.dtype is not dtypes.uint8 else bool(item)
    if isinstance(item, (np.bool_, np.integer)) or (kind is np.ndarray and item.ndim == 0):
        return item.item()
    if isinstance(item, (list, range, tuple, np.ndarray)):
        array = np.asarray([int(i) if isinstance(i, Tensor) else i for i in item])
        return from_array(mx.array(array if array.size else array.astype(np.int64)), where)
    if hasattr(item, "__index__"):
        return item.__index__()
    if kind is str:
        raise TypeError("new(): invalid data type 'str'")
    raise IndexError(
        "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid "
        f"indices (got {kind.__name__})"
    )


def _expand_ellipsis(x: Tensor, items: list) -> list:
    """The index with Ellipsis replaced and padded with full slices; a mask counts all its dims."""
    used = sum(_dims_used(i) for i in items)
    if used > x.ndim:
        raise _too_many(x)
    full = [slice(None)] * (x.ndim - used)
    where = [k for k, i in enumerate(items) if i is Ellipsis]
    if len(where) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if where:
        return items[: where[0]] + full + items[where[0] + 1 :]
    return items + full


def _dims_used(item) -> int:
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    if isinstance(item, Tensor):
        return item.ndim if item.dtype in (dtypes.bool_, dtypes.uint8) else 1
    return 1


# ---- advanced indexing: gathers


def _expand_masks(x: Tensor, rest: list) -> list:
    """Masks become one integer index per dimension they cover."""
    result = []
    d = 0
    for item in rest:
        if item is None:
            result.append(None)
            d += 1
        elif item.dtype in (dtypes.bool_, dtypes.uint8):
            _check_mask(x, item, d)
            columns = nonzero_arrays(item)
            if item.ndim == 0:
                result.append(from_array(columns[0], x.device))
                d += 1
            else:
                result.extend(from_array(c, x.device) for c in columns)
                d += item.ndim
        else:
            if item.dtype not in (dtypes.int64, dtypes.int32):
                raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
            result.append(item)
            d += 1
    return result


def _check_mask(x: Tensor, mask: Tensor, dim: int) -> None:
    for k in range(mask.ndim):
        if mask.shape[k] != x.shape[dim + k]:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {k} does not match the shape "
                f"of the indexed tensor {list(x.shape)} at index {dim + k}"
            )


def nonzero_arrays(mask: Tensor) -> list[mx.array]:
    """Indices of the nonzero elements, one int64 array per dimension. Evaluates on the host."""
    array = host(mask._host())
    return [mx.array(c.astype(np.int64)) for c in np.nonzero(np.atleast_1d(array))]


def _index_shape(shapes) -> tuple[int, ...]:
    try:
        return layout.broadcast_shapes(*shapes)
    except RuntimeError:
        listed = ", ".join(str(list(s)) for s in shapes)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {listed}"
        ) from None


_REDUCE = {
    "add": "add", "sum": "add", "multiply": "multiply", "prod": "multiply",
    "amax": "maximum", "amin": "minimum",
}  # fmt: skip


def assigned(array: mx.array, places: tuple, values: mx.array, reduce: str | None = None):
    """`array` with `values` written (or reduced into it) at `places`.

    Nothing to write is handled here: MLX divides by zero then.
    """
    if array.size == 0 or values.size == 0:
        return array
    if reduce is not None:
        return getattr(array.at[places], _REDUCE[reduce])(values)
    result = array[...]
    result[places] = values
    return result


class _Plan:
    """How to gather: indexed dimensions brought to the front, and where their result belongs."""

    def __init__(self, x: Tensor, rest: list):
        indices = _expand_masks(x, rest)
        self.dims = [d for d, i in enumerate(indices) if i is not None]
        self.others = [d for d in range(x.ndim) if d not in self.dims]
        self.indices = [indices[d] for d in self.dims]
        shape = _index_shape([i.shape for i in self.indices])
        empty = 0 in shape or any(x.shape[d] == 0 for d in self.others)  # nothing is read
        arrays = [
            self._checked(x, d, i, not empty) for d, i in zip(self.dims, self.indices, strict=True)
        ]
        self.arrays = [mx.broadcast_to(a, shape) for a in arrays]
        self.order = (*self.dims, *self.others)
        adjacent = self.dims == list(range(self.dims[0], self.dims[-1] + 1))
        lead = self.lead = self.dims[0] if adjacent else 0
        n = len(shape)
        rest_axes = list(range(n, n + len(self.others)))
        # Axes of the gathered array [index dims, other dims] in the order of the result.
        self.result_axes = (*rest_axes[:lead], *range(n), *rest_axes[lead:])

    @staticmethod
    def _checked(x: Tensor, dim: int, index: Tensor, check: bool) -> mx.array:
        size = x.shape[dim]
        array = index._read()
        if check:
            check_bounds(
                array, size, x.device,
                lambda bad: IndexError(
                    f"index {bad} is out of bounds for dimension {dim} with size {size}"
                ),
            )  # fmt: skip
        if array.dtype not in (mx.int32, mx.int64):
            array = array.astype(mx.int64)
        return mx.where(array < 0, array + size, array)

    def gather(self, array: mx.array) -> mx.array:
        taken = mx.transpose(array, self.order)[tuple(self.arrays)]
        return mx.transpose(taken, self.result_axes)

    def strides(self, x: Tensor) -> tuple[int, ...] | None:
        """Strides of the gathered result: x's and the indices' order of dimensions is kept."""
        if x._strides is None and all(i._strides is None for i in self.indices):
            return None
        shape, n = self.arrays[0].shape, self.arrays[0].ndim
        lead, rest = self.others[: self.lead], self.others[self.lead :]
        own = x._strides_or_contiguous
        sizes = (*(x.shape[d] for d in lead), *shape, *(x.shape[d] for d in rest))
        operands = [(sizes, (*(own[d] for d in lead), *(0,) * n, *(own[d] for d in rest)))]
        for i in self.indices:
            strides = layout.aligned(shape, i.shape, i._strides_or_contiguous)
            operands.append((sizes, (*(0,) * len(lead), *strides, *(0,) * len(rest))))
        return layout.pointwise_strides(sizes, operands)

    def put(self, array: mx.array, values: mx.array, accumulate: bool = False) -> mx.array:
        shape = (*self.arrays[0].shape, *(array.shape[d] for d in self.others))
        in_result = tuple(shape[a] for a in self.result_axes)
        back = sorted(range(len(self.result_axes)), key=self.result_axes.__getitem__)
        try:
            values = mx.transpose(mx.broadcast_to(values, in_result), back)
        except ValueError:
            raise RuntimeError(
                f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast "
                f"to indexing result of shape {list(in_result)}"
            ) from None
        moved = mx.transpose(array, self.order)
        moved = assigned(moved, tuple(self.arrays), values, "add" if accumulate else None)
        return mx.transpose(moved, sorted(range(len(self.order)), key=self.order.__getitem__))


def _items(index) -> tuple:
    """The index per dimension; a list that holds sequences, tensors or slices is a tuple."""
    if type(index) is tuple:
        return index
    if type(index) is list and any(
        isinstance(i, (list, tuple, slice, Tensor, np.ndarray)) or i is None or i is Ellipsis
        for i in index
    ):
        return tuple(index)
    return (index,)


def getitem(x: Tensor, index) -> Tensor:
    """x[index]: a view for ints, slices, None and Ellipsis; a new tensor otherwise."""
    items = _items(index)
    for item in items:
        if type(item) not in _PLAIN:
            break
    else:
        return _plain_view(x, items)
    target, rest = basic(x, items)
    if all(i is None for i in rest):
        return target
    with devices.stream_of(x.device) if devices.STREAMS else nullcontext():
        plan = _Plan(target, rest)
        return computed("index", plan.gather, target, strides=plan.strides(target))


def setitem(x: Tensor, index, value) -> None:
    """x[index] = value, in place, through views."""
    check_leaf_write(x)
    target, rest = basic(x, _items(index))
    source = value if isinstance(value, Tensor) else None
    if all(i is None for i in rest):
        if source is not None and source.shape == target.shape:
            check_apart(target, (source,))
        target._write(_broadcast_value(_values(value, x), target), source)
        return
    plan = _Plan(target, rest)
    mask = _whole_mask(target, rest)
    number = not isinstance(value, Tensor) or value.numel() == 1
    if mask is not None and number:
        _assign(target, lambda a, v: chosen(mask, mx.reshape(v, ()), a), value, "masked_fill")
        return
    if isinstance(value, Tensor):
        _same_dtype(x, value)
        check_apart(target, (value, *plan.indices), wholly=True)
    _assign(target, plan.put, value, "index_put")


def _same_dtype(x: Tensor, values: Tensor) -> None:
    if values.dtype is not x.dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{x.dtype.torch_name} for the destination and {values.dtype.torch_name} for the "
            "source."
        )


def _assign(target: Tensor, put, value, name: str) -> None:
    """Overwrite target with put(its array, value's array), as the method NAME_ does."""
    if not isinstance(value, Tensor):
        value = from_array(_values(value, target), target.device, target.dtype)
    before = snapshot(target) if needed((target, value)) else target
    dtypes_ = value.dtype, target.dtype

    def compute() -> Tensor:
        return computed("index_put", lambda a, v: put(a, cast_array(v, *dtypes_)), before, value)

    if target._strides is None or before is not target or not in_rounds(name, target, compute):
        result = compute()
        target._write(result._read(), result, fresh=True)


def _values(value, x: Tensor) -> mx.array:
    if isinstance(value, Tensor):
        return cast_array(value._read(), value.dtype, x.dtype)
    if isinstance(value, (bool, int, float, complex, np.integer)):
        if x.dtype.is_floating_point and not x.dtype.opaque and not isinstance(value, complex):
            return mx.array(float(value), x.dtype.mx)  # infinity where it does not fit
        return checked_number(value, x.dtype)
    raise TypeError(f"can't assign a {_type_name(value)} to a {x.type()}")


def _type_name(value) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _broadcast_value(values: mx.array, target: Tensor) -> mx.array:
    shape = tuple(target.shape)
    while values.ndim > len(shape) and values.shape[0] == 1:
        values = mx.reshape(values, values.shape[1:])
    try:
        return mx.broadcast_to(values, shape)
    except ValueError:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
            f"indexing result of shape {list(shape)}"
        ) from None


def _whole_mask(x: Tensor, rest: list) -> mx.array | None:
    """The mask, broadcastable to x, when it is the only index and covers leading dimensions."""
    masks = [i for i in rest if i is not None]
    if len(masks) != 1 or masks[0].dtype is not dtypes.bool_ or rest[0] is None:
        return None
    mask = masks[0]
    if mask.ndim == 0:
        return None
    _check_mask(x, mask, 0)
    return mx.reshape(mask._read(), (*mask.shape, *(1,) * (x.ndim - mask.ndim)))


@composite()
def nonzero(input, *, as_tuple=False):
    """Indices of nonzero elements, int64 [n, ndim] or one tensor per dimension. Evaluates.

    torch.nonzero.
    """
    columns = nonzero_arrays(input)
    if as_tuple:
        return tuple(from_array(c, input.device) for c in columns)
    if input.ndim == 0:
        return from_array(mx.zeros((columns[0].size, 0), mx.int64), input.device)
    return from_array(mx.stack(columns, axis=1), input.device)


@composite()
def argwhere(input):
    """nonzero(input). torch.argwhere."""
    return nonzero(input)


@composite(inplace=True)
def index_put(input, indices, values, accumulate=False):
    """`input` with `values` written (or added) at a tuple of index tensors. torch.index_put."""
    if not isinstance(indices, (tuple, list)):
        raise TypeError(
            "index_put(): argument 'indices' (position 1) must be tuple of Tensors, "
            f"not {type(indices).__name__}"
        )
    if not isinstance(values, Tensor):
        raise TypeError(
            "index_put(): argument 'values' (position 2) must be Tensor, "
            f"not {type(values).__name__}"
        )
    target, rest = basic(input, tuple(indices))
    if all(i is None for i in rest):
        raise IndexError("index_put(): at least one index must be a tensor")
    _same_dtype(input, values)
    plan = _Plan(target, rest)
    return computed("index_put", lambda a, v: plan.put(a, v, accumulate), target, values)
