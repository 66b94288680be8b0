"""make_tensor: random values of any dtype within limits."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torchmlx as torch

from ..core.tensor import Tensor


def make_tensor(
    *shape: Any, dtype: Any, device: Any, low: float | None = None, high: float | None = None,
    requires_grad: bool = False, noncontiguous: bool = False, exclude_zero: bool = False,
    memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Values drawn evenly from [low, high). torch.testing.make_tensor.

    Without limits: bool both values, unsigned integers 0 to 9, others -9 to 9. `exclude_zero`
    puts 1, or the smallest normal number, in place of zeros; `noncontiguous` makes every second
    element of a wider tensor. Raises ValueError for limits that are NaN, in the wrong order or
    outside the dtype, and for settings that exclude each other.
    """
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = tuple(shape[0])
    if noncontiguous and memory_format is not None:
        raise ValueError(
            "The parameters `noncontiguous` and `memory_format` are mutually exclusive, but got "
            f"{noncontiguous=} and {memory_format=}"
        )
    whole = not (dtype.is_floating_point or dtype.is_complex)
    if requires_grad and whole:
        raise ValueError(
            "`requires_grad=True` is not supported for boolean and integral dtypes, but got "
            f"{dtype=}"
        )
    apart = noncontiguous and math.prod(shape) > 1
    if apart:
        shape = (*shape[:-1], 2 * shape[-1])
    limits = _limits(low, high, dtype, whole)
    result = _drawn(shape, limits, dtype, device, whole)
    if apart:
        result = result[..., ::2]
    elif memory_format is not None:
        result = result.clone(memory_format=memory_format)
    if exclude_zero:
        least = 1 if whole else torch.finfo(dtype).tiny
        result[result == 0] = complex(least, least) if dtype.is_complex else least
    return result.requires_grad_() if requires_grad else result


def _drawn(shape, limits, dtype, device, whole: bool) -> Tensor:
    low, high = limits
    if whole:
        return torch.randint(low, high, shape, dtype=dtype, device=device)
    narrow = dtype.itemsize == 1
    result = torch.empty(shape, dtype=torch.float32 if narrow else dtype, device=device)
    parts = torch.view_as_real(result) if dtype.is_complex else result
    if high - low >= torch.finfo(parts.dtype).max:
        parts.uniform_(low / 2, high / 2).mul_(2)  # the width itself would be infinite
    else:
        parts.uniform_(low, high)
    return result.to(dtype)


def _limits(low: float | None, high: float | None, dtype: Any, whole: bool) -> tuple:
    if dtype == torch.bool:
        least, most, usual = 0, 2, (0, 2)
    elif whole:
        kept = torch.iinfo(dtype)
        # torch.randint cannot draw int64's largest value.
        least, most, usual = kept.min, kept.max + (dtype != torch.int64), (-9, 10)
    else:
        kept = torch.finfo(dtype)
        least, most, usual = kept.min, kept.max, (-9, 9)
    low, high = usual[0] if low is None else low, usual[1] if high is None else high
    if math.isnan(low) or math.isnan(high):
        raise ValueError(f"`low` and `high` cannot be NaN, but got {low=} and {high=}")
    if low == high and not whole:
        warnings.warn(
            "Passing `low==high` to `torch.testing.make_tensor` for floating or complex types is "
            "deprecated since 2.1 and will be removed in 2.3. Use `torch.full(...)` instead.",
            FutureWarning,
            stacklevel=3,
        )
    elif low >= high:
        raise ValueError(f"`low` must be less than `high`, but got {low} >= {high}")
    elif high < least or low >= most:
        raise ValueError(
            f"The value interval specified by `low` and `high` is [{low}, {high}), but {dtype} "
            f"only supports [{least}, {most})"
        )
    low, high = (min(max(limit, least), most) for limit in (low, high))
    return (math.ceil(low), math.ceil(high)) if whole else (low, high)
