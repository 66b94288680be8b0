"""torch.masked: reductions and normalisations of the elements where a mask holds. MaskedTensor is
not here; a mask is a tensor that broadcasts to the input, or None for all elements.
"""

from __future__ import annotations

import math
from typing import Any

import torchmlx as torch

from ..core import dtype as dtypes
from ..core.tensor import Tensor

__all__ = [
    "amax", "amin", "argmax", "argmin", "cumprod", "cumsum", "log_softmax", "logaddexp",
    "logsumexp", "mean", "median", "norm", "normalize", "prod", "softmax", "softmin", "std", "sum",
    "var",
]  # fmt: skip


def _where(input: Tensor, mask: Tensor | None, fill: Any) -> Tensor:
    """The input with `fill`, which changes no result, where the mask does not hold."""
    if mask is None:
        return input
    if mask.ndim > input.ndim:
        raise IndexError(
            "_input_mask expected broadcastable mask (got mask dimensionality higher than of the "
            "input)"
        )
    return torch.where(mask.to(torch.bool).expand(input.shape), input, fill)


def _whole(input: Tensor, dtype: Any) -> Any:
    """The dtype of a sum: int64 for integers."""
    return dtype or (torch.int64 if input.dtype.category < dtypes.FLOAT else input.dtype)


def _float(name: str, input: Tensor, dtype: Any) -> Any:
    if dtype is None and input.dtype.category < dtypes.FLOAT:
        raise ValueError(
            f"{name}(): Could not infer output dtype. Input dtype must be either a floating point "
            f"or complex dtype. Got: {input.dtype}"
        )
    return dtype or input.dtype


def _dims(input: Tensor, dim: Any) -> tuple[int, ...]:
    if dim is None or dim == ():
        return tuple(range(input.ndim))
    return (dim,) if isinstance(dim, int) else tuple(dim)


def _limit(name: str, input: Tensor, sign: float) -> Any:
    """The largest number of a dtype, or the least."""
    if input.dtype is torch.bool:
        raise NotImplementedError(f"identity of {name} on {input.dtype} input")
    if input.dtype.category >= dtypes.FLOAT:
        return sign * math.inf
    limits = torch.iinfo(input.dtype)
    return limits.max if sign > 0 else limits.min


