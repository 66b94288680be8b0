"""Sampling a grid of points: grid_sample in two and three dimensions, and affine_grid."""

from __future__ import annotations

import itertools
import math

import mlx.core as mx

from ..core.op import op
from ._calling import chosen, picked, torch_name, wide
from .resize import _cubic_weights

MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")


def _to_elements(coordinate: mx.array, size: int, align_corners: bool) -> mx.array:
    """[-1, 1] as positions in input elements."""
    if align_corners:
        return (coordinate + 1) / 2 * (size - 1)
    return ((coordinate + 1) * size - 1) / 2


def _reflected(where: mx.array, twice_low: int, twice_high: int) -> mx.array:
    """Positions mirrored at both ends until they lie between them; the ends are given doubled."""
    if twice_low == twice_high:
        return mx.zeros_like(where)
    low, span = twice_low / 2, (twice_high - twice_low) / 2
    distance = mx.abs(where - low)
    flips = mx.floor(distance / span)
    extra = distance - flips * span
    even = (flips - 2 * mx.floor(flips / 2)) == 0
    return mx.where(even, extra + low, span - extra + low)


def _padded(where: mx.array, size: int, padding: str, align_corners: bool) -> mx.array:
    if padding == "zeros":
        return where
    if padding == "reflection":
        ends = (0, 2 * (size - 1)) if align_corners else (-1, 2 * size - 1)
        where = _reflected(where, *ends)
    return mx.clip(where, 0, size - 1)


def _gathered(flat: mx.array, index: list[mx.array], sizes) -> mx.array:
    """Elements of flat [N, C, positions] at whole positions, [N, P] a dimension; 0 outside."""
    inside, offset = None, mx.zeros((), mx.int64)
    for where, size in zip(index, sizes, strict=True):
        ok = (where >= 0) & (where <= size - 1)
        inside = ok if inside is None else inside & ok
        offset = offset * size + mx.where(ok, where, 0).astype(mx.int64)
    assert inside is not None
    offset = mx.broadcast_to(offset[:, None], (*flat.shape[:2], offset.shape[-1]))
    found = picked(flat, offset, axis=2)
    return chosen(inside[:, None], found, mx.zeros((), flat.dtype))


def _neighbours(mode: str, where: mx.array, size: int, padding: str, align_corners: bool):
    """(positions, weights) that one dimension contributes."""
    if mode == "bicubic":
        base = mx.floor(where)
        shifted = [base + shift for shift in (-1, 0, 1, 2)]
        points = [_padded(p, size, padding, align_corners) for p in shifted]
        return list(zip(points, _cubic_weights(where - base), strict=True))
    where = _padded(where, size, padding, align_corners)
    if mode == "nearest":
        return [(mx.round(where), mx.ones((), where.dtype))]
    low = mx.floor(where)
    return [(low, low + 1 - where), (low + 1, where - low)]


def _check(input, grid, mode: str, padding: str) -> None:
    if mode not in MODES:
        raise ValueError(
            "nn.functional.grid_sample(): expected mode to be 'bilinear', 'nearest' or "
            "'bicubic', but "
            f"got: '{mode}'"
        )
    if padding not in PADDINGS:
        raise ValueError(
            "nn.functional.grid_sample(): expected padding_mode to be 'zeros', 'border', or "
            f"'reflection', but got: '{padding}'"
        )
    if input.dtype != grid.dtype:
        raise RuntimeError(
            "grid_sampler(): expected input and grid to have same dtype, but input has "
            f"{torch_name(input)} and grid has {torch_name(grid)}"
        )
    n = input.ndim - 2
    if n not in (2, 3) or grid.ndim != input.ndim:
        raise RuntimeError(
            "grid_sampler(): expected 4D or 5D input and grid with same number of dimensions, "
            "but got "
            f"input with sizes {list(input.shape)} and grid with sizes {list(grid.shape)}"
        )
    if input.shape[0] != grid.shape[0] or grid.shape[-1] != n:
        raise RuntimeError(
            "grid_sampler(): expected grid and input to have same batch size, and grid to have "
            "size "
            f"{n} in last dimension, but got input with sizes {list(input.shape)} and grid with "
            "sizes "
            f"{list(grid.shape)}"
        )
    if mode == "bicubic" and n == 3:
        raise RuntimeError("grid_sampler(): bicubic interpolation only supports 4D input")


@op(at=("F",))
def grid_sample(input, grid, mode="bilinear", padding_mode="zeros", align_corners=None):
    """input [N, C, *spatial] at the points grid [N, *out, n] of [-1, 1]^n, last dimension first.

    torch.nn.functional.grid_sample.
    """
    _check(input, grid, mode, padding_mode)
    n, sizes = input.ndim - 2, input.shape[2:]
    batch, channels, outputs = input.shape[0], input.shape[1], grid.shape[1:-1]
    points = wide(grid).reshape(batch, math.prod(outputs), n)
    flat = wide(input).reshape(batch, channels, math.prod(sizes))
    sides = []
    for i, size in enumerate(sizes):
        where = _to_elements(points[..., n - 1 - i], size, bool(align_corners))
        sides.append(_neighbours(mode, where, size, padding_mode, bool(align_corners)))
    total = mx.zeros((), flat.dtype)
    for corner in itertools.product(*sides):
        weight = math.prod(w for _, w in corner)
        index = [p for p, _ in corner]
        weight = mx.broadcast_to(weight, (batch, math.prod(outputs)))  # type: ignore[arg-type]
        total = total + _gathered(flat, index, sizes) * weight[:, None]
    return total.reshape(batch, channels, *outputs).astype(input.dtype)


@op(at=("F",))
def affine_grid(theta, size, align_corners=None):
    """Points of grid_sample for the affine maps theta [N, n, n + 1]; `size` is the output's.

    torch.nn.functional.affine_grid.
    """
    size = tuple(int(s) for s in size)
    n = len(size) - 2
    if n not in (2, 3) or theta.ndim != 3 or theta.shape[1:] != (n, n + 1):
        raise ValueError(
            f"Expected a batch of {n}D affine matrices of shape Nx{n}x{n + 1} for size "
            f"{list(size)}. "
            f"Got {list(theta.shape)}."
        )
    axes = []
    for count in size[2:]:
        steps = mx.linspace(-1, 1, count) if count > 1 else mx.zeros((count,))
        axes.append(steps if align_corners else steps * (count - 1) / count)
    grids = mx.meshgrid(*axes, indexing="ij")
    points = mx.stack([*reversed(grids), mx.ones(size[2:])], axis=-1).reshape(1, -1, n + 1)
    matrix = wide(theta)
    result = points.astype(matrix.dtype) @ matrix.swapaxes(1, 2)
    return result.reshape(size[0], *size[2:], n).astype(theta.dtype)
