"""Causal self-attention, as the dense families share it, and its mask."""

import torchmlx as torch
from torchmlx import Tensor, nn
from torchmlx.nn import functional as F
from torchmlx.ops import rope

from .cache import KVCache


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; x [B, L, hidden] -> [B, L, hidden].

    `norm_eps` adds Qwen3's RMS norm over each query and key head before the rotation.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        qkv_bias: bool = False,
        out_bias: bool = False,
        norm_eps: float | None = None,
    ):
        super().__init__()
        self.head_dim = head_dim
        self.grouped = heads != kv_heads
        self.q_proj = nn.Linear(hidden, heads * head_dim, bias=qkv_bias)
        self.k_proj = nn.Linear(hidden, kv_heads * head_dim, bias=qkv_bias)
        self.v_proj = nn.Linear(hidden, kv_heads * head_dim, bias=qkv_bias)
        self.o_proj = nn.Linear(heads * head_dim, hidden, bias=out_bias)
        self.normalised = norm_eps is not None
        if norm_eps is not None:
            self.q_norm = nn.RMSNorm(head_dim, eps=norm_eps)
            self.k_norm = nn.RMSNorm(head_dim, eps=norm_eps)

    def forward(
        self,
        x: Tensor,
        turn: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: KVCache | None,
    ) -> Tensor:
        q, k, v = (self._heads(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))
        if self.normalised:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # [B, H, L, D]
        q, k = rope(q, *turn), rope(k, *turn)
        if cache is not None:
            k, v = cache.append(k, v)
        causal = mask is None and q.shape[2] > 1
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=self.grouped
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim))


def causal_mask(length: int, past: int, padding: Tensor | None, device) -> Tensor | None:
    """Which of past + length keys each of `length` queries sees, bool [B or 1, 1, length, total].

    None where the plain causal rule says it all: nothing is padded, and either the queries start at
    position 0 or there is one of them. `padding` [B, total] is 0 where a token is padding.
    """
    if padding is None and (past == 0 or length == 1):
        return None
    keys = torch.arange(past + length, device=device)
    queries = torch.arange(past, past + length, device=device)
    visible = (keys <= queries[:, None])[None, None]
    return visible if padding is None else visible & padding.bool()[:, None, None, :]
