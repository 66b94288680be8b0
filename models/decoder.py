"""What decoder families share: configuration, SwiGLU block, stack of layers, head.

A family is a file of its own (llama.py, qwen3_5_moe.py, ...) that says what its layers are made of.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torchmlx as torch
from torchmlx import Tensor, nn, ops
from torchmlx.nn import functional as F

from .attention import Attention
from .cache import Cache, State
from .config import RopeConfig
from .gated_delta_net import GatedDeltaNet
from .norms import add_and_norm
from .plain import plain
from .rope import Rope
from .step import FULL, SLIDING, Step

Mixer = Attention | GatedDeltaNet


@dataclass(frozen=True, kw_only=True)
class ModelArgs:
    """config.json's fields that all decoders have, in transformers' names.

    A family adds its own fields, and its defaults where they are others. `rope_local` is the
    rotation of sliding layers where it is not `rope`; `layer_kinds` are the kinds of layers that
    `layer_types` may list.
    """

    layer_kinds: ClassVar[tuple[str, ...]] = (FULL,)
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rope: RopeConfig
    rope_local: RopeConfig | None = None
    max_position_embeddings: int = 32768
    rms_norm_eps: float = field(default=1e-6, metadata={"low": 0.0})
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"


class MLP(nn.Module):
    """down(activation(gate(x)) * up(x)): SwiGLU with the default activation."""

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        bias: bool = False,
        activation: Callable[[Tensor], Tensor] = F.silu,
    ):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=bias)
        self.up_proj = nn.Linear(hidden, intermediate, bias=bias)
        self.down_proj = nn.Linear(intermediate, hidden, bias=bias)
        self.activation = activation
        self.fused = activation is F.silu and not bias

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj, self.up_proj
        if self.fused and plain(x, gate, up):
            return self.down_proj(ops.swiglu(x, gate.weight, up.weight))
        return self.down_proj(self.activation(gate(x)) * up(x))


class Layer(nn.Module):
    """Pre-norm residual block: a mixer over positions, then an MLP or a mixture of them."""

    def __init__(
        self,
        args: ModelArgs,
        mixer: Mixer,
        mlp: nn.Module,
        norm: Callable[..., nn.Module] = nn.RMSNorm,
    ):
        super().__init__()
        self.mixer_name = "linear_attn" if isinstance(mixer, GatedDeltaNet) else "self_attn"
        setattr(self, self.mixer_name, mixer)
        self.mlp = mlp
        self.input_layernorm = norm(args.hidden_size, eps=args.rms_norm_eps)
        self.post_attention_layernorm = norm(args.hidden_size, eps=args.rms_norm_eps)

    @property
    def mixer(self) -> Mixer:
        return getattr(self, self.mixer_name)

    def forward(
        self, x: Tensor, more: Tensor | None, step: Step, state: State | None
    ) -> tuple[Tensor, Tensor]:
        """x [B, L, hidden] and what is to be added to it, which the next norm does."""
        hidden, x = add_and_norm(self.input_layernorm, x, more)
        mixed = self.mixer(hidden, step, state)
        hidden, x = add_and_norm(self.post_attention_layernorm, x, mixed)
        return x, self.mlp(hidden)


class Decoder(nn.Module):
    """Embedding, layers and the last norm: token ids [B, L] -> hidden states [B, L, hidden]."""

    def __init__(
        self,
        args: ModelArgs,
        layers: Iterable[nn.Module],
        norm: Callable[..., nn.Module] = nn.RMSNorm,
        embedding_scale: float | None = None,
    ):
        super().__init__()
        self.embedding_scale = embedding_scale
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = norm(args.hidden_size, eps=args.rms_norm_eps)
        self.ropes = {FULL: Rope(args.rope, args.head_dim)}
        if args.rope_local is not None:
            self.ropes[SLIDING] = Rope(args.rope_local, args.head_dim)

    def forward(self, ids: Tensor, cache: Cache | None, padding: Tensor | None) -> Tensor:
        step = Step(ids, cache, padding, self.ropes)
        x = self.embed(ids, decoding=step.rows is not None)
        if self.embedding_scale is not None:
            # In x's dtype, as the models were trained: bfloat16 rounds the factor first.
            x = x * torch.tensor(self.embedding_scale, dtype=x.dtype, device=x.device)
        more = None
        for i, layer in enumerate(self.layers):
            x, more = layer(x, more, step, cache[i] if cache is not None else None)
        if cache is not None:
            cache.advance(step.length)
        return add_and_norm(self.norm, x, more)[0]

    def embed(self, ids: Tensor, decoding: bool) -> Tensor:
        """Embeddings of ids; a prompt's are checked, the tokens of a decoding model are its own."""
        if decoding and isinstance(self.embed_tokens, nn.Embedding):
            return ops.take_rows(self.embed_tokens.weight, ids)
        return self.embed_tokens(ids)


class CausalLM(nn.Module):
    """A decoder with a head over the vocabulary, in Hugging Face's tensor names."""

    def __init__(self, args: ModelArgs, decoder: Decoder):
        super().__init__()
        self.args = args
        self.model = decoder
        self.lm_head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)
        # The checkpoint's head for multi-token prediction (mtp.py), where it is asked for.
        self.mtp: nn.Module | None = None
        if args.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def device(self) -> torch.device:
        return self.model.embed_tokens.weight.device

    def make_cache(self, bits: int | None = None) -> Cache:
        """An empty cache; `bits`, 4 or 8, quantises keys and values."""
        states = [layer.mixer.make_state(bits) for layer in self.model.layers]
        return Cache(states, self.device)

    def forward(
        self,
        input_ids: Tensor,
        cache: Cache | None = None,
        attention_mask: Tensor | None = None,
        logits_to_keep: int = 0,
    ) -> Tensor:
        """Logits [B, L, vocab] (or of the last `logits_to_keep` positions) of ids [B, L].

        `cache` (make_cache()) holds what came before and takes what is new. `attention_mask`
        [B, past + L] is 0 at left padding, as tokenizers hand it out; a decoding cache needs none.
        """
        hidden = self.model(input_ids, cache, attention_mask)
        return self.logits(hidden[:, -logits_to_keep:])

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [B, L, vocab] of the decoder's hidden states [B, L, hidden]."""
        return self.lm_head(hidden)