def sum(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The sum of the kept elements; 0 of none. torch.masked.sum."""
    dtype = _whole(input, dtype)
    return _where(input, mask, 0).sum(_dims(input, dim), keepdim=bool(keepdim), dtype=dtype)


def prod(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The product of the kept elements; 1 of none. torch.masked.prod."""
    result = _where(input, mask, 1).to(_whole(input, dtype))
    for d in sorted((d % max(input.ndim, 1) for d in _dims(input, dim)), reverse=True):
        result = result.prod(d, keepdim=bool(keepdim))
    return result


def cumsum(input, dim, *, dtype=None, mask=None):
    """The running sum of the kept elements. torch.masked.cumsum."""
    return _where(input, mask, 0).cumsum(dim, dtype=dtype or input.dtype)


def cumprod(input, dim, *, dtype=None, mask=None):
    """The running product of the kept elements. torch.masked.cumprod."""
    return _where(input, mask, 1).cumprod(dim, dtype=dtype or input.dtype)


def amax(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The largest kept element; the dtype's least number of none. torch.masked.amax."""
    kept = _where(input, mask, _limit("amax", input, -1))
    return kept.amax(_dims(input, dim), keepdim=bool(keepdim)).to(dtype or input.dtype)


def amin(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The least kept element; the dtype's largest number of none. torch.masked.amin."""
    kept = _where(input, mask, _limit("amin", input, 1))
    return kept.amin(_dims(input, dim), keepdim=bool(keepdim)).to(dtype or input.dtype)


def argmax(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The place of the largest kept element, in input's dtype as torch has it.

    torch.masked.argmax.
    """
    kept = _where(input, mask, _limit("argmax", input, -1))
    return kept.argmax(dim, keepdim=bool(keepdim)).to(dtype or input.dtype)


def argmin(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The place of the least kept element, in input's dtype as torch has it.

    torch.masked.argmin.
    """
    kept = _where(input, mask, _limit("argmin", input, 1))
    return kept.argmin(dim, keepdim=bool(keepdim)).to(dtype or input.dtype)


def _count(input: Tensor, dims: tuple[int, ...], mask: Tensor | None) -> Tensor:
    return sum(torch.ones_like(input, dtype=torch.int64), dims, keepdim=True, mask=mask)


def _without(x: Tensor, dims: tuple[int, ...], keepdim: bool | None) -> Tensor:
    """`x` without its dims of size 1, unless they are to stay."""
    return x if keepdim or not x.ndim else x.squeeze(dims)


def mean(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The mean of the kept elements; NaN of none. torch.masked.mean."""
    dtype, dims = _float("mean", input, dtype), _dims(input, dim)
    total = sum(input, dims, keepdim=True, dtype=dtype, mask=mask)
    return _without((total / _count(input, dims, mask)).to(dtype), dims, keepdim)


def _variance(input, dim, unbiased, correction, keepdim, dtype, mask) -> Tensor:
    if unbiased is not None and correction is not None:
        raise AssertionError("Only one of unbiased and correction may be given")
    correction = correction if correction is not None else float(unbiased is not False)
    if dtype is None:
        dtype = input.dtype if input.dtype.category >= dtypes.FLOAT else torch.float32
    dims = _dims(input, dim)
    count = _count(input, dims, mask)
    apart = input - sum(input, dims, keepdim=True, dtype=dtype, mask=mask) / count
    squares = sum(apart * apart.conj(), dims, keepdim=True, mask=mask)
    return _without((squares / (count - correction).clamp(min=0)).to(dtype), dims, keepdim)


def var(
    input, dim=None, unbiased=None, *, correction=None, keepdim=False, dtype=None, mask=None
):  # fmt: skip
    """The variance of the kept elements. torch.masked.var."""
    return _variance(input, dim, unbiased, correction, keepdim, dtype, mask)


def std(
    input, dim=None, unbiased=None, *, correction=None, keepdim=False, dtype=None, mask=None
):  # fmt: skip
    """The standard deviation of the kept elements. torch.masked.std."""
    return _variance(input, dim, unbiased, correction, keepdim, dtype, mask).sqrt()


def norm(input, ord=2.0, dim=None, *, keepdim=False, dtype=None, mask=None):
    """The norm of the kept elements as a vector. torch.masked.norm."""
    kept = _where(input, mask, math.inf if ord == -math.inf else 0)
    dims = _dims(input, dim)
    return torch.linalg.vector_norm(kept, ord, dims, bool(keepdim), dtype=dtype)


def normalize(input, ord, dim, *, eps=1e-12, dtype=None, mask=None):
    """The kept elements over their norm, 0 elsewhere. torch.masked.normalize."""
    size = norm(input, ord, dim, keepdim=True, dtype=dtype, mask=mask)
    return _where(input, mask, 0) / size.clamp(min=eps)


def median(input, dim=-1, *, keepdim=False, dtype=None, mask=None):
    """The median, the lower of two, of the kept elements; NaN of none. torch.masked.median."""
    if input.dtype.category >= dtypes.FLOAT:
        return _where(input.to(dtype or input.dtype), mask, math.nan).nanmedian(dim, keepdim)[0]
    if mask is not None and not bool(mask.to(torch.bool).expand(input.shape).any(dim).all()):
        raise ValueError(
            "masked median expects no fully masked out rows if dtype is not floating point"
        )
    wide = _where(input.to(torch.float64), mask, math.nan)
    return wide.nanmedian(dim, keepdim)[0].to(dtype or input.dtype)


def softmax(input, dim, *, dtype=None, mask=None):
    """softmax over the kept elements, 0 elsewhere. torch.masked.softmax."""
    return _where(input, mask, _limit("softmax", input, -1)).softmax(dim, dtype=dtype)


def log_softmax(input, dim, *, dtype=None, mask=None):
    """log of softmax over the kept elements, -inf elsewhere. torch.masked.log_softmax."""
    return _where(input, mask, _limit("log_softmax", input, -1)).log_softmax(dim, dtype=dtype)


def softmin(input, dim, *, dtype=None, mask=None):
    """softmax of the negated kept elements, 0 elsewhere. torch.masked.softmin."""
    kept = _where(input, mask, _limit("softmin", input, 1))
    return torch.nn.functional.softmin(kept, dim, dtype=dtype)


def logsumexp(input, dim=None, *, keepdim=False, dtype=None, mask=None):
    """log of the sum of exp of the kept elements; -inf of none. torch.masked.logsumexp."""
    kept = _where(input, mask, _limit("logsumexp", input, -1))
    return kept.logsumexp(_dims(input, dim), keepdim).to(dtype or input.dtype)


def logaddexp(input, other, *, dtype=None, input_mask=None, other_mask=None):
    """logaddexp of the kept elements of both. torch.masked.logaddexp."""
    a = _where(input, input_mask, -math.inf)
    return torch.logaddexp(a, _where(other, other_mask, -math.inf)).to(dtype or input.dtype)
