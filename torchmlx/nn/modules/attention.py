"""Multi-head attention."""

from __future__ import annotations

import math

from ...core.op import TABLE
from .. import functional as F
from .. import init
from .linear import NonDynamicallyQuantizableLinear, empty
from .module import Module


def additive_mask(mask, name: str, dtype):
    """A bool mask (True is left out) as -inf and 0 of `dtype`; floats as they are."""
    if mask is None or mask.dtype.is_floating_point:
        return mask
    if str(mask.dtype) != "torch.bool":
        raise AssertionError(f"only bool and floating types of {name} are supported")
    zeros = TABLE["zeros_like"].call(mask, dtype=dtype)
    return zeros.masked_fill(mask, -math.inf)


class MultiheadAttention(Module):
    """Attention of several heads over [L, N, E] (or [N, L, E] with batch_first).

    torch.nn.MultiheadAttention.
    """

    __constants__ = ["batch_first"]

    def __init__(
        self, embed_dim, num_heads, dropout=0.0, bias=True, add_bias_kv=False, add_zero_attn=False,
        kdim=None, vdim=None, batch_first=False, device=None, dtype=None,
    ):  # fmt: skip
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                "embed_dim and num_heads must be greater than 0, got "
                f"embed_dim={embed_dim} and num_heads={num_heads} instead"
            )
        super().__init__()
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        self.batch_first, self.head_dim = batch_first, embed_dim // num_heads
        if self.head_dim * num_heads != embed_dim:
            raise AssertionError("embed_dim must be divisible by num_heads")
        place = {"device": device, "dtype": dtype}
        e, same = embed_dim, self._qkv_same_embed_dim
        shapes = {
            "q_proj_weight": None if same else (e, e),
            "k_proj_weight": None if same else (e, self.kdim),
            "v_proj_weight": None if same else (e, self.vdim),
            "in_proj_weight": (3 * e, e) if same else None,
            "in_proj_bias": (3 * e,) if bias else None,
        }
        if same:  # torch registers the one in use first
            shapes = {"in_proj_weight": shapes.pop("in_proj_weight"), **shapes}
        self._register(shapes, place)
        self.out_proj = NonDynamicallyQuantizableLinear(e, e, bias=bias, **place)
        if add_bias_kv:
            self.bias_k, self.bias_v = (empty(1, 1, e, **place) for _ in range(2))
        else:
            self.bias_k = self.bias_v = None
        self.add_zero_attn = add_zero_attn
        self._reset_parameters()

    def _register(self, shapes, place) -> None:
        for name, shape in shapes.items():
            self.register_parameter(name, None if shape is None else empty(*shape, **place))

    def _reset_parameters(self) -> None:
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            if getattr(self, name) is not None:
                init.xavier_uniform_(getattr(self, name))
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def _projected(self, query, key, value):
        """q, k, v of batch-first inputs, [N, L, E] each."""
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        if self._qkv_same_embed_dim:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        inputs = (query, key, value)
        return [F.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]

    def _extended(self, k, v, mask, padding):
        """k and v with the learned bias and the zero entry that the options ask for."""
        cat = TABLE["cat"].call
        extra = 0
        if self.bias_k is not None and self.bias_v is not None:
            k = cat([k, self.bias_k.expand(k.shape[0], 1, -1)], 1)
            v = cat([v, self.bias_v.expand(v.shape[0], 1, -1)], 1)
            extra += 1
        if self.add_zero_attn:
            k, v = (cat([x, x.new_zeros((x.shape[0], 1, x.shape[2]))], 1) for x in (k, v))
            extra += 1
        if extra:
            mask, padding = (m if m is None else F.pad(m, (0, extra)) for m in (mask, padding))
        return k, v, mask, padding

    def _heads(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

    def _mask(self, mask, padding, batch: int, rows: int, columns: int):
        """Masks [L, S] or [N * heads, L, S] and [N, S] as one for [N, heads, L, S]."""
        if mask is not None:
            expected = (
                (rows, columns) if mask.ndim == 2 else (batch * self.num_heads, rows, columns)
            )
            if mask.ndim not in (2, 3):
                raise RuntimeError(f"attn_mask's dimension {mask.ndim} is not supported")
            if tuple(mask.shape) != expected:
                raise RuntimeError(
                    f"The shape of the {mask.ndim}D attn_mask is {mask.shape}, but should be "
                    f"{expected}."
                )
            if mask.ndim == 3:
                mask = mask.reshape(batch, self.num_heads, rows, columns)
        if padding is None:
            return mask
        if tuple(padding.shape) != (batch, columns):
            raise AssertionError(
                f"Expected key_padding_mask.shape[0] to be {batch}, but got {padding.shape[0]}"
                if padding.shape[0] != batch
                else f"Expected key_padding_mask.shape[1] to be {columns}, but got "
                f"{padding.shape[1]}"
            )
        padding = padding.reshape(batch, 1, 1, columns)
        return padding if mask is None else mask + padding

    def forward(
        self, query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None,
        average_attn_weights=True, is_causal=False,
    ):  # fmt: skip
        if is_causal and attn_mask is None:
            raise RuntimeError(
                "Need attn_mask if specifying the is_causal hint. You may use the Transformer "
                "module "
                "method `generate_square_subsequent_mask` to create this mask."
            )
        batched = query.ndim == 3
        padding = additive_mask(key_padding_mask, "key_padding_mask", query.dtype)
        mask = additive_mask(attn_mask, "attn_mask", query.dtype)
        inputs = (query, key, value)
        if not batched:
            inputs = [x.unsqueeze(0) for x in inputs]
            padding = None if padding is None else padding.unsqueeze(0)
        elif not self.batch_first:
            inputs = [x.transpose(0, 1) for x in inputs]
        if inputs[0].shape[-1] != self.embed_dim:
            raise AssertionError(
                f"was expecting embedding dimension of {self.embed_dim}, but got "
                f"{inputs[0].shape[-1]}"
            )
        q, k, v = self._projected(*inputs)
        k, v, mask, padding = self._extended(k, v, mask, padding)
        batch, rows, columns = q.shape[0], q.shape[1], k.shape[1]
        mask = self._mask(mask, padding, batch, rows, columns)
        q, k, v = (self._heads(x) for x in (q, k, v))
        p = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = (q * math.sqrt(1.0 / self.head_dim)) @ k.transpose(-2, -1)
            weights = F.softmax(scores if mask is None else scores + mask, -1)
            weights = F.dropout(weights, p, p > 0)
            output = weights @ v
        else:
            output = F.scaled_dot_product_attention(q, k, v, mask, p)
        # Length first in memory, as torch leaves it: dropout draws in that order.
        output = output.permute(2, 0, 1, 3).reshape(rows, batch, self.embed_dim)
        output = self.out_proj(output)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return output.squeeze(1), None if weights is None else weights.squeeze(0)
        return output.transpose(0, 1) if self.batch_first else output, weights
