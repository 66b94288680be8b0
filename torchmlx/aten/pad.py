"""Padding: constants, and index arithmetic for reflect, replicate and circular."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ..core.op import op
from ._calling import torch_name


def _pairs(pad) -> list[tuple[int, int]]:
    """torch lists (before, after) from the last dimension backwards."""
    pad = [int(p) for p in pad]
    return list(zip(pad[::2], pad[1::2], strict=True))


def _constant(x: mx.array, pad, value) -> mx.array:
    pairs = _pairs(pad)
    widths = [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]
    crop = tuple(
        slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(x.shape, widths, strict=True)
    )
    for d, (n, (a, b)) in enumerate(zip(x.shape, widths, strict=True)):
        if n + a + b < 0:
            raise RuntimeError(
                f"The input size {n}, plus negative padding {a} and {b} resulted in a negative "
                "output "
                "size, which is invalid. Check dimension "
                f"{d} of your input."
            )
    x = x[crop]
    grow = [(max(0, a), max(0, b)) for a, b in widths]
    return mx.pad(x, grow, constant_values=mx.array(value, x.dtype)) if any(map(any, grow)) else x


def _positions(mode: str, n: int, before: int, after: int) -> np.ndarray:
    """Where each element of the padded dimension comes from."""
    if mode == "circular":
        # What negative padding removes is gone before the rest wraps around.
        kept = n + min(before, 0) + min(after, 0)
        return np.arange(-max(before, 0), kept + max(after, 0)) % kept + max(-before, 0)
    where = np.arange(-before, n + after)
    if mode == "replicate":
        return np.clip(where, 0, n - 1)
    where = np.abs(where)
    return np.where(where >= n, 2 * (n - 1) - where, where)


def _check(mode: str, x: mx.array, dim: int, before: int, after: int) -> None:
    n = x.shape[dim]
    if mode == "reflect" and (before >= n or after >= n):
        raise RuntimeError(
            "Argument #4: Padding size should be less than the corresponding input dimension, "
            "but got: "
            f"padding ({before}, {after}) at dimension {dim} of input {list(x.shape)}"
        )
    if mode == "circular" and (before > n or after > n):
        raise RuntimeError("Padding value causes wrapping around more than once.")
    if n + before + after < (1 if mode != "circular" else 0):
        raise RuntimeError(
            f"input (size: {n}) is too small. Calculated output size {n + before + after} for "
            f"dimension {dim}"
        )
    if n == 0:
        raise RuntimeError(
            "Expected input to have non-zero size for non-batch dimensions, but got "
            f"{list(x.shape)}"
        )


@op(at=("F", "torch"))
def pad(input, pad, mode="constant", value=None):
    """Elements added (or with negative numbers removed) around the last dimensions; `pad` lists
    (before, after) from the last dimension backwards. torch.nn.functional.pad.
    """
    if len(pad) % 2:
        raise RuntimeError("Padding length must be divisible by 2")
    if len(pad) // 2 > input.ndim:
        raise RuntimeError(
            "Padding length should be less than or equal to two times the input dimension but got "
            f"padding length {len(pad)} and input of dimension {input.ndim}"
        )
    if mode == "constant":
        return _constant(input, pad, 0 if value is None else value)
    if value is not None and value != 0:
        raise RuntimeError(f'Padding mode "{mode}" doesn\'t take in value argument')
    if mode not in ("reflect", "replicate", "circular"):
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    pairs = _pairs(pad)
    if not pairs or input.ndim not in (len(pairs) + 1, len(pairs) + 2) or len(pairs) > 3:
        raise NotImplementedError(
            "Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now"
        )
    if input.dtype == mx.bool_ and mode != "circular":
        raise NotImplementedError(f"\"{mode}\" not implemented for '{torch_name(input)}'")
    result = input
    for i, (before, after) in enumerate(pairs):
        dim = input.ndim - 1 - i
        _check(mode, input, dim, before, after)
        if before or after:
            where = _positions(mode, input.shape[dim], before, after)
            result = mx.take(result, mx.array(where), axis=dim)
    return result
