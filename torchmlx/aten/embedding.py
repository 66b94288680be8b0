"""Embeddings: rows of a table by integer indices."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

from ..core import dtype as dtypes
from ..core.op import composite, op
from ..core.tensor import Tensor
from ._calling import picked, wide
from .index import check_bounds


@op("_rows", at=())
def _rows(weight, indices, padding_idx=-1, by_frequency=False):
    """Its gradient leaves out padding_idx and divides, by_frequency, by how often a row is read:
    autograd/derivatives.py.
    """
    return mx.take(weight, indices, axis=0)


def check_indices(indices: Tensor, rows: int) -> None:
    if indices.dtype not in (dtypes.int64, dtypes.int32):
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: "
            f"Long, Int; but got {indices.type()} instead (while checking arguments for embedding)"  # type: ignore[attr-defined]
        )
    array = indices._read()
    check_bounds(array, rows, indices.device, lambda bad: IndexError("index out of range in self"))
    if indices.device.type == "cpu" and array.size and mx.min(array).item() < 0:  # type: ignore[operator]
        raise IndexError("index out of range in self")


@composite(at=("torch",))
def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    """Rows of weight [N, D] at integer indices [...]: [..., D]. IndexError out of range.

    torch.embedding.
    """
    if weight.ndim != 2:
        raise RuntimeError("'weight' must be 2-D")
    check_indices(indices, weight.shape[0])
    return _rows(weight, indices, padding_idx, scale_grad_by_freq)


def padding_index(padding_idx: int | None, rows: int) -> int:
    """padding_idx as torch stores it: -1 for none, never negative otherwise."""
    if padding_idx is None:
        return -1
    if not -rows <= padding_idx < rows:
        raise AssertionError("Padding_idx must be within num_embeddings")
    return padding_idx % rows


def renormalise(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale the rows that `indices` names down to max_norm, in place."""
    norm = weight.detach().norm(norm_type, 1, True)  # type: ignore[attr-defined]
    used = (indices.reshape(-1, 1) == _arange(weight)).any(0).unsqueeze(1)  # type: ignore[attr-defined]
    scale = (max_norm / (norm + 1e-7)).where(used & (norm > max_norm), norm.new_ones(()))
    weight.data.mul_(scale)  # type: ignore[attr-defined]


def _arange(weight: Tensor):
    from .creation import arange

    return arange(weight.shape[0], device=weight.device)


@composite(at=("F",))
def one_hot(tensor, num_classes=-1):
    """int64 indices [...] as ones among num_classes (-1: the largest index + 1) zeros.

    torch.nn.functional.one_hot.
    """
    if tensor.dtype is not dtypes.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if tensor.numel() == 0:
        if num_classes <= 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        return tensor.new_zeros((*tensor.shape, num_classes))
    low, high = int(tensor.min()), int(tensor.max())
    if low < 0:
        raise RuntimeError("Class values must be non-negative.")
    if num_classes == -1:
        num_classes = high + 1
    if num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    if high >= num_classes:
        raise RuntimeError("Class values must be smaller than num_classes.")
    return _one_hot(tensor, num_classes)


@op("_one_hot", at=())
def _one_hot(indices, num_classes):
    return (indices[..., None] == mx.arange(num_classes, dtype=mx.int64)).astype(mx.int64)


@op("_bags", at=())
def bags(weight, indices, owner, count, mode, scale, counted):
    """Rows of weight at indices [n], combined in `count` bags; owner [n] is each row's bag.

    `scale` [n] multiplies rows; only rows that are `counted` [n] (bool) take part.
    """
    rows = wide(mx.take(weight, indices, axis=0))
    if scale is not None:
        rows = rows * wide(scale)[:, None]
    shape = (count, weight.shape[1])
    sizes = mx.zeros((count,), mx.int32).at[owner].add(counted.astype(mx.int32))[:, None]
    if mode == "max":
        return mx.where(sizes > 0, _largest(rows, owner, shape, counted), 0).astype(weight.dtype)
    rows = mx.where(counted[:, None], rows, mx.array(0, rows.dtype))
    result = mx.zeros(shape, rows.dtype).at[owner].add(rows)
    if mode == "mean":
        result = result / mx.maximum(sizes, 1)
    return result.astype(weight.dtype)


def _largest(rows, owner, shape, counted) -> mx.array:
    """The maxima of each bag, [*shape], each taken from the first row that has it."""
    candidates = mx.where(counted[:, None], rows, mx.array(-math.inf, rows.dtype))
    lowest = mx.full(shape, -math.inf, rows.dtype)
    top = mx.stop_gradient(lowest.at[owner].maximum(candidates))
    n = rows.shape[0]
    here = mx.where(candidates == top[owner], mx.arange(n)[:, None], n - 1)
    return picked(rows, mx.full(shape, n - 1, here.dtype).at[owner].minimum(here), axis=0)


def owners(offsets: Tensor, elements: int, include_last: bool) -> tuple[np.ndarray, int]:
    """The bag of each element, and how many bags there are."""
    starts = np.array(offsets.tolist(), np.int64)
    if include_last:
        starts = starts[:-1]
    if starts.size and starts[0] != 0:
        raise RuntimeError(
            f"offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from "
            f"position 0. However, got {starts[0]}"
        )
    return np.searchsorted(starts, np.arange(elements), side="right") - 1, starts.size


@composite(at=("F",))
def embedding_bag(
    input, weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False, mode="mean",
    sparse=False, per_sample_weights=None, include_last_offset=False, padding_idx=None,
):  # fmt: skip
    """Sum, mean or maximum of the rows of each bag: input [B, n], or [n] with offsets [B].

    torch.nn.functional.embedding_bag.
    """
    if mode not in ("sum", "mean", "max"):
        raise ValueError("mode has to be one of sum, mean or max")
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError(
            "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported "
            f"for mode='sum' (got mode='{mode}'). Please open a feature request on GitHub."
        )
    owner, count = _bag_layout(input, offsets, include_last_offset)
    indices = input.reshape(-1)
    check_indices(indices, weight.shape[0])
    if max_norm is not None:
        renormalise(weight, indices, max_norm, norm_type)
    counted = indices != padding_index(padding_idx, weight.shape[0])
    scale = None if per_sample_weights is None else per_sample_weights.reshape(-1)
    owner = indices.new_tensor(owner, dtype=dtypes.int64)
    return bags(weight, indices, owner, count, mode, scale, counted)


def _bag_layout(input, offsets, include_last_offset: bool):
    if input.ndim == 2:
        if offsets is not None:
            raise ValueError(
                "if input is 2D, then offsets has to be None, as input is treated is a mini-batch "
                f"of fixed length sequences. However, found offsets of type {type(offsets)}"
            )
        return np.repeat(np.arange(input.shape[0]), input.shape[1]), input.shape[0]
    if input.ndim != 1:
        raise ValueError(
            f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.ndim}"
        )
    if offsets is None:
        raise ValueError("offsets has to be a 1D Tensor but got None")
    if offsets.ndim != 1:
        raise ValueError("offsets has to be a 1D Tensor")
    return owners(offsets, input.numel(), include_last_offset)
