"""Llama 2 and 3, SmolLM2, TinyLlama and their many fine-tunes (model_type "llama")."""

from dataclasses import dataclass

from . import decoder
from .attention import Attention
from .decoder import MLP, CausalLM, Decoder, Layer


@dataclass(frozen=True, kw_only=True)
class ModelArgs(decoder.ModelArgs):
    """What Llama's config.json has beside the common fields."""

    intermediate_size: int
    max_position_embeddings: int = 2048
    attention_bias: bool = False
    mlp_bias: bool = False


class Model(CausalLM):
    """The baseline: grouped-query attention, rotary positions on the whole head, SwiGLU."""

    def __init__(self, args: ModelArgs):
        layers = (build_layer(args) for _ in range(args.num_hidden_layers))
        super().__init__(args, Decoder(args, layers))


def build_layer(args: ModelArgs) -> Layer:
    """One layer: attention and a SwiGLU block, with biases where the configuration says so."""
    attention = Attention(
        args.hidden_size,
        args.num_attention_heads,
        args.num_key_value_heads,
        args.head_dim,
        qkv_bias=args.attention_bias,
        out_bias=args.attention_bias,
    )
    return Layer(args, attention, MLP(args.hidden_size, args.intermediate_size, args.mlp_bias))
