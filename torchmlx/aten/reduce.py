"""Reductions: sums, means, extremes, logic, norms of vectors."""

from __future__ import annotations

import math
import warnings
from functools import partial

import mlx.core as mx

from .. import return_types
from ..core import dtype as dtypes
from ..core.op import composite, op
from ..core.tensor import Tensor
from ._calling import (
    along,
    cast,
    collapse,
    count,
    is_float,
    no_elements,
    numpy_names,
    picked,
    reduce_axes,
    reduced_axes,
    reduced_shape,
    to_float,
    torch_name,
    wide,
)
from .elementary import exp
from .pointwise import maximum, minimum

# MLX's CPU adds one element after the other: the float32 mean of 10^7 times 0.1 came out as 0.1088.
# Summed in blocks of 32 it errs by 9e-7, as torch's does (Linux x86, 2026-12-02), and not slower.
BLOCK = 32


def total(x: mx.array, axes, keepdim: bool = False) -> mx.array:
    """Sum over axes, in x's dtype, in blocks: rounding grows with the logarithm of the length."""
    if x.ndim == 0:
        return mx.contiguous(x)
    if x.dtype == mx.complex64 and count(x.shape, axes) > BLOCK:
        return total(mx.real(x), axes, keepdim) + 1j * total(mx.imag(x), axes, keepdim)
    if is_float(x) and x.size:
        x, axes = _merge(x, axes) if not keepdim else (x, axes)
        for a in sorted(axes):
            x = _shorten(x, a)
    return collapse(mx.sum, x, axes, keepdim)


def _merge(x: mx.array, axes):
    """Adjacent reduced axes as one, so that blocks may run across them."""
    axes = sorted(axes)
    if len(axes) < 2 or axes != list(range(axes[0], axes[-1] + 1)):
        return x, tuple(axes)
    shape = x.shape
    merged = (*shape[: axes[0]], -1, *shape[axes[-1] + 1 :])
    return mx.reshape(x, merged), (axes[0],)


