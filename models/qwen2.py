"""Qwen2 and Qwen2.5, dense (model_type "qwen2"): Llama with a bias on queries, keys and values."""

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
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    use_sliding_window: bool = False
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"


class Model(CausalLM):
    """The bias on q, k and v is part of the architecture: no configuration field says so."""

    def __init__(self, args: ModelArgs):
        super().__init__(args, (build_layer(args) for _ in range(args.num_hidden_layers)))


def build_layer(args: ModelArgs) -> Layer:
    attention = Attention(
        args.hidden_size,
        args.num_attention_heads,
        args.num_key_value_heads,
        args.head_dim,
        qkv_bias=True,
    )
    return Layer(args, attention, MLP(args.hidden_size, args.intermediate_size))
