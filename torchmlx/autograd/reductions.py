"""Gradients written by hand of what reduces: spread, norms, extremes, pooling, losses."""

from __future__ import annotations

import functools

import mlx.core as mx

from ..aten._calling import count, kept, numpy_names, reduced_axes, wide
from ..aten.pool import max_pool_gradient
from ..aten.reduce import total
from ..core.op import TABLE
from ..core.record import NAMES, derivative

for _n in (1, 2, 3):
    derivative(f"_max_pool{_n}d", saves="input")(functools.partial(max_pool_gradient, _n))


@derivative("_max_all", "_min_all", "_median_all", "_nanmedian_all", saves="input result")
def of_extremes(g, input, *, result):
    """Equal elements share it."""
    found = (input == result) | (mx.isnan(input) & mx.isnan(result))
    return kept(found, g / mx.sum(found).astype(g.dtype))


def _spread(g, input, dim, unbiased, keepdim, correction):
    """The gradient of the variance; 0 of a constant, whatever the degrees of freedom."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    axes = reduced_axes(dim, input.ndim)
    n, x = count(input.shape, axes), wide(input)
    g = _expanded(wide(g), axes, keepdim)
    centre = total(x, axes, True) / n
    return g * (mx.array(2.0) / (n - correction)) * (x - centre)


def _expanded(g, axes, keepdim: bool):
    return g if keepdim or not axes else mx.expand_dims(g, axes)


def _of_root(g, root):
    return kept(root != 0, wide(g) / (2 * wide(root)))


@derivative("var", saves="input")
@numpy_names
def var(g, input, dim=None, unbiased=None, keepdim=False, *, correction=None):
    return _spread(g, input, dim, unbiased, keepdim, correction)


@derivative("std", saves="input result")
@numpy_names
def std(g, input, dim=None, unbiased=None, keepdim=False, *, correction=None, result):
    return _spread(_of_root(g, result), input, dim, unbiased, keepdim, correction)


@derivative("var_mean", saves="input")
@numpy_names
def var_mean(g, input, dim=None, unbiased=None, keepdim=False, *, correction=None):
    axes = reduced_axes(None if isinstance(dim, bool) else dim, input.ndim)
    of_mean = _expanded(wide(g[1]), axes, keepdim) / count(input.shape, axes)
    return _spread(g[0], input, dim, unbiased, keepdim, correction) + of_mean


@derivative("std_mean", saves="input result")
@numpy_names
def std_mean(g, input, dim=None, unbiased=None, keepdim=False, *, correction=None, result):
    g = (_of_root(g[0], result), g[1])
    return var_mean(g, input, dim, unbiased, keepdim, correction=correction)


@derivative("vector_norm", saves="input")
@numpy_names
def vector_norm(g, input, ord=2, *args, **kwargs):
    return _of_norm("vector_norm", g, input, ord, *args, **kwargs)


@derivative("linalg.norm", saves="A")
@numpy_names
def linalg_norm(g, A, ord=None, *args, **kwargs):
    return _of_norm("linalg.norm", g, A, ord, *args, **kwargs)


def _of_norm(name: str, g, x, ord, *args, **kwargs):
    if ord == 0:
        return (None,)  # torch has no gradient of a number of elements
    function = TABLE[name].function
    return mx.vjp(lambda x: function(x, ord, *args, **kwargs), [x], [g])[1][0]


@derivative("_smooth_l1_loss", saves="input target")
def smooth_l1(g, input, target, reduction, beta):
    d = wide(input) - wide(target)
    slope = mx.clip(d / beta, -1, 1) if beta > 0 else mx.sign(d)
    return _of_loss(g, (slope, -slope), reduction)


@derivative("_huber_loss", saves="input target")
def huber(g, input, target, reduction, delta):
    d = wide(input) - wide(target)
    slope = mx.clip(d, -delta, delta)
    return _of_loss(g, (slope, -slope), reduction)


def _of_loss(g, slopes, reduction: str):
    found = [wide(g) * slope for slope in slopes]
    return tuple(f / f.size for f in found) if reduction == "mean" else tuple(found)


NAMES["vector_norm"] = "LinalgVectorNormBackward0"
