"""What the dense decoder families share: SwiGLU block, stack of layers, language-model head.

A family is a file of its own (llama.py, qwen2.py, ...) that says which attention its layers have.
"""

from collections.abc import Iterable
from typing import Protocol

import torchmlx as torch
from torchmlx import Tensor, nn
from torchmlx.nn import functional as F

from .attention import Attention, causal_mask
from .cache import KVCache
from .config import RopeConfig
from .rope import Rope


class DenseArgs(Protocol):
    """The configuration fields that the shared parts read."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden: int, intermediate: int, bias: bool = False):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=bias)
        self.up_proj = nn.Linear(hidden, intermediate, bias=bias)
        self.down_proj = nn.Linear(intermediate, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Pre-norm residual block: attention, then MLP."""

    def __init__(self, args: DenseArgs, attention: Attention, mlp: MLP):
        super().__init__()
        self.self_attn = attention
        self.mlp = mlp
        self.input_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def forward(self, x: Tensor, turn, mask: Tensor | None, cache: KVCache | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turn, mask, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, layers and the last norm: token ids [B, L] -> hidden states [B, L, hidden]."""

    def __init__(self, args: DenseArgs, layers: Iterable[Layer]):
        super().__init__()
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.rope = Rope(args.rope, args.head_dim)

    def forward(self, ids: Tensor, caches: list[KVCache] | None, padding: Tensor | None) -> Tensor:
        length, past = ids.shape[1], caches[0].length if caches else 0
        if padding is None:
            positions = torch.arange(past, past + length, device=ids.device)
        else:
            # A left-padded row counts from its first real token.
            positions = (padding.long().cumsum(-1) - 1).clamp(min=0)[:, None, past:]
        turn = self.rope(positions, past + length)
        mask = causal_mask(length, past, padding, ids.device)
        x = self.embed_tokens(ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, turn, mask, caches[i] if caches else None)
        return self.norm(x)


class CausalLM(nn.Module):
    """A decoder with a head over the vocabulary, in Hugging Face's tensor names."""

    def __init__(self, args: DenseArgs, layers: Iterable[Layer]):
        super().__init__()
        self.args = args
        self.model = Decoder(args, layers)
        self.lm_head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)
        if args.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def make_cache(self) -> list[KVCache]:
        """An empty cache, one per layer."""
        return [KVCache() for _ in self.model.layers]

    def forward(
        self,
        input_ids: Tensor,
        cache: list[KVCache] | None = None,
        attention_mask: Tensor | None = None,
        logits_to_keep: int = 0,
    ) -> Tensor:
        """Logits [B, L, vocab] (or of the last `logits_to_keep` positions) of ids [B, L].

        `cache` (make_cache()) holds what came before and takes the new keys and values.
        `attention_mask` [B, past + L] is 0 at left padding, as tokenizers hand it out.
        """
        hidden = self.model(input_ids, cache, attention_mask)
        return self.lm_head(hidden[:, -logits_to_keep:])