def _shorten(x: mx.array, axis: int) -> mx.array:
    """x with its axis summed in blocks until no more than BLOCK partial sums are left."""
    while x.shape[axis] > BLOCK:
        n = x.shape[axis]
        whole = n // BLOCK * BLOCK
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        body = x if whole == n else mx.slice(x, mx.array([0]), (axis,), (*before, whole, *after))
        body = mx.sum(mx.reshape(body, (*before, whole // BLOCK, BLOCK, *after)), axis=axis + 1)
        if whole < n:
            rest = mx.slice(x, mx.array([whole]), (axis,), (*before, n - whole, *after))
            body = mx.concatenate([body, mx.sum(rest, axis=axis, keepdims=True)], axis=axis)
        x = body
    return x


def _accumulate(x: mx.array, dtype):
    """(x in the dtype to add up in, the dtype of the result): torch's rule for sum and prod."""
    x = cast(x, dtype)
    if not is_float(x):
        x = x if dtype is not None else x.astype(mx.int64)
        return x.astype(mx.int64) if x.dtype != mx.uint64 else x, x.dtype
    return wide(x), x.dtype


@op()
@numpy_names
def sum(input, dim=None, keepdim=False, *, dtype=None):
    """Sum over dims (none: all). Integers add up in int64. torch.sum."""
    x, target = _accumulate(input, dtype)
    result = reduce_axes(x, dim, keepdim, total)
    return result if result.dtype == target else cast(result, dtypes.from_mx(target))


@op()
@numpy_names
def nansum(input, dim=None, keepdim=False, *, dtype=None):
    """Sum over dims with NaN as zero. torch.nansum."""
    if input.dtype == mx.complex64:
        raise RuntimeError("nansum does not support complex inputs")
    x, target = _accumulate(input, dtype)
    x = mx.where(mx.isnan(x), mx.zeros((), x.dtype), x) if is_float(x) else x
    return reduce_axes(x, dim, keepdim, total).astype(target)


def _mean(x: mx.array, dim, keepdim: bool) -> mx.array:
    n = count(x.shape, reduced_axes(dim, x.ndim))
    result = reduce_axes(wide(x), dim, keepdim, total)
    return (result / mx.array(float(n), result.dtype)).astype(x.dtype)


@op()
@numpy_names
def mean(input, dim=None, keepdim=False, *, dtype=None):
    """Mean over dims (none: all), of floating point or complex numbers. torch.mean."""
    x = cast(input, dtype)
    if not is_float(x):
        given = "Input" if dtype is None else "Optional"
        raise RuntimeError(
            f"mean(): could not infer output dtype. {given} dtype must be either a floating "
            "point or "
            f"complex dtype. Got: {torch_name(x)}"
        )
    return _mean(x, dim, keepdim)


@op()
@numpy_names
def nanmean(input, dim=None, keepdim=False, *, dtype=None):
    """Mean over dims of what is not NaN. torch.nanmean."""
    if not is_float(input):
        raise RuntimeError(
            "nanmean(): expected input to have floating point or complex dtype but got "
            f"{torch_name(input)}"
        )
    if input.dtype == mx.complex64:
        raise RuntimeError("nansum on CPU does not support complex inputs")
    x = cast(input, dtype)
    there = mx.logical_not(mx.isnan(x))
    kept = mx.where(there, wide(x), mx.zeros((), wide(x).dtype))
    numbers = reduce_axes(there.astype(mx.int64), dim, keepdim, total)
    return (reduce_axes(kept, dim, keepdim, total) / numbers.astype(kept.dtype)).astype(x.dtype)


@op()
@numpy_names
def prod(input, dim=None, keepdim=False, *, dtype=None):
    """Product over one dim (none: all). torch.prod."""
    x, target = _accumulate(input, dtype)
    result = reduce_axes(x, dim, keepdim, partial(collapse, mx.prod))
    return result if result.dtype == target else cast(result, dtypes.from_mx(target))


def _truth(name: str, function):
    @op(name)
    @numpy_names
    def truth(input, dim=None, keepdim=False):
        if isinstance(dim, (tuple, list)) and not dim:
            result = input != 0  # here, unlike elsewhere, no dims means none
        else:
            result = reduce_axes(input, dim, keepdim, partial(collapse, function))
        # uint8 was torch's first bool: it alone is kept.
        return result.astype(mx.uint8) if input.dtype == mx.uint8 else result

    truth.__doc__ = (
        f"Whether {name} of the elements are nonzero, over dims (none: all). torch.{name}."
    )


_truth("any", mx.any)
_truth("all", mx.all)


@op()
@numpy_names
def count_nonzero(input, dim=None):
    """How many elements are not zero, over dims (none: all). torch.count_nonzero."""
    return reduce_axes((input != 0).astype(mx.int64), dim, False, total)


# ---- extremes


def _no_complex(name: str, x: mx.array) -> None:
    if x.dtype == mx.complex64:
        raise NotImplementedError(f"\"{name}\" not implemented for 'ComplexFloat'")


def _extreme(name: str, function):
    @op(name)
    @numpy_names
    def extreme(input, dim=(), keepdim=False):
        axes = reduced_axes(dim, input.ndim)
        _no_complex(f"{name[1:]}_values_cpu", input)
        if input.size == 0 and (dim is None or dim == ()):
            raise RuntimeError(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. "
                "Specify the "
                "reduction dim with the 'dim' argument."
            )
        no_elements(name, input.shape, axes)
        return reduce_axes(input, dim, keepdim, partial(collapse, function))

    extreme.__doc__ = f"The {name[1:]}imum over dims (none: all); NaN wins. torch.{name}."


_extreme("amax", mx.max)
_extreme("amin", mx.min)


def argument(name: str, x: mx.array, dim, keepdim: bool) -> mx.array:
    """Indices (int64) of the first largest or smallest elements, NaN winning; dim None: of all."""
    function = mx.argmax if name.endswith("max") else mx.argmin
    if x.dtype == mx.bool_:
        x = x.astype(mx.uint8)
    if dim is None:
        if x.size == 0:
            raise IndexError(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. "
                "Specify the "
                "reduction dim with the 'dim' argument."
            )
        index = function(mx.reshape(x, (-1,)))
        return mx.reshape(index, (1,) * x.ndim if keepdim else ()).astype(mx.int64)
    no_elements(name, x.shape, reduced_axes(dim, x.ndim))
    if x.size == 0:
        return mx.zeros(reduced_shape(x.shape, dim, keepdim), mx.int64)
    return along(x, dim, lambda a, d: function(a, axis=d, keepdims=keepdim and x.ndim > 0)).astype(
        mx.int64
    )


def _argument(name: str):
    @op(name)
    @numpy_names
    def index(input, dim=None, keepdim=False):
        if input.dtype == mx.bool_:
            raise RuntimeError(f"{name}(): does not support bool input")
        if input.dtype == mx.complex64:
            raise RuntimeError(f"{name}(): does not support complex input")
        _no_complex(f"{name}_cpu", input)
        return argument(name, input, dim, keepdim)

    index.__doc__ = (
        f"Where the first {name[3:]}imum is (int64), along dim (None: of all). torch.{name}."
    )


_argument("argmax")
_argument("argmin")


def _valued(name: str, whole, elementwise):
    """max or min: of all elements, along a dim with indices, or of two tensors."""

    @op(f"_{name}_all", at=())
    def of_all(input):
        if input.size == 0:
            raise RuntimeError(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. "
                "Specify the "
                "reduction dim with the 'dim' argument."
            )
        return whole(input)

    @op(f"_{name}_dim", at=())
    def along_dim(input, dim, keepdim=False):
        index = argument(name, input, dim, True)
        if input.ndim == 0:
            return return_types.make(name, input, mx.reshape(index, ()))
        axis = dim % input.ndim
        if input.size == 0:
            empty = mx.zeros(
                index.shape if keepdim else reduced_shape(input.shape, dim, False), mx.int64
            )
            return return_types.make(name, empty.astype(input.dtype), empty)
        values = picked(input, index, axis=axis)
        if not keepdim:
            values, index = mx.squeeze(values, axis), mx.squeeze(index, axis)
        return return_types.make(name, values, index)

    @composite(name)
    @numpy_names
    def extreme(input, dim=None, keepdim=False, *, other=None):
        if other is not None or isinstance(dim, Tensor):
            return elementwise(input, dim if other is None else other)
        if input.dtype.is_complex:
            if dim is not None:
                raise RuntimeError(f"{name}(): does not support complex input")
            raise NotImplementedError(f"\"{name}_all\" not implemented for 'ComplexFloat'")
        return of_all(input) if dim is None else along_dim(input, dim, keepdim)

    extreme.__doc__ = (
        f"The {name}imum of all elements, (values, indices) along dim, or of two tensors. "
        f"torch.{name}."
    )


_valued("max", mx.max, maximum)
_valued("min", mx.min, minimum)


@op()
@numpy_names
def aminmax(input, *, dim=None, keepdim=False):
    """The smallest and the largest element, over all or along dim. torch.aminmax."""
    _no_complex("aminmax_cpu", input)
    if dim is None and input.size == 0:
        raise RuntimeError(
            "aminmax(): cannot compute aminmax over an empty dimension as the operation has "
            "no identity."
        )
    no_elements("aminmax", input.shape, reduced_axes(dim, input.ndim) if dim is not None else ())
    ends = [reduce_axes(input, dim, keepdim, partial(collapse, f)) for f in (mx.min, mx.max)]
    return return_types.make("aminmax", *ends)


# ---- spread


def _variance(name: str, x: mx.array, dim, correction, keepdim: bool):
    """(variance, mean) in x's dtype; two passes, float32 inside for half precision."""
    if not is_float(x):
        raise RuntimeError("std and var only support floating point and complex dtypes")
    a, axes = wide(x), reduced_axes(dim, x.ndim)
    n = count(x.shape, axes)
    if x.ndim == 0:
        a, axes = mx.reshape(a, (1,)), (0,)
    centre = total(a, axes, True) / mx.array(float(n), a.dtype)
    apart = a - centre
    squares = mx.square(mx.abs(apart)) if a.dtype == mx.complex64 else mx.square(apart)
    keepdim = keepdim and x.ndim > 0
    degrees = max(0.0, n - correction)
    if not degrees:
        warnings.warn(
            f"{name}(): degrees of freedom is <= 0. Correction should be strictly less than the "
            "reduction factor (input numel divided by output numel).",
            stacklevel=5,
        )
    spread = total(squares, axes, keepdim) / mx.array(float(degrees), squares.dtype)
    middle = centre if keepdim else mx.squeeze(centre, axes)
    return (spread, middle) if x.ndim else (mx.reshape(spread, ()), mx.reshape(middle, ()))


def _spread(name: str, root: bool, with_mean: bool):
    @op(name)
    @numpy_names
    def spread(input, dim=None, unbiased=None, keepdim=False, *, correction=None):
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        if correction is None:
            correction = 1 if unbiased is None else int(unbiased)
        value, middle = _variance(name, input, dim, correction, keepdim)
        value = mx.sqrt(value) if root else value
        if input.dtype in (mx.float16, mx.bfloat16):
            value, middle = value.astype(input.dtype), middle.astype(input.dtype)
        return (value, middle) if with_mean else value

    what = "Standard deviation" if root else "Variance"
    spread.__doc__ = f"{what} over dims, with n - correction degrees of freedom. torch.{name}."


_spread("var", False, False)
_spread("std", True, False)
_spread("var_mean", False, True)
_spread("std_mean", True, True)


# ---- exponentials and norms


@op(at=("torch", "Tensor", "special"))
@numpy_names
def logsumexp(input, dim, keepdim=False):
    """log(sum(exp(input))) over dims, without overflow. torch.logsumexp."""
    if dim is None:
        raise TypeError("logsumexp(): argument 'dim' must be tuple of ints, not NoneType")
    x = wide(to_float(input))
    result = (
        reduce_axes(x, dim, keepdim, _logsumexp) if x.size else _log_of_nothing(x, dim, keepdim)
    )
    return result.astype(to_float(input).dtype)


def _logsumexp(x: mx.array, axes, keepdim: bool) -> mx.array:
    top = mx.stop_gradient(mx.max(x, axis=axes, keepdims=True))
    top = mx.where(mx.isinf(top), mx.zeros((), x.dtype), top)
    summed = mx.log(total(exp(x - top), axes, True)) + top
    return summed if keepdim else mx.squeeze(summed, axes)


def _log_of_nothing(x: mx.array, dim, keepdim: bool) -> mx.array:
    return mx.log(reduce_axes(x, dim, keepdim, total))


def vector_norm_of(x: mx.array, ord, dim, keepdim: bool) -> mx.array:
    """The p-norm of real or complex numbers over dims, in float32 for half precision."""
    ord = float(ord)
    if ord == 0:
        a = mx.abs(wide(x))
        return reduce_axes((a != 0).astype(a.dtype), dim, keepdim, total)
    if ord < 0 or ord == math.inf:
        _no_empty_norm(x, dim, ord)
    if ord == 1:
        return reduce_axes(mx.abs(wide(x)), dim, keepdim, total)

    @mx.custom_function
    def norm(x):
        return reduce_axes(mx.abs(x), dim, keepdim, partial(_norm_of, ord))

    @norm.vjp
    def slope(x, g, y):
        y = norm(x)
        if not keepdim and x.ndim:
            axes = reduced_axes(dim, x.ndim)
            g, y = mx.expand_dims(g, axes), mx.expand_dims(y, axes)
        return _norm_slope(x, g, y, ord, dim)

    return norm(wide(x))


def _norm_of(ord: float, a: mx.array, axes, keepdim: bool) -> mx.array:
    if math.isinf(ord):
        return collapse(mx.max if ord > 0 else mx.min, a, axes, keepdim)
    if ord == 2:
        return mx.sqrt(total(mx.square(a), axes, keepdim))
    return mx.power(total(mx.power(a, ord), axes, keepdim), 1.0 / ord)


def _norm_slope(x: mx.array, g: mx.array, y: mx.array, ord: float, dim) -> mx.array:
    """torch's gradient, which is 0 at 0; the largest of several share it."""
    zero = mx.array(0, g.dtype)
    if ord == 2:
        return mx.where(y == 0, zero, g * (x / y))
    a = mx.abs(x)
    sign = x / mx.where(a == 0, 1, a) if x.dtype == mx.complex64 else mx.sign(x)
    if math.isinf(ord):
        hit = (a == y) | (mx.isnan(a) & mx.isnan(y))
        number = reduce_axes(hit.astype(g.dtype), dim, True, total)
        return sign * hit * (g / number)
    still = mx.where(a == 0, 1, a)
    slope = mx.where(a == 0, zero, mx.power(still, ord - 1))
    return sign * slope * mx.where(y == 0, zero, g / mx.power(mx.where(y == 0, 1, y), ord - 1))


def _no_empty_norm(x: mx.array, dim, ord: float) -> None:
    if any(x.shape[a] == 0 for a in (reduced_axes(dim, x.ndim) if x.ndim else ())):
        raise RuntimeError(
            f"linalg.vector_norm cannot compute the {ord:g} norm on an empty tensor because "
            "the operation "
            "does not have an identity"
        )


def check_norm_dtype(name: str, x: mx.array, dtype) -> None:
    """torch's rules for the `dtype` of a norm: floating point, and no narrower than the input."""
    if not is_float(x):
        raise RuntimeError(
            f"{name}: Expected a floating point or complex tensor as input. Got {torch_name(x)}"
        )
    if dtype is None:
        return
    own = dtypes.from_mx(x.dtype)
    if dtype.category < dtypes.FLOAT:
        raise RuntimeError(
            f"{name}: dtype should be floating point or complex, but got {dtype.torch_name}"
        )
    if dtypes.promote_types(own, dtype) is not dtype:
        raise RuntimeError(
            f"{name}: the dtype of the input ({own.torch_name}) should be convertible without "
            "narrowing "
            f"to the specified dtype ({dtype.torch_name})"
        )


@op(at=("linalg",))
@numpy_names
def vector_norm(input, ord=2, dim=None, keepdim=False, *, dtype=None):
    """The p-norm of the elements over dims (none: all). torch.linalg.vector_norm."""
    check_norm_dtype("linalg.vector_norm", input, dtype)
    x = cast(input, dtype)
    real = mx.float32 if x.dtype == mx.complex64 else x.dtype
    return vector_norm_of(x, ord, dim, keepdim).astype(real)
