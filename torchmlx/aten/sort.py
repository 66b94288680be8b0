"""Order: sort, top k, order statistics.

NaN is the largest number, and equal elements keep their order.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from .. import return_types
from ..core import dtype as dtypes
from ..core.op import composite, op
from ._calling import (
    along,
    collapse,
    host,
    is_float,
    no_elements,
    numpy_names,
    picked,
    reduced_axes,
)


def sort_keys(x: mx.array) -> mx.array:
    """Integers in x's order: MLX puts NaN anywhere, torch puts it last. -0.0 and 0.0 are equal."""
    if x.dtype == mx.bool_:
        return x.astype(mx.uint8)
    if not is_float(x):
        return x
    if x.dtype == mx.complex64:
        raise NotImplementedError("\"sort_stable\" not implemented for 'ComplexFloat'")
    bits, largest = (mx.int64, 2**63 - 1) if x.dtype == mx.float64 else (mx.int32, 2**31 - 1)
    x = mx.stop_gradient(x if x.dtype == mx.float64 else x.astype(mx.float32))
    key = mx.view(mx.where(x == 0, mx.zeros((), x.dtype), x), bits)
    key = mx.where(key < 0, mx.bitwise_xor(key, mx.array(largest, bits)), key)
    return mx.where(mx.isnan(x), mx.array(largest, bits), key)


def order(x: mx.array, axis: int, descending: bool) -> mx.array:
    """Stable sorting permutation (int64) along an axis."""
    keys = sort_keys(x)
    return mx.argsort(mx.bitwise_invert(keys) if descending else keys, axis=axis).astype(mx.int64)


@op("_sort", at=(), pointwise=True)
def _sort(input, dim, descending):
    def sorted_along(x, axis):
        index = order(x, axis, descending)
        return picked(x, index, axis=axis), index

    return return_types.make("sort", *along(input, dim, sorted_along))


@composite()
@numpy_names
def sort(input, dim=-1, descending=False, stable=False):
    """(values, indices) along dim; always stable. torch.sort."""
    return _sort(input, dim, bool(descending))


@op()
@numpy_names
def argsort(input, dim=-1, descending=False, stable=False):
    """The indices that sort along dim, int64; always stable. torch.argsort."""
    return along(input, dim, lambda x, axis: order(x, axis, descending))


@op()
def msort(input):
    """Sorted along the first dimension. torch.msort."""
    return along(input, 0, lambda x, d: picked(x, order(x, d, False), axis=d))


# Selecting first pays once sorting a row costs more than partitioning it.
_PARTITION = 1024


@op()
@numpy_names
def topk(input, k, dim=-1, largest=True, sorted=True):
    """(values, indices) of the k largest or smallest elements along dim, in order. torch.topk."""
    if input.dtype == mx.bool_:
        raise RuntimeError("topk does not support bool dtypes on CPU")
    axes = reduced_axes(dim, input.ndim)
    size = input.shape[axes[0]] if input.ndim else 1
    if not 0 <= k <= size:
        raise RuntimeError("selected index k out of range")

    def top(x, axis):
        index = _partitioned(x, k, axis, largest) if 4 * k < size > _PARTITION else None
        if index is None:
            index = mx.split(order(x, axis, largest), [k], axis=axis)[0]
        return picked(x, index, axis=axis), index

    return return_types.make("topk", *along(input, dim, top))


def _partitioned(x: mx.array, k: int, axis: int, largest: bool) -> mx.array | None:
    if k == 0:
        return None
    keys = sort_keys(x)
    keys = mx.bitwise_invert(keys) if largest else keys
    index = mx.split(mx.argpartition(keys, k - 1, axis=axis), [k], axis=axis)[0]
    index = mx.sort(index, axis=axis)  # among equals, the first come first
    best = mx.argsort(mx.take_along_axis(keys, index, axis=axis), axis=axis)
    return mx.take_along_axis(index, best, axis=axis).astype(mx.int64)


