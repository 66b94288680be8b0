"""What torch's argument parser does for many operations: NumPy's names for arguments, one or many
dims.
"""

from __future__ import annotations

import functools
import math

import mlx.core as mx
import numpy as np

from ..core import dtype as dtypes
from ..core.layout import wrap_dim, wrap_dims
from ..core.tape import fit

_TORCH_NAMES = {"axis": "dim", "keepdims": "keepdim", "x": "input"}


def numpy_names(function):
    """Take `axis=` and `keepdims=` for `dim=` and `keepdim=`, as torch does."""

    @functools.wraps(function)
    def renamed(*args, **kwargs):
        if kwargs:
            kwargs = {_TORCH_NAMES.get(k, k): v for k, v in kwargs.items()}
        return function(*args, **kwargs)

    return renamed


def reduced_axes(dim, ndim: int) -> tuple[int, ...]:
    """The axes that `dim` (int, several, or none for all) names."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(ndim))
    return wrap_dims(dim, ndim)


def reduce_axes(x: mx.array, dim, keepdim: bool, function) -> mx.array:
    """function(x, axes, keepdim) over the axes that torch's `dim` names; a 0-d array counts as one
    element.
    """
    axes = reduced_axes(dim, x.ndim)
    if x.ndim == 0:
        return mx.reshape(function(mx.reshape(x, (1,)), (0,), False), ())
    return function(x, axes, keepdim)


_OF_NOTHING = {mx.sum: 0, mx.mean: math.nan, mx.prod: 1, mx.all: True, mx.any: False}


def collapse(function, x: mx.array, axes=None, keepdim: bool = False) -> mx.array:
    """mx.sum, mean, max, min, prod, all or any of x over axes (an int, several, None: all).

    Of nothing it gives the value without which sums and products start; max and min raise MLX's
    ValueError.
    """
    result = function(x, axis=axes, keepdims=keepdim)
    if x.size:
        # Of one element each it is x reshaped: a copy does not keep what x is a part of.
        return mx.contiguous(result) if result.size == x.size else result
    # Only its shape and dtype are used. MLX 0.32.4 reads past the end of an empty list of strides
    # to reduce an empty array on the CPU, and may not come back (seen on Linux, 2026-12-02).
    return mx.full(result.shape, _OF_NOTHING.get(function, 0), result.dtype)


def reduced_shape(shape, dim, keepdim: bool) -> tuple[int, ...]:
    """The shape of a reduction over dims."""
    axes = reduced_axes(dim, len(shape))
    if keepdim:
        return tuple(1 if d in axes else n for d, n in enumerate(shape))
    return tuple(n for d, n in enumerate(shape) if d not in axes)


def along(x: mx.array, dim: int, function):
    """function(x, axis) for an op along one dimension; a 0-d array is lent a dimension, and it is
    taken back.
    """
    if x.ndim:
        return function(x, wrap_dim(dim, x.ndim))
    wrap_dim(dim, 0)
    results = function(mx.reshape(x, (1,)), 0)
    if isinstance(results, mx.array):
        return mx.reshape(results, ())
    return tuple(mx.reshape(r, ()) for r in results)


def picked(x: mx.array, index: mx.array, axis: int) -> mx.array:
    """Elements of x at indices along an axis; MLX differentiates by x only if told so."""
    return mx.take_along_axis(x, mx.stop_gradient(index), axis=axis)


_BITS = {2: mx.int16, 4: mx.int32, 8: mx.int64}


def kept(condition, x: mx.array) -> mx.array:
    """x where the condition holds, 0 elsewhere, even where x is no number."""
    return _kept(condition, x)  # type: ignore[return-value]


@mx.custom_function
def _kept(condition, x):
    if not on_cpu():
        return mx.where(condition, x, mx.array(0, x.dtype))
    # Of 590,000 float32 numbers this takes 0.4 ms, mx.where 2.5 (2 busy cores, 2026-12-03).
    bits = _BITS[x.itemsize]
    return mx.view(mx.view(x, bits) * condition.astype(bits), x.dtype)


@_kept.vjp
def _to_the_kept(primals, g, result):
    condition, x = primals
    return mx.zeros_like(condition), fit(kept(condition, g), x)


def chosen(condition, x, y) -> mx.array:
    """mx.where whose gradient is 0 for what is not chosen, also of a cotangent that is NaN."""
    return _chosen(condition, x, y)  # type: ignore[return-value]


@mx.custom_function
def _chosen(condition, x, y):
    return mx.where(condition, x, y)


@_chosen.vjp
def _to_the_chosen(primals, g, result):
    condition, x, y = primals
    of_x, of_y = kept(condition, g), kept(mx.logical_not(condition), g)
    return mx.zeros_like(condition), fit(of_x, x), fit(of_y, y)


def count(shape, axes) -> int:
    """Elements that one result of a reduction over `axes` is made of."""
    return math.prod(shape[a] for a in axes) if shape else 1


def cast(x: mx.array, dtype) -> mx.array:
    """x as a facade dtype (None: unchanged)."""
    if dtype is None or x.dtype == dtype.mx:
        return x
    if dtype.mx is None:
        raise TypeError(f"{dtype} is not supported: MLX has no such type. Use torch.complex64.")
    if dtype is dtypes.bool_:
        return x != 0
    return (mx.real(x) if x.dtype == mx.complex64 and not dtype.is_complex else x).astype(dtype.mx)


def to_float(x: mx.array) -> mx.array:
    """Integers as the default float dtype; anything else unchanged."""
    kind = dtypes.from_mx(x.dtype)
    return x.astype(dtypes.get_default_dtype().mx) if kind.category < dtypes.FLOAT else x


def is_float(x: mx.array) -> bool:
    return dtypes.from_mx(x.dtype).category >= dtypes.FLOAT


def wide(x: mx.array) -> mx.array:
    """Half precision as float32, in which torch's CPU kernels compute."""
    return x.astype(mx.float32) if x.dtype in (mx.float16, mx.bfloat16) else x


