"""Scattering with a reduction: sum, product, mean, maximum, minimum of everything that lands on an
element.
"""

from __future__ import annotations

import mlx.core as mx

from ..core.layout import wrap_dim
from ..core.op import composite
from ..core.record import computed
from ._calling import is_float, wide
from .places import along, check_scatter, check_slices, require_tensors, within
from .scatter import grid

_REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def _identity(x: mx.array, reduce: str):
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if is_float(x):
        return float("-inf") if reduce == "amax" else float("inf")
    limits = mx.iinfo(x.dtype)
    return limits.min if reduce == "amax" else limits.max


def _multiplied(x: mx.array, places: tuple, updates: mx.array) -> mx.array:
    """x with `updates` multiplied into x[places], and the gradient, which MLX lacks."""

    @mx.custom_function
    def multiplied(x, u):
        return x.at[places].multiply(u)

    @multiplied.vjp
    def pulled(primals, g, result):
        x, u = primals
        full = mx.where(x == 0, mx.ones_like(x), x)
        of_x = g * _multiplied(full, places, u) / full
        zero = u == 0
        zeros = mx.zeros(x.shape, x.dtype).at[places].add(zero.astype(x.dtype))
        single = zero & (zeros[places] == 1)  # the only zero there: the others' product counts
        others = _multiplied(x, places, mx.where(single, mx.ones_like(u), u))[places]
        share = result[places] / mx.where(zero, mx.ones_like(u), u)
        return of_x, g[places] * mx.where(single, others, share)

    return multiplied(x, updates)


def _extreme(base, x, places: tuple, updates, largest: bool) -> mx.array:
    """x with `updates` reduced into x[places]; of equal elements each gets its share of the
    gradient. `base` is what x was before: torch counts it also where it takes no part.
    """

    def reduced(x, u):
        return x.at[places].maximum(u) if largest else x.at[places].minimum(u)

    extreme = mx.custom_function(reduced)

    @extreme.vjp
    def pulled(primals, g, result):
        x, u = primals
        result = reduced(x, u)
        own, given = (base == result).astype(g.dtype), (u == result[places]).astype(g.dtype)
        share = g / own.at[places].add(given)
        return own * share, given * share[places]

    return extreme(x, updates)


def _reduced(base: mx.array, places: tuple, source: mx.array, reduce: str, include_self: bool):
    """`base` with `source` reduced into base[places]."""
    x, updates = wide(base), wide(source)
    if not include_self:
        x = mx.array(x)
        x[places] = mx.full(updates.shape, _identity(x, reduce), x.dtype)
    if reduce == "prod":
        return _multiplied(x, places, updates).astype(base.dtype)
    if reduce in ("amax", "amin"):
        before = mx.stop_gradient(wide(base))
        return _extreme(before, x, places, updates, reduce == "amax").astype(base.dtype)
    result = x.at[places].add(updates)
    if reduce == "mean":
        ones = mx.ones(x.shape, x.dtype) if include_self else mx.zeros(x.shape, x.dtype)
        number = mx.maximum(ones.at[places].add(mx.ones(updates.shape, x.dtype)), 1)
        result = result / number if is_float(x) else result // number
    return result.astype(base.dtype)


def _check_reduce(reduce: str) -> None:
    if reduce not in _REDUCTIONS:
        raise RuntimeError(
            f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}"
        )


@composite(inplace=True)
def scatter_reduce(input, dim, index, src, reduce, *, include_self=True):
    """`src` reduced into `input` at `index` along dim. torch.scatter_reduce."""
    require_tensors("scatter_reduce", 2, index=index, src=src)
    _check_reduce(reduce)
    d = wrap_dim(dim, input.ndim)
    check_scatter(input, d, index, src)
    if input.ndim == 0:
        args = (index.reshape(-1), src.reshape(-1), reduce)
        return scatter_reduce(input.reshape(1), 0, *args, include_self=include_self).reshape(())
    if index.numel() == 0:
        return input.clone()
    index, src = (x if x.ndim else x.reshape(1) for x in (index, src))
    places = grid(along(index, input.shape[d], d), d)
    corner = tuple(slice(0, n) for n in index.shape)

    def reduced(array, source):
        return _reduced(array, places, source[corner], reduce, include_self)

    return computed("scatter_reduce", reduced, input, src)


@composite(inplace=True)
def index_reduce(input, dim, index, source, reduce, *, include_self=True):
    """Slices of `source` reduced into `input` at `index` along dim. torch.index_reduce."""
    require_tensors("index_reduce", 2, index=index, source=source)
    _check_reduce(reduce)
    if reduce == "sum":
        raise RuntimeError(
            "index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got sum."
        )
    d = wrap_dim(dim, input.ndim)
    check_slices("index_reduce_", input, d, index, source)
    shape = [1] * input.ndim
    if input.ndim:
        within(index, input.shape[d], lambda bad: IndexError("index out of range in self"))
        shape[d] = -1
    spread = index.reshape(shape).expand(source.shape)
    return scatter_reduce(input, d, spread, source, reduce, include_self=include_self)
