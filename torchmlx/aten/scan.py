"""Running results along a dimension: sums, products, extremes, differences."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from .. import return_types
from ..core import dtype as dtypes
from ..core.layout import wrap_dim
from ..core.op import composite, op
from ._calling import (
    along,
    cast,
    host_function,
    is_float,
    numpy_names,
    on_cpu,
    picked,
    torch_name,
    wide,
)


def _running(function):
    """A running sum or product, accumulated as torch does: float32 in float64 on the CPU."""

    def scan(x: mx.array, dim: int, dtype) -> mx.array:
        x = cast(x, dtype)
        if dtype is not None and x.dtype == mx.bool_:
            name = f"{function.__name__}_out_cpu"
            raise NotImplementedError(f"\"{name}\" not implemented for 'Bool'")
        if not is_float(x):
            target = mx.int64 if dtype is None else x.dtype
            return along(x.astype(mx.int64), dim, lambda a, d: function(a, axis=d)).astype(target)
        a = x.astype(mx.float64) if x.dtype == mx.float32 and on_cpu() else wide(x)
        return along(a, dim, lambda a, d: function(a, axis=d)).astype(x.dtype)

    return scan


_cumsum, _cumprod = _running(mx.cumsum), _running(mx.cumprod)


@op(inplace=True, pointwise=False)
@numpy_names
def cumsum(input, dim, *, dtype=None):
    """Running sum along dim; integers in int64. torch.cumsum."""
    return _cumsum(input, dim, dtype)


@op(inplace=True, pointwise=False)
@numpy_names
def cumprod(input, dim, *, dtype=None):
    """Running product along dim; integers in int64. torch.cumprod."""
    return _cumprod(input, dim, dtype)


def _logcumsumexp(x: mx.array, axis: int) -> mx.array:
    if x.dtype != mx.float64:
        return mx.logcumsumexp(x, axis=axis)
    # MLX's scan rounds float64 to float32 inside.
    scan = host_function("logcumsumexp", lambda v: np.logaddexp.accumulate(v, axis=axis))
    return scan(x)


@op()
@numpy_names
def logcumsumexp(input, dim):
    """log of the running sum of exp along dim. torch.logcumsumexp."""
    if not is_float(input):
        raise NotImplementedError(
            f"\"logcumsumexp_out_cpu\" not implemented for '{torch_name(input)}'"
        )
    return along(wide(input), dim, _logcumsumexp).astype(input.dtype)


def _running_extreme(name: str, function, reaches):
    @op(name)
    @numpy_names
    def scan(input, dim):
        def both(x, axis):
            # In half precision mx.cummax passes over NaN (0.32.4).
            values = function(wide(x), axis=axis)
            new = reaches(wide(x), values)
            if is_float(x):
                new = mx.logical_or(new, mx.isnan(x))
            shape = [1] * x.ndim
            shape[axis] = x.shape[axis]
            place = mx.reshape(mx.arange(x.shape[axis], dtype=mx.int64), shape)
            index = mx.cummax(mx.where(new, place, mx.zeros((), mx.int64)), axis=axis)
            return picked(x, index, axis=axis) if x.size else x, index

        return return_types.make(name, *along(input, dim, both))

    scan.__doc__ = (
        f"(values, indices) of the running {name[3:]}imum along dim, the last of equals. "
        f"torch.{name}."
    )


_running_extreme("cummax", mx.cummax, mx.greater_equal)
_running_extreme("cummin", mx.cummin, mx.less_equal)


@composite()
@numpy_names
def diff(input, n=1, dim=-1, prepend=None, append=None):
    """n-th differences along dim, of prepend, input and append joined. torch.diff."""
    from .shape import cat

    parts = [t for t in (prepend, input, append) if t is not None] if n else [input]
    x = cat(parts, dim) if len(parts) > 1 else input
    if x.ndim == 0:
        raise RuntimeError("diff expects input to be at least one-dimensional")
    d = wrap_dim(dim, x.ndim)
    if n < 0:
        raise RuntimeError(f"order must be non-negative but got {n}")
    for _ in range(min(n, x.shape[d])):
        length = x.shape[d]
        later, earlier = x.narrow(d, 1, length - 1), x.narrow(d, 0, length - 1)
        x = later.logical_xor(earlier) if x.dtype is dtypes.bool_ else later - earlier
    return x


@composite(at=("torch",), aliases=("trapz",))
def trapezoid(y, x=None, *, dx=1.0, dim=-1):
    """The integral of y along dim by the trapezoidal rule. torch.trapezoid."""
    if x is None and y.dtype is not dtypes.bool_ and y.shape[wrap_dim(dim, y.ndim)]:
        ends = y.select(dim, 0) + y.select(dim, -1)
        return (y.sum(dim) - ends * 0.5) * dx
    return _trapezoids(y, x, dx, dim).sum(dim)


@composite(at=("torch",))
def cumulative_trapezoid(y, x=None, *, dx=1.0, dim=-1):
    """The running integral of y along dim by the trapezoidal rule. torch.cumulative_trapezoid."""
    return _trapezoids(y, x, dx, dim).cumsum(dim)


def _trapezoids(y, x, dx, dim):
    if y.dtype is dtypes.bool_:
        raise RuntimeError("trapezoid: received a bool input for `y`, but bool is not supported")
    d = wrap_dim(dim, y.ndim)
    n = max(y.shape[d] - 1, 0)
    pairs = (y.narrow(d, y.shape[d] - n, n) + y.narrow(d, 0, n)) / 2
    if x is None:
        return pairs * dx
    if x.ndim == 1:
        return pairs * x.diff().reshape(*(-1 if i == d else 1 for i in range(y.ndim)))
    return pairs * x.diff(dim=dim)
