"""Scaled dot product attention."""

from __future__ import annotations

import math

import mlx.core as mx

from ..core import dtype as dtypes
from ..core.layout import broadcast_shapes
from ..core.op import composite, op
from ..core.tensor import Tensor
from ..kernels.attention import attention
from ..kernels.matmul import matmul
from ..kernels.softmax import softmax
from ._calling import collapse, wide

# torch.backends.cuda's choices, kept for who asks: there is one attention here, and it is exact.
SWITCHES = {"flash": True, "mem_efficient": True, "math": True, "cudnn": True}


@op("_attend", at=())
def _attend(query, key, value, mask, causal, scale):
    rows, columns, lead = query.shape[-2], key.shape[-2], query.shape[:-2]
    if 0 in query.shape or columns == 0:
        return mx.zeros((*lead, rows, value.shape[-1]), query.dtype)
    if mask is not None and query.ndim > 4:
        mask = mx.broadcast_to(mask, (*lead, rows, columns))
    if mask is not None and mask.ndim > 2:
        mask = _four(mask)
    q, k, v = (_four(x) for x in (query, key, value))
    return attention(q, k, v, mask, causal=causal, scale=scale).reshape(*lead, rows, v.shape[-1])


def _four(x: mx.array) -> mx.array:
    """x [..., H, L, D] with all axes before H as one."""
    shape = (1,) * max(0, 4 - x.ndim) + x.shape
    return x.reshape(math.prod(shape[:-3]), *shape[-3:])


def _check(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> None:
    # torch's fused kernel for [B, H, L, E] takes both, its other paths refuse.
    if mask is not None and causal and query.ndim != 4:
        raise RuntimeError(
            "_scaled_dot_product_attention: Explicit attn_mask should not be set when "
            "is_causal=True"
        )
    if not query.dtype is key.dtype is value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{_c(query)} key.dtype: {_c(key)} and value.dtype: {_c(value)} instead."
        )
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise RuntimeError(
            "Expected query, key, and value to all be at least 2 dimensional, but got query.dim: "
            f"{query.ndim}, key.dim: {key.ndim} and value.dim: {value.ndim} instead."
        )
    if mask is not None and mask.dtype not in (dtypes.bool_, dtypes.float32, query.dtype):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
            f"attn_mask.dtype: {_c(mask)} and  query.dtype: {_c(query)} instead."
        )


def _c(x: Tensor) -> str:
    names = {"Float": "float", "Half": "c10::Half", "BFloat16": "c10::BFloat16", "Double": "double"}
    return names.get(x.dtype.torch_name, x.dtype.torch_name)


@composite(at=("F",))
def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """softmax(query @ key.T * scale + mask) @ value; query [..., Hq, L, E], key [..., H, S, E],
    value [..., H, S, Ev].

    attn_mask broadcasts to [..., L, S]: bool (True takes part) or added to the scores. A row that
    may attend to nothing gives 0. torch.nn.functional.scaled_dot_product_attention.
    """
    _check(query, key, value, attn_mask, is_causal)
    scale = 1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale
    if enable_gqa and query.shape[-3] % key.shape[-3]:
        raise RuntimeError(
            "Number of heads in key and value must divide the number of heads in query"
        )
    if not enable_gqa and query.ndim > 2 and key.ndim > 2:
        query, key, value = _same_lead(query, key, value)
    if dropout_p > 0.0:
        return _with_dropout(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return _attend(query, key, value, attn_mask, is_causal, scale)


def _same_lead(*tensors: Tensor):
    """Batch and head dimensions broadcast against each other."""
    lead = broadcast_shapes(*(t.shape[:-2] for t in tensors))
    return [
        t if t.shape[:-2] == lead else t.expand(*lead, *t.shape[-2:])  # type: ignore[attr-defined]
        for t in tensors
    ]


@op("_attention_weights", at=())
def _attention_weights(query, key, mask, causal, scale):
    """softmax(query @ key.T * scale + mask) in query's dtype, for dropout to act on."""
    rows, columns = query.shape[-2], key.shape[-2]
    if causal and mask is not None:
        raise RuntimeError(
            "_scaled_dot_product_attention: Explicit attn_mask should not be set when "
            "is_causal=True"
        )
    if causal:
        mask = mx.arange(columns)[None] <= mx.arange(rows)[:, None]
    groups = query.shape[-3] // key.shape[-3] if query.ndim > 2 and key.ndim > 2 else 1
    key = mx.repeat(key, groups, axis=-3) if groups > 1 else key
    scores = matmul(wide(query), wide(key).swapaxes(-1, -2)) * scale
    if mask is not None and mask.dtype == mx.bool_:
        scores = mx.where(mask, scores, mx.array(-math.inf, scores.dtype))
    elif mask is not None:
        scores = scores + mask.astype(scores.dtype)
    # A row that may attend to nothing is 0, as in torch.
    alive = collapse(mx.any, scores > -math.inf, -1, True)
    return mx.where(alive, softmax(scores, -1), 0).astype(query.dtype)


def _with_dropout(query, key, value, mask, p, causal, scale):
    """Attention whose weights are dropped with probability p."""
    from ..random import dropout_mask  # random needs the filled op table

    weights = _attention_weights(query, key, mask, causal, scale)
    kept = dropout_mask(tuple(weights.shape), p, where=query.device).to(weights.dtype)
    groups = query.shape[-3] // value.shape[-3] if query.ndim > 2 and value.ndim > 2 else 1
    value = value.repeat_interleave(groups, -3) if groups > 1 else value
    return (weights * kept / (1 - p)) @ value
