"""Embeddings: rows of a table by integer indices."""

from __future__ import annotations

import mlx.core as mx

from ..core import dtype as dtypes
from ..core.op import composite, op
from ..core.tensor import Tensor
from .index import check_bounds


@op("_rows", at=())
def _rows(weight, indices):
    return mx.take(weight, indices, axis=0)


def _check_indices(indices: Tensor, rows: int) -> None:
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
    _check_indices(indices, weight.shape[0])
    return _rows(weight, indices)


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
