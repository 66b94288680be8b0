"""Qwen3, dense (model_type "qwen3"): RMS norm on each query and key head, no biases."""

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
    vocab_size: int
    rope: RopeConfig
    head_dim: int = 128
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    use_sliding_window: bool = False
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"


class Model(CausalLM):
    """head_dim is given, so queries may be wider or narrower than the hidden size."""

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
        norm_eps=args.rms_norm_eps,
    )
    return Layer(args, attention, MLP(args.hidden_size, args.intermediate_size))
