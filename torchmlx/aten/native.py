"""ATen's own forms of what nn.functional has: reductions and modes as numbers, no defaults, the
statistics among the results.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from ..core import dtype as dtypes
from ..core.layout import wrap_dims
from ..core.op import TABLE, composite
from .embedding import bags, check_indices, owners, padding_index, renormalise

REDUCTIONS = ("none", "mean", "sum")


def _loss(name: str, tensors: int, *parameters: str) -> None:
    """torch.NAME(tensors, parameters, reduction): a number, 1 (the mean) by default."""

    @composite("torch." + name, at=("torch",))
    def loss(*args, **kwargs):
        given = dict(zip((*parameters, "reduction"), args[tensors:], strict=False)) | kwargs
        given["reduction"] = REDUCTIONS[given.get("reduction", 1)]
        return TABLE[name].call(*args[:tensors], **given)

    loss.__doc__ = f"nn.functional.{name}, the reduction as a number. torch.{name}."


_loss("kl_div", 2)
_loss("binary_cross_entropy_with_logits", 2, "weight", "pos_weight")
_loss("cosine_embedding_loss", 3, "margin")
_loss("hinge_embedding_loss", 2, "margin")
_loss("margin_ranking_loss", 3, "margin")
_loss("triplet_margin_loss", 3, "margin", "p", "eps", "swap")
_loss("poisson_nll_loss", 2, "log_input", "full", "eps")


def _sampler(name: str) -> None:
    @composite(name, at=("torch",))
    def sampler(input, grid, interpolation_mode, padding_mode, align_corners):
        return TABLE["grid_sample"].call(
            input,
            grid,
            ("bilinear", "nearest", "bicubic")[interpolation_mode],
            ("zeros", "border", "reflection")[padding_mode],
            align_corners,
        )

    sampler.__doc__ = f"nn.functional.grid_sample, modes as numbers. torch.{name}."


for _name in ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"):
    _sampler(_name)


@composite(at=("torch",))
def affine_grid_generator(theta, size, align_corners):
    """nn.functional.affine_grid. torch.affine_grid_generator."""
    return TABLE["affine_grid"].call(theta, size, align_corners)


@composite("torch.embedding_bag", at=("torch",))
def _embedding_bag(
    weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False,
    per_sample_weights=None, include_last_offset=False, padding_idx=None,
):  # fmt: skip
    """(bags, each element's bag, bag sizes, rows of the maxima): mode 0 sum, 1 mean, 2 max.

    torch.embedding_bag. What torch's CPU kernel leaves out of a sum's results is there.
    """
    check_indices(indices, weight.shape[0])
    owner, count = owners(offsets, indices.numel(), include_last_offset)
    counted = indices != padding_index(padding_idx, weight.shape[0])
    where = indices.new_tensor(owner)
    kind = ("sum", "mean", "max")[mode]
    result = bags(weight, indices, where, count, kind, per_sample_weights, counted)
    sizes = indices.new_tensor(np.bincount(owner, minlength=count))
    if mode < 2:
        return result, where, sizes, sizes
    chosen = [
        [_row_of_maximum(weight, indices, owner == b, d) for d in range(weight.shape[1])]
        for b in range(count)
    ]
    return result, where, sizes, indices.new_tensor(chosen)


def _row_of_maximum(weight, indices, members: np.ndarray, column: int) -> int:
    rows = np.asarray(indices.tolist())[members]
    return int(max(rows, key=lambda r: weight[int(r), column].item())) if rows.size else 0


@composite(at=("torch",))
def embedding_renorm_(input, indices, max_norm, norm_type):
    """Rows of input at indices scaled down to a norm of max_norm. torch.embedding_renorm_."""
    renormalise(input, indices, max_norm, norm_type)
    return input


@composite(at=("torch",))
def convolution(
    input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
):  # fmt: skip
    """A convolution, or a transposed one, over as many dims as weight has. torch.convolution."""
    n = weight.ndim - 2
    if transposed:
        call = TABLE[f"conv_transpose{n}d"].call
        return call(input, weight, bias, stride, padding, output_padding, groups, dilation)
    return TABLE[f"conv{n}d"].call(input, weight, bias, stride, padding, dilation, groups)


@composite(at=("torch", "F"))
def conv_tbc(input, weight, bias, pad=0):
    """input [T, B, C], weight [K, C, O] -> [T', B, O]. torch.conv_tbc."""
    x, w = input.permute(1, 2, 0), weight.permute(2, 1, 0)
    return TABLE["conv1d"].call(x, w, bias, padding=pad).permute(2, 0, 1)


@composite("constant_pad_nd", at=("torch",))
def constant_pad_nd(input, pad, value=0):
    """nn.functional.pad with a constant. torch.constant_pad_nd."""
    return TABLE["pad"].call(input, pad, "constant", value)


def _statistics(input, dims, eps: float):
    """(mean, 1 / deviation) over dims, as the norms compute them."""
    variance, mean = TABLE["var_mean"].call(input, dims, correction=0, keepdim=True)
    return mean, (variance + eps).rsqrt()


@composite(at=("torch",))
def native_layer_norm(input, normalized_shape, weight, bias, eps):
    """(normalised, means, 1 / deviations). torch.native_layer_norm."""
    result = TABLE["layer_norm"].call(input, normalized_shape, weight, bias, eps)
    n = len(normalized_shape)
    return result, *_statistics(input, tuple(range(input.ndim - n, input.ndim)), eps)


@composite(at=("torch",))
def native_group_norm(input, weight, bias, N, C, HxW, group, eps):
    """(normalised, means [N, group], 1 / deviations). torch.native_group_norm."""
    result = TABLE["group_norm"].call(input, group, weight, bias, eps)
    mean, scale = _statistics(input.reshape(N, group, C // group * HxW), (2,), eps)
    return result, mean.squeeze(-1), scale.squeeze(-1)


@composite(at=("torch",))
def native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    """(normalised, means [C], 1 / deviations; empty unless training). torch.native_batch_norm."""
    call = TABLE["batch_norm"].call
    result = call(input, weight, bias, running_mean, running_var, training, momentum, eps, False)
    if not training:
        return result, input.new_zeros(0), input.new_zeros(0)
    mean, scale = _statistics(input, (0, *range(2, input.ndim)), eps)
    return result, mean.reshape(-1), scale.reshape(-1)


def _norm(name: str, order: str) -> None:
    @composite(name, at=("torch",))
    def norm(input, dim=None, keepdim=False):
        if order == "nuc" or (dim is not None and len(dim) == 2):
            dims = (-2, -1) if dim is None else dim
            return TABLE["linalg.matrix_norm"].call(input, order, dims, keepdim)
        return TABLE["linalg.vector_norm"].call(input, 2, dim, keepdim)

    norm.__doc__ = f"A matrix norm by its old name. torch.{name}."


_norm("frobenius_norm", "fro")
_norm("nuclear_norm", "nuc")


@composite("range", at=("torch",))
def range_(
    start=0, end=None, step=1, *, dtype=None, layout=None, device=None,
    requires_grad=False, pin_memory=False,
):  # fmt: skip
    """start, start + step, ... up to end, which counts. torch.range."""
    start, end = (0, start) if end is None else (start, end)
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if (end - start) * step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    values = start + np.arange(math.floor((end - start) / step) + 1) * step
    result = TABLE["tensor"].call(values, dtype=dtype or dtypes.get_default_dtype(), device=device)
    return result.requires_grad_() if requires_grad else result


@composite()
def nonzero_static(input, *, size, fill_value=-1):
    """torch.nonzero cut off or filled up to `size` rows. torch.nonzero_static."""
    if size < 0:
        raise RuntimeError("nonzero_static: 'size' must be an non-negative integer")
    found = TABLE["nonzero"].call(input)[:size]
    rest = found.new_full((size - found.shape[0], found.shape[1]), fill_value)
    return TABLE["cat"].call((found, rest))


def _along(input, spacing, dim: int, edge: int):
    """The slope along one dim: central differences, at the ends one-sided ones of order `edge`."""
    n = input.shape[dim]
    if n < edge + 1:
        raise RuntimeError(
            "torch.gradient expected each dimension size to be at least edge_order+1"
        )

    def part(start, stop):
        return input.narrow(dim, start % n, (stop - start))

    if isinstance(spacing, (int, float, complex)):
        step = left = right = spacing
        inner = (part(2, n) - part(0, n - 2)) / (2 * step)
        first, last = spacing, spacing
        before, after = (spacing, spacing), (spacing, spacing)
    else:
        gaps = spacing[1:] - spacing[:-1]
        shape = [1] * input.ndim
        shape[dim] = -1
        left, right = gaps[:-1].reshape(shape), gaps[1:].reshape(shape)
        inner = (
            part(2, n) * (left / (right * (left + right)))
            + part(1, n - 1) * ((right - left) / (left * right))
            - part(0, n - 2) * (right / (left * (left + right)))
        )
        first, last = gaps[0], gaps[-1]
        before, after = (gaps[0], gaps[min(1, n - 2)]), (gaps[-1], gaps[max(-2, 1 - n)])
    if edge == 1:
        ends = ((part(1, 2) - part(0, 1)) / first, (part(n - 1, n) - part(n - 2, n - 1)) / last)
    else:
        ends = (
            _end_slope(part(0, 1), part(1, 2), part(2, 3), *before),
            -_end_slope(part(n - 1, n), part(n - 2, n - 1), part(n - 3, n - 2), *after),
        )
    return TABLE["cat"].call((ends[0], inner, ends[1]), dim)


def _end_slope(at, next_, second, a, b):
    """The slope at the first of three points with distances a and b, exact for parabolas."""
    return (
        at * (-(2 * a + b) / (a * (a + b)))
        + next_ * ((a + b) / (a * b))
        - second * (a / (b * (a + b)))
    )


@composite(at=("torch",))
def gradient(input, *, spacing=1, dim=None, edge_order=1):
    """Slopes of sampled values along dims; spacing: numbers, or coordinates. torch.gradient."""
    if edge_order not in (1, 2):
        raise RuntimeError("torch.gradient only supports edge_order=1 and edge_order=2.")
    dims = wrap_dims(dim, input.ndim)
    spacing = 1 if spacing is None else spacing
    several = isinstance(spacing, (tuple, list))
    if several and len(spacing) != len(dims):
        raise RuntimeError(
            "torch.gradient expected spacing to be unspecified, a scalar, or it's spacing and dim "
            f"arguments to have the same length, but got a spacing argument of length "
            f"{len(spacing)} and a dim argument of length {len(dims)}."
        )
    steps = spacing if several else itertools.repeat(spacing)
    return [_along(input, s, d, edge_order) for s, d in zip(steps, dims, strict=False)]


@composite(at=("torch",))
def empty_permuted(size, physical_layout, *, dtype=None, device=None, requires_grad=False, **_):
    """Memory whose dims lie in the order `physical_layout`. torch.empty_permuted."""
    order = list(physical_layout)
    if len(order) != len(size):
        raise RuntimeError(
            "Number of dimensions in size does not match the length of the physical_layout; i.e. "
            f"len(size) = {len(size)} is not equal to len(physical_layout) = {len(order)}"
        )
    for i, d in enumerate(order):
        if not 0 <= d < len(size):
            raise RuntimeError(
                "Dimension out of range (expected to be between 0 and "
                f"{len(size) - 1}, but got {d} at index {i}).  NB: negative dims not currently "
                "supported; file an issue if you want it."
            )
    if len(set(order)) < len(order):
        raise RuntimeError("Duplicate dim not allowed")
    made = TABLE["empty"].call([size[d] for d in order], dtype=dtype, device=device)
    result = made.permute(*np.argsort(order).tolist())
    return result.requires_grad_() if requires_grad else result
