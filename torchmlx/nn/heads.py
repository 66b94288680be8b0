"""Attention of several heads as one function: what nn.MultiheadAttention computes."""

from __future__ import annotations

import math

from ..core.op import TABLE, composite
from .dropout import dropout


def additive_mask(mask, name: str, dtype):
    """A bool mask (True is left out) as -inf and 0 of `dtype`; floats as they are."""
    if mask is None or mask.dtype.is_floating_point:
        return mask
    if str(mask.dtype) != "torch.bool":
        raise AssertionError(f"only bool and floating types of {name} are supported")
    zeros = TABLE["zeros_like"].call(mask, dtype=dtype)
    return zeros.masked_fill(mask, -math.inf)


def _extended(k, v, mask, padding, biases, add_zero_attn: bool):
    """k and v [N, S, E] with the learned bias and the zero entry that the options ask for."""
    cat = TABLE["cat"].call
    extra = 0
    if all(b is not None for b in biases):
        k, v = (
            cat([x, b.expand(x.shape[0], 1, -1)], 1) for x, b in zip((k, v), biases, strict=True)
        )
        extra += 1
    if add_zero_attn:
        k, v = (cat([x, x.new_zeros((x.shape[0], 1, x.shape[2]))], 1) for x in (k, v))
        extra += 1
    if extra:
        mask, padding = (
            m if m is None else TABLE["pad"].call(m, (0, extra)) for m in (mask, padding)
        )
    return k, v, mask, padding


def _joined(mask, padding, batch: int, heads: int, rows: int, columns: int):
    """Masks [L, S] or [N * heads, L, S] and [N, S] as one for [N, heads, L, S]."""
    if mask is not None:
        expected = (rows, columns) if mask.ndim == 2 else (batch * heads, rows, columns)
        if mask.ndim not in (2, 3):
            raise RuntimeError(f"attn_mask's dimension {mask.ndim} is not supported")
        if tuple(mask.shape) != expected:
            raise RuntimeError(
                f"The shape of the {mask.ndim}D attn_mask is {mask.shape}, but should be "
                f"{expected}."
            )
        if mask.ndim == 3:
            mask = mask.reshape(batch, heads, rows, columns)
    if padding is None:
        return mask
    if tuple(padding.shape) != (batch, columns):
        raise AssertionError(
            f"Expected key_padding_mask.shape[0] to be {batch}, but got {padding.shape[0]}"
            if padding.shape[0] != batch
            else f"Expected key_padding_mask.shape[1] to be {columns}, but got {padding.shape[1]}"
        )
    padding = padding.reshape(batch, 1, 1, columns)
    return padding if mask is None else mask + padding


def _attended(q, k, v, mask, p: float, need_weights: bool):
    """(output, weights or None) of heads [N, heads, L, d]."""
    if not need_weights:
        return TABLE["scaled_dot_product_attention"].call(q, k, v, mask, p), None
    scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.transpose(-2, -1)
    weights = TABLE["softmax"].call(scores if mask is None else scores + mask, -1)
    weights = dropout(weights, p, p > 0)
    return weights @ v, weights


@composite(at=("F",))
def multi_head_attention_forward(
    query, key, value, embed_dim_to_check, num_heads, in_proj_weight, in_proj_bias, bias_k, bias_v,
    add_zero_attn, dropout_p, out_proj_weight, out_proj_bias, training=True,
    key_padding_mask=None, need_weights=True, attn_mask=None, use_separate_proj_weight=False,
    q_proj_weight=None, k_proj_weight=None, v_proj_weight=None, static_k=None, static_v=None,
    average_attn_weights=True, is_causal=False,
):  # fmt: skip
    """(output [L, N, E], weights or None) of query [L, N, E], key and value [S, N, E]; N may be
    left out.
    """
    if is_causal and attn_mask is None:
        raise RuntimeError(
            "Need attn_mask if specifying the is_causal hint. You may use the Transformer module "
            "method `generate_square_subsequent_mask` to create this mask."
        )
    if query.shape[-1] != embed_dim_to_check:
        raise AssertionError(
            f"was expecting embedding dimension of {embed_dim_to_check}, but got {query.shape[-1]}"
        )
    linear = TABLE["linear"].call
    padding = additive_mask(key_padding_mask, "key_padding_mask", query.dtype)
    mask = additive_mask(attn_mask, "attn_mask", query.dtype)
    batched = query.ndim == 3
    if not batched:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        padding = None if padding is None else padding.unsqueeze(0)
    inputs = [x.transpose(0, 1) for x in (query, key, value)]
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    separate = (q_proj_weight, k_proj_weight, v_proj_weight)
    weights = separate if use_separate_proj_weight else in_proj_weight.chunk(3)
    q, k, v = (linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True))
    k, v, mask, padding = _extended(k, v, mask, padding, (bias_k, bias_v), add_zero_attn)
    batch, rows, width = q.shape
    q, k, v = (
        x.reshape(batch, x.shape[1], num_heads, width // num_heads).transpose(1, 2)
        for x in (q, k, v)
    )
    k = k if static_k is None else static_k.reshape(k.shape[0], num_heads, -1, k.shape[-1])
    v = v if static_v is None else static_v.reshape(v.shape[0], num_heads, -1, v.shape[-1])
    mask = _joined(mask, padding, batch, num_heads, rows, k.shape[2])
    output, shares = _attended(q, k, v, mask, dropout_p if training else 0.0, need_weights)
    # Length first in memory, as torch leaves it: dropout draws in that order.
    output = output.permute(2, 0, 1, 3).reshape(rows, batch, width)
    output = linear(output, out_proj_weight, out_proj_bias)
    if shares is not None and average_attn_weights:
        shares = shares.mean(1)
    if not batched:
        return output.squeeze(1), None if shares is None else shares.squeeze(0)
    return output, shares
