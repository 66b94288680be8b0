"""Gemma 3, the text model (model_type "gemma3_text", also within "gemma3").

Five layers with a window and a rotation of their own to each that sees all; zero-centred norms
before and after both halves of a layer; embeddings times the square root of their size.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from torchmlx import Tensor, nn
from torchmlx.nn import functional as F

from . import decoder
from .attention import Attention
from .cache import State
from .decoder import MLP, CausalLM, Decoder
from .norms import ZeroCentredNorm, add_and_norm
from .step import FULL, SLIDING, Step


@dataclass(frozen=True, kw_only=True)
class ModelArgs(decoder.ModelArgs):
    """What Gemma 3's config.json has beside the common fields.

    Without `layer_types` every layer whose number is a multiple of the pattern sees all.
    """

    intermediate_size: int
    hidden_activation: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 131072
    query_pre_attn_scalar: float = field(default=256.0, metadata={"low": 1e-6})
    attention_bias: bool = False
    sliding_window: int | None = None
    sliding_window_pattern: int = 6
    layer_kinds: ClassVar[tuple[str, ...]] = (FULL, SLIDING)
    layer_types: tuple[str, ...] | None = None
    final_logit_softcapping: float | None = field(default=None, metadata={"low": 1e-6})
    tie_word_embeddings: bool = True

    def kinds(self) -> tuple[str, ...]:
        """sliding_attention or full_attention for each layer."""
        if self.layer_types is not None:
            return self.layer_types
        numbers = range(1, self.num_hidden_layers + 1)
        return tuple(SLIDING if n % self.sliding_window_pattern else FULL for n in numbers)


class Model(CausalLM):
    """Local and global layers with tied embeddings."""

    def __init__(self, args: ModelArgs):
        layers = (GemmaLayer(args, kind) for kind in args.kinds())
        scale = args.hidden_size**0.5
        super().__init__(args, Decoder(args, layers, ZeroCentredNorm, scale))
        self.cap = args.final_logit_softcapping

    def logits(self, hidden: Tensor) -> Tensor:
        """As every decoder's; they may be bent to lie within +-cap."""
        logits = super().logits(hidden)
        return logits if self.cap is None else (logits / self.cap).tanh() * self.cap


class GemmaLayer(nn.Module):
    """Residual block with norms around both halves."""

    def __init__(self, args: ModelArgs, kind: str):
        super().__init__()
        norm = partial(ZeroCentredNorm, eps=args.rms_norm_eps)
        self.self_attn = Attention(
            args.hidden_size,
            args.num_attention_heads,
            args.num_key_value_heads,
            args.head_dim,
            qkv_bias=args.attention_bias,
            out_bias=args.attention_bias,
            kind=kind,
            norm=norm,
            window=args.sliding_window if kind == SLIDING else None,
            scale=args.query_pre_attn_scalar**-0.5,
        )
        activation = partial(F.gelu, approximate="tanh")
        self.mlp = MLP(args.hidden_size, args.intermediate_size, activation=activation)
        self.input_layernorm = norm(args.hidden_size)
        self.post_attention_layernorm = norm(args.hidden_size)
        self.pre_feedforward_layernorm = norm(args.hidden_size)
        self.post_feedforward_layernorm = norm(args.hidden_size)

    @property
    def mixer(self) -> Attention:
        return self.self_attn

    def forward(
        self, x: Tensor, more: Tensor | None, step: Step, state: State | None
    ) -> tuple[Tensor, Tensor]:
        """As decoder.Layer's."""
        hidden, x = add_and_norm(self.input_layernorm, x, more)
        attended = self.post_attention_layernorm(self.self_attn(hidden, step, state))
        hidden, x = add_and_norm(self.pre_feedforward_layernorm, x, attended)
        return x, self.post_feedforward_layernorm(self.mlp(hidden))