def _at(x: mx.array, axis: int, position, keepdim: bool):
    """(value, index) of the elements at a sorted position (an int, or one for each row)."""
    index = order(x, axis, False)
    where = list(x.shape)
    where[axis] = 1
    position = mx.broadcast_to(mx.array(position, mx.int64), where)
    index = mx.take_along_axis(index, position, axis=axis)
    value = picked(x, index, axis=axis)
    return (value, index) if keepdim else (mx.squeeze(value, axis), mx.squeeze(index, axis))


def _selected(name: str, x: mx.array, dim: int, keepdim: bool, position):
    """The named tuple of the elements at position(row array, axis)."""
    no_elements(name, x.shape, reduced_axes(dim, x.ndim))
    picked = along(x, dim, lambda a, d: _at(a, d, position(a, d), keepdim or x.ndim == 0))
    return return_types.make(name, *picked)


@op()
@numpy_names
def kthvalue(input, k, dim=-1, keepdim=False):
    """(values, indices) of the k-th smallest elements along dim, k from 1. torch.kthvalue."""
    size = input.shape[reduced_axes(dim, input.ndim)[0]] if input.ndim else 1
    if input.dtype == mx.bool_:
        raise NotImplementedError("\"kthvalue_cpu\" not implemented for 'Bool'")
    no_elements("kthvalue", input.shape, reduced_axes(dim, input.ndim))
    if not 1 <= k <= size:
        raise RuntimeError("kthvalue(): selected number k out of range for dimension " + str(dim))
    return _selected("kthvalue", input, dim, keepdim, lambda x, d: k - 1)


