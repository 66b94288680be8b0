"""Llama 2 and 3, SmolLM2, TinyLlama and their many fine-tunes (model_type "llama")."""

from dataclasses import dataclass

from .attention import Attention
from .config import RopeConfig
from .dense import MLP, CausalLM, Layer


@dataclass(frozen=True)
class ModelArgs:
    """config.json's fields that matter here, in transformers' names and with its defaults."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rope: RopeConfig
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"


class Model(CausalLM):
    """The baseline: grouped-query attention, rotary positions on the whole head, SwiGLU."""

    def __init__(self, args: ModelArgs):
        super().__init__(args, (build_layer(args) for _ in range(args.num_hidden_layers)))


def build_layer(args: ModelArgs) -> Layer:
    attention = Attention(
        args.hidden_size,
        args.num_attention_heads,
        args.num_key_value_heads,
        args.head_dim,
        qkv_bias=args.attention_bias,
        out_bias=args.attention_bias,
    )
    return Layer(args, attention, MLP(args.hidden_size, args.intermediate_size, args.mlp_bias))
