"""Mistral 7B, Nemo, Small and their fine-tunes (model_type "mistral"): Llama with a window."""

from dataclasses import dataclass

from . import decoder
from .attention import Attention
from .decoder import MLP, CausalLM, Decoder, Layer


@dataclass(frozen=True, kw_only=True)
class ModelArgs(decoder.ModelArgs):
    """What Mistral's config.json has beside the common fields; without a window all is seen."""

    intermediate_size: int
    max_position_embeddings: int = 131072
    sliding_window: int | None = None


class Model(CausalLM):
    """Every layer sees the last `sliding_window` tokens."""

    def __init__(self, args: ModelArgs):
        layers = (
            Layer(args, build_attention(args), MLP(args.hidden_size, args.intermediate_size))
            for _ in range(args.num_hidden_layers)
        )
        super().__init__(args, Decoder(args, layers))


def build_attention(args) -> Attention:
    """Mistral's attention, dense or with experts."""
    return Attention(
        args.hidden_size,
        args.num_attention_heads,
        args.num_key_value_heads,
        args.head_dim,
        window=args.sliding_window,
    )
