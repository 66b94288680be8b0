"""Reading and writing where a mask holds: masked_select, masked_fill, masked_scatter."""

from __future__ import annotations

import mlx.core as mx

from ..core import dtype as dtypes
from ..core import layout
from ..core.op import checked_number, composite, op
from ..core.tensor import Tensor, from_array
from .places import require_tensors


@composite()
def masked_select(input, mask):
    """Elements where the mask (broadcastable) holds, as one dimension. Evaluates.

    torch.masked_select.
    """
    require_tensors("masked_select", 1, mask=mask)
    if mask.dtype is not dtypes.bool_:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    shape = layout.broadcast_shapes(mask.shape, input.shape)
    return input.expand(shape)[mask.expand(shape)]


@composite(inplace=True)
def masked_fill(input, mask, value):
    """`input` with `value` where the mask (bool, broadcastable) holds, in input's dtype.

    torch.masked_fill.
    """
    require_tensors("masked_fill", 1, mask=mask)
    if mask.dtype is not dtypes.bool_:
        raise RuntimeError(
            f"masked_fill_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )
    if isinstance(value, Tensor) and value.ndim:
        raise RuntimeError(
            "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with "
            f"{value.ndim} dimension(s)."
        )
    if not isinstance(value, Tensor):
        value = from_array(checked_number(value, input.dtype), input.device, input.dtype)
    return _masked_fill(input, mask, value)


@op("_masked_fill", at=())
def _masked_fill(input, mask, value):
    return mx.where(mask, value.astype(input.dtype), input)


@composite(inplace=True)
def masked_scatter(input, mask, source):
    """`input` with the masked positions filled from `source` in order. torch.masked_scatter."""
    require_tensors("masked_scatter", 1, mask=mask, source=source)
    shape = layout.broadcast_shapes(mask.shape, input.shape)
    if source.dtype is not input.dtype:
        raise RuntimeError(
            "masked_scatter: expected self and source to have same dtypes but got "
            f"{input.dtype.torch_name} and {source.dtype.torch_name}"
        )
    if mask.dtype is not dtypes.bool_:
        raise RuntimeError(
            "masked_scatter_ only supports boolean masks, but got mask with dtype "
            f"{mask.dtype.torch_name}"
        )
    result = input.expand(shape).clone()
    full = mask.expand(shape)
    count = int(full.sum())
    if count > source.numel():
        raise RuntimeError("Number of elements of source < number of ones in mask")
    result[full] = source.reshape(-1)[:count]
    return result
