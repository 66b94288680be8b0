"""Scaled dot product attention."""

from __future__ import annotations

import math

import mlx.core as mx

from ..core import dtype as dtypes
from ..core.layout import broadcast_shapes
from ..core.op import composite, op
from ..core.tensor import Tensor
from ..kernels.softmax import softmax
from ._calling import wide


def _on_gpu() -> bool:
    return mx.default_device().type == mx.gpu


def _causal(rows: int, columns: int) -> mx.array:
    """torch's causal mask: aligned at the top left, where MLX's "causal" is aligned at the bottom
    right.
    """
    return mx.arange(columns)[None] <= mx.arange(rows)[:, None]


def _zero_dead_rows(result: mx.array, alive: mx.array) -> mx.array:
    """Rows that may attend to nothing give 0 in torch, NaN after a softmax."""
    return mx.where(alive, result, mx.array(0, result.dtype))


def _fused(query, key, value, mask, scale):
    """MLX's fused kernel: [B, H, L, D] with grouped heads; accumulates in float32."""
    result = mx.fast.scaled_dot_product_attention(query, key, value, scale=scale, mask=mask)
    if not isinstance(mask, mx.array):
        return result
    alive = mask if mask.dtype == mx.bool_ else mask != -math.inf
    return _zero_dead_rows(result, mx.any(alive, axis=-1, keepdims=True))


def _weights(scores: mx.array, mask) -> mx.array:
    """Softmax of masked scores; rows that may attend to nothing are zero."""
    if mask is not None and mask.dtype == mx.bool_:
        scores = mx.where(mask, scores, mx.array(-math.inf, scores.dtype))
    elif mask is not None:
        scores = scores + mask.astype(scores.dtype)
    # torch's CPU kernel gives 0 for rows of NaN scores as well as for rows masked everywhere.
    alive = mx.any(scores > -math.inf, axis=-1, keepdims=True)
    return _zero_dead_rows(softmax(scores, -1), alive)


def _plain(query, key, value, mask, scale):
    """Scores, softmax and weighted sum in float32 (float64 for float64), rounded once."""
    kind = query.dtype
    compute = mx.float64 if kind == mx.float64 else mx.float32
    query, key, value = (x.astype(compute) for x in (query, key, value))
    groups = query.shape[-3] // key.shape[-3] if query.ndim > 2 and key.ndim > 2 else 1
    if groups > 1:
        # One product per key head: its queries lie together, so no key is repeated.
        shape = query.shape
        query = query.reshape(*shape[:-3], key.shape[-3], groups * shape[-2], shape[-1])
    scores = (query * scale) @ key.swapaxes(-1, -2)
    if groups > 1:
        scores = scores.reshape(*shape[:-1], key.shape[-2])
    weights = _weights(scores, mask)
    if groups > 1:
        weights = weights.reshape(*query.shape[:-1], key.shape[-2])
        result = (weights @ value).reshape(*shape[:-1], value.shape[-1])
    else:
        result = weights @ value
    return result.astype(kind)


@op("_attend", at=())
def _attend(query, key, value, mask, causal, scale):
    rows, columns = query.shape[-2], key.shape[-2]
    if 0 in query.shape or columns == 0:
        lead = query.shape[:-1]
        return mx.zeros((*lead, value.shape[-1]), query.dtype)
    if _on_gpu() and query.ndim == 4:
        if causal:
            mask = "causal" if rows == columns else _causal(rows, columns)
        return _fused(query, key, value, mask, scale)
    return _plain(query, key, value, _causal(rows, columns) if causal else mask, scale)


def _check(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> None:
    if mask is not None and causal:
        raise RuntimeError(
            "scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True"
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
    if causal:
        mask = _causal(query.shape[-2], key.shape[-2])
    groups = query.shape[-3] // key.shape[-3] if query.ndim > 2 and key.ndim > 2 else 1
    key = mx.repeat(key, groups, axis=-3) if groups > 1 else key
    return _weights(wide(query) @ wide(key).swapaxes(-1, -2) * scale, mask).astype(query.dtype)


def _with_dropout(query, key, value, mask, p, causal, scale):
    """Attention whose weights are dropped with probability p."""
    from ..random import dropout_mask  # random needs the filled op table

    weights = _attention_weights(query, key, mask, causal, scale)
    kept = dropout_mask(tuple(weights.shape), p, where=query.device).to(weights.dtype)
    groups = query.shape[-3] // value.shape[-3] if query.ndim > 2 and value.ndim > 2 else 1
    value = value.repeat_interleave(groups, -3) if groups > 1 else value
    return (weights * kept / (1 - p)) @ value