def _middle(x: mx.array, axis: int) -> mx.array:
    """Where the lower median is in sorted order: at the first NaN if there is one."""
    n = x.shape[axis]
    if not is_float(x):
        return mx.array((n - 1) // 2)
    nans = collapse(mx.sum, mx.isnan(x).astype(mx.int64), axis, True)
    return mx.where(nans > 0, n - nans, (n - 1) // 2)


def _middle_of_numbers(x: mx.array, axis: int) -> mx.array:
    if not is_float(x):
        return _middle(x, axis)
    numbers = collapse(mx.sum, mx.logical_not(mx.isnan(x)).astype(mx.int64), axis, True)
    return mx.maximum(numbers - 1, 0) // 2


def _median(name: str, position):
    @op("_" + name, at=())
    def along_dim(input, dim, keepdim):
        return _selected(name, input, dim, keepdim, position)

    @op(f"_{name}_all", at=())
    def of_all(input):
        if input.size == 0:
            return mx.array(float("nan") if is_float(input) else 0).astype(input.dtype)
        flat = mx.reshape(input, (-1,))
        return _at(flat, 0, position(flat, 0), False)[0]

    @composite(name)
    @numpy_names
    def median(input, dim=None, keepdim=False):
        if input.dtype.category in (dtypes.BOOL, dtypes.COMPLEX):
            kernel = "median_cpu" if dim is None else "median_out"
            raise NotImplementedError(
                f"\"{kernel}\" not implemented for '{input.dtype.torch_name}'"
            )
        return of_all(input) if dim is None else along_dim(input, dim, keepdim)

    what = "NaN if there is one" if name == "median" else "NaN ignored"
    median.__doc__ = f"The lower median ({what}); (values, indices) along dim. torch.{name}."


_median("median", _middle)
_median("nanmedian", _middle_of_numbers)


@op()
@numpy_names
def mode(input, dim=-1, keepdim=False):
    """(values, indices) of the most frequent element along dim, the smallest of several.

    torch.mode.
    """

    def commonest(x, axis):
        rows = np.moveaxis(host(x), axis, -1)
        flat = rows.reshape(-1, rows.shape[-1])
        index = np.array([_mode_index(r) for r in flat], np.int64).reshape(rows.shape[:-1])
        where = mx.expand_dims(mx.array(index), axis)
        value = picked(x, where, axis=axis)
        if keepdim or input.ndim == 0:
            return value, where
        return mx.squeeze(value, axis), mx.squeeze(where, axis)

    no_elements("mode", input.shape, reduced_axes(dim, input.ndim))
    return return_types.make("mode", *along(input, dim, commonest))


def _mode_index(row: np.ndarray) -> int:
    values, counts = np.unique(row, return_counts=True, equal_nan=False)
    value = values[counts.argmax()]
    found = np.isnan(row) if value != value else row == value
    return int(np.flatnonzero(found)[-1])


# ---- quantiles

_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantile(
    name: str, input: mx.array, q, dim, keepdim: bool, interpolation: str, skip_nan: bool
):
    if interpolation not in _INTERPOLATIONS:
        raise RuntimeError(
            f"{name}() interpolation must be one of linear, lower, higher, midpoint or "
            "nearest, but got "
            f"{interpolation}"
        )
    if input.size == 0:
        raise RuntimeError(f"{name}() input tensor must be non-empty")
    if input.dtype not in (mx.float32, mx.float64):
        raise RuntimeError(f"{name}() input tensor must be either float or double dtype")
    scalar = not isinstance(q, mx.array)
    q = mx.array([q], input.dtype) if scalar else q
    if bool(collapse(mx.any, (q < 0) | (q > 1)).item()):
        raise RuntimeError(f"{name}() q must be in the range [0, 1] but got {q.tolist()}")
    x = mx.reshape(input, (-1,)) if dim is None else input
    x = mx.reshape(x, (1,)) if x.ndim == 0 else x
    axis = reduced_axes(0 if dim is None else dim, x.ndim)[0]
    x = mx.moveaxis(x, axis, -1)
    result = _interpolated(x, mx.reshape(q, (-1,)), interpolation, skip_nan)  # [..., len(q)]
    result = mx.moveaxis(result, -1, 0)
    if keepdim:
        if dim is None or input.ndim == 0:
            result = mx.reshape(result, (result.shape[0], *(1,) * input.ndim))
        else:
            result = mx.expand_dims(result, axis + 1)
    return result[0] if scalar or q.ndim == 0 else result


def _interpolated(x: mx.array, q: mx.array, interpolation: str, skip_nan: bool) -> mx.array:
    ordered = picked(x, order(x, -1, False), axis=-1)
    nans = collapse(mx.sum, mx.isnan(x).astype(mx.int64), -1, True)
    last = mx.full((*x.shape[:-1], 1), x.shape[-1] - 1, mx.int64)
    if skip_nan:
        last = mx.maximum(last - nans, 0)
    rank = q * last.astype(x.dtype)
    if not skip_nan:
        rank = mx.where(nans > 0, last.astype(x.dtype), rank)  # a NaN is last in order
    if interpolation == "nearest":
        rank = mx.round(rank)
    elif interpolation == "higher":
        rank = mx.ceil(rank)
    elif interpolation == "lower":
        rank = mx.floor(rank)
    below = mx.floor(rank)
    low = picked(ordered, below.astype(mx.int64), axis=-1)
    if interpolation not in ("linear", "midpoint"):
        return low
    high = picked(ordered, mx.ceil(rank).astype(mx.int64), axis=-1)
    weight = mx.full(rank.shape, 0.5, rank.dtype) if interpolation == "midpoint" else rank - below
    # torch.lerp: exact at both ends.
    near = low + weight * (high - low)
    return mx.where(weight < 0.5, near, high - (high - low) * (1 - weight))


def _define_quantile(name: str, skip_nan: bool):
    @op(name)
    @numpy_names
    def quantile(input, q, dim=None, keepdim=False, *, interpolation="linear"):
        return _quantile(name, input, q, dim, keepdim, interpolation, skip_nan)

    quantile.__doc__ = f"Quantiles q (a number or 1-D tensor) along dim. torch.{name}."


_define_quantile("quantile", False)
_define_quantile("nanquantile", True)