def torch_name(x: mx.array) -> str:
    """The dtype as torch's error messages spell it."""
    return dtypes.from_mx(x.dtype).torch_name


def no_elements(name: str, shape, axes) -> None:
    """torch's IndexError for a reduction without identity over nothing."""
    for a in axes if shape else ():
        if shape[a] == 0:
            raise IndexError(f"{name}(): Expected reduction dim {a} to have non-zero size.")


def host(x: mx.array):
    """x as a NumPy array, evaluated; bfloat16 as float32."""
    x = x.astype(mx.float32) if x.dtype == mx.bfloat16 else x
    mx.eval(x)
    return np.array(x)


def on_cpu() -> bool:
    """Whether operations run on the CPU now, where float64 exists."""
    return mx.default_device() == mx.cpu


def host_function(name: str, function, gradient=None):
    """`function` on NumPy arrays as a function on mx.arrays, with its own gradient.

    MLX would silently take the derivative of a host computation as zero. `gradient(primals,
    cotangents,
    outputs)` returns the cotangents of the primals (tuples, or arrays where there is one); None: an
    error.
    """

    @mx.custom_function
    def computed(*arrays):
        results = function(*(host(a) for a in arrays))
        if isinstance(results, tuple):
            return tuple(from_host(r) for r in results)
        return from_host(results)

    @computed.vjp
    def derivative(primals, cotangents, outputs):
        if gradient is None:
            raise NotImplementedError(f"the derivative for '{name}' is not implemented.")
        # MLX hands over a lone primal without its tuple.
        primals = primals if isinstance(primals, (tuple, list)) else (primals,)
        return gradient(primals, cotangents, outputs)

    return computed


def from_host(values) -> mx.array:
    """A NumPy array or number as an mx.array of the same dtype."""
    values = np.asarray(values)
    return mx.array(values, dtype=mx.float64 if values.dtype == np.float64 else None)
