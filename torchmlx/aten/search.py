"""Distinct values and counting: unique, searchsorted, histograms, membership.

They run on the host: their sizes depend on data.
"""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

from .. import return_types
from ..core import dtype as dtypes
from ..core.layout import wrap_dim
from ..core.op import composite, op
from ..core.tensor import Tensor, from_array
from ._calling import from_host, host, is_float, torch_name


def _check_dim(input: Tensor, dim) -> None:
    if dim is not None and input.ndim == 0:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")


def _wrapped(values: np.ndarray, like: Tensor) -> Tensor:
    """A NumPy array as a tensor of like's dtype and device."""
    return from_array(from_host(values).astype(like.dtype.mx), like.device, like.dtype)


def _integers(values: np.ndarray, like: Tensor) -> Tensor:
    return from_array(mx.array(np.asarray(values, np.int64)), like.device)


def _results(values, inverse, counts, return_inverse: bool, return_counts: bool):
    found = [values]
    if return_inverse:
        found.append(inverse)
    if return_counts:
        found.append(counts)
    return tuple(found) if len(found) > 1 else values


@composite()
def unique(input, sorted=True, return_inverse=False, return_counts=False, dim=None):
    """The distinct elements (or slices along dim), sorted; inverse and counts on request.

    torch.unique.
    """
    _check_dim(input, dim)
    array = host(input._host())
    axis = None if dim is None else wrap_dim(dim, input.ndim)
    values, inverse, counts = np.unique(
        array, return_inverse=True, return_counts=True, axis=axis, equal_nan=False
    )
    shape = array.shape if dim is None else (-1,)
    return _results(
        _wrapped(values, input),
        _integers(inverse.reshape(shape), input),
        _integers(counts, input),
        return_inverse,
        return_counts,
    )


@composite()
def unique_consecutive(input, return_inverse=False, return_counts=False, dim=None):
    """Elements (or slices along dim) that differ from their predecessor.

    torch.unique_consecutive.
    """
    _check_dim(input, dim)
    array = host(input._host())
    rows = array.reshape(-1) if dim is None else np.moveaxis(array, wrap_dim(dim, input.ndim), 0)
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    starts = np.ones(len(rows), bool)
    starts[1:] = (flat[1:] != flat[:-1]).any(1)
    values = rows[starts]
    if dim is not None:
        values = np.moveaxis(values, 0, wrap_dim(dim, input.ndim))
    counts = np.diff(np.append(np.flatnonzero(starts), len(rows)))
    inverse = np.cumsum(starts) - 1
    shape = array.shape if dim is None else (-1,)
    return _results(
        _wrapped(values, input),
        _integers(inverse.reshape(shape), input),
        _integers(counts, input),
        return_inverse,
        return_counts,
    )


def _insertion(boundaries: np.ndarray, values: np.ndarray, side: str) -> np.ndarray:
    if boundaries.ndim == 1:
        return np.searchsorted(boundaries, values, side)
    rows = boundaries.reshape(-1, boundaries.shape[-1])
    wanted = values.reshape(len(rows), -1)
    found = [np.searchsorted(r, v, side) for r, v in zip(rows, wanted, strict=True)]
    return np.array(found, np.int64).reshape(values.shape)


@op(at=("torch",))
def searchsorted(sorted_sequence, input, *, out_int32=False, right=False, side=None, sorter=None):
    """Where `input` would be inserted into the last dimension of sorted sequences.

    torch.searchsorted.
    """
    if side not in (None, "left", "right"):
        raise RuntimeError(
            f"torch.searchsorted(): side can only be 'left' or 'right' but got {side}"
        )
    if side == "left" and right:
        raise RuntimeError(
            "torch.searchsorted(): side and right can't be set to opposites, got side of "
            "left while "
            "right was True"
        )
    boundaries = host(sorted_sequence)
    values = host(input) if isinstance(input, mx.array) else np.asarray(input)
    if boundaries.ndim > 1 and boundaries.shape[:-1] != values.shape[:-1]:
        raise RuntimeError(
            "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 "
            "dimensions of "
            f"boundaries tensor and input value tensor must match, but we got boundaries tensor "
            f"{list(boundaries.shape)} and input value tensor {list(values.shape)}"
        )
    if sorter is not None:
        boundaries = np.take_along_axis(boundaries, host(sorter), -1)
    found = _insertion(boundaries, values, "right" if right or side == "right" else "left")
    return mx.array(np.asarray(found).astype(np.int32 if out_int32 else np.int64))


