"""Qwen2 and Qwen2.5, dense (model_type "qwen2"): Llama with a bias on queries, keys and values."""

from dataclasses import dataclass

from . import decoder
from .attention import Attention
from .decoder import MLP, CausalLM, Decoder, Layer


@dataclass(frozen=True, kw_only=True)
class ModelArgs(decoder.ModelArgs):
    """What Qwen2's config.json has beside the common fields."""

    intermediate_size: int


class Model(CausalLM):
    """The bias on q, k and v is part of the architecture: no configuration field says so."""

    def __init__(self, args: ModelArgs):
        layers = (build_layer(args) for _ in range(args.num_hidden_layers))
        super().__init__(args, Decoder(args, layers))


def build_layer(args: ModelArgs) -> Layer:
    """One layer, with biases on q, k and v only, whatever the configuration says."""
    attention = Attention(
        args.hidden_size,
        args.num_attention_heads,
        args.num_key_value_heads,
        args.head_dim,
        qkv_bias=True,
    )
    return Layer(args, attention, MLP(args.hidden_size, args.intermediate_size))