@op(at=("torch",))
def bucketize(input, boundaries, *, out_int32=False, right=False):
    """Which bucket of 1-D boundaries each element falls into. torch.bucketize."""
    if boundaries.ndim != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    values = host(input) if isinstance(input, mx.array) else np.asarray(input)
    found = np.searchsorted(host(boundaries), values, "right" if right else "left")
    return mx.array(np.asarray(found).astype(np.int32 if out_int32 else np.int64))


@op()
def histc(input, bins=100, min=0, max=0):
    """Counts of elements in `bins` equal bins from min to max (both 0: of the data).

    torch.histc.
    """
    if not is_float(input) or input.dtype == mx.complex64:
        raise NotImplementedError(f"\"histogram_cpu\" not implemented for '{torch_name(input)}'")
    if bins <= 0:
        raise RuntimeError("torch.histc(): bins must be > 0")
    x = host(input).reshape(-1)
    low, high = float(min), float(max)
    if low == high and x.size:
        low, high = float(x.min()), float(x.max())
    if low == high:
        low, high = low - 1, high + 1
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"torch.histc: range of [{low:g}, {high:g}] is not finite")
    if low > high:
        raise RuntimeError("torch.histc(): max must be larger than min")
    low, high = x.dtype.type(low), x.dtype.type(high)
    inside = x[(x >= low) & (x <= high)]
    place = ((inside - low) / (high - low) * x.dtype.type(bins)).astype(np.int64)
    counts = np.bincount(np.minimum(place, bins - 1), minlength=bins)
    return mx.array(counts.astype(np.float64), mx.float64).astype(input.dtype)


@op()
def bincount(input, weights=None, minlength=0):
    """How often each number occurs, or the sum of its weights. torch.bincount."""
    if input.ndim != 1 or is_float(input) or (input.size and int(mx.min(input).item()) < 0):
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if weights is None:
        return mx.array(np.bincount(host(input), minlength=minlength).astype(np.int64))
    if weights.shape != input.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    sums = np.bincount(host(input), host(weights).astype(np.float64), minlength=minlength)
    target = weights.dtype if weights.dtype == mx.float32 else mx.float64
    return mx.array(sums, mx.float64).astype(target)


@composite(at=("torch",))
def isin(elements, test_elements, *, assume_unique=False, invert=False):
    """Which elements are among test_elements (either may be a number). torch.isin."""
    if any(isinstance(t, Tensor) and t.dtype is dtypes.bool_ for t in (elements, test_elements)):
        raise RuntimeError("Unsupported input type encountered for isin(): Bool")
    tensors = [t for t in (elements, test_elements) if isinstance(t, Tensor)]
    if not tensors:
        raise TypeError("isin() received an invalid combination of arguments: two numbers")
    left, right = (
        host(t._host()) if isinstance(t, Tensor) else np.asarray(t)
        for t in (elements, test_elements)
    )
    return from_array(
        mx.array(np.isin(left, right, invert=invert)), tensors[0].device, dtypes.bool_
    )


@composite(at=("torch",))
def histogram(input, bins, *, range=None, weight=None, density=False):
    """(counts, edges) over equal bins, or over the bins between given edges. torch.histogram."""
    edges = host(bins._host()) if isinstance(bins, Tensor) else bins
    weights = None if weight is None else host(weight._host()).reshape(-1)
    counts, edges = np.histogram(
        host(input._host()).reshape(-1), edges, range=range, weights=weights, density=density
    )
    found = (_wrapped(a.astype(np.float64), input) for a in (counts, edges))
    return return_types.make("histogram", *found)
