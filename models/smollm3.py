"""SmolLM3 (model_type "smollm3"): Llama in which every fourth layer turns nothing."""

from dataclasses import dataclass, field

from . import decoder
from .attention import Attention
from .decoder import MLP, CausalLM, Decoder, Layer
from .step import FULL


@dataclass(frozen=True, kw_only=True)
class ModelArgs(decoder.ModelArgs):
    """What SmolLM3's config.json has beside the common fields.

    `no_rope_layers` is 1 for each layer that turns queries and keys, 0 for the others.
    """

    intermediate_size: int
    attention_bias: bool = False
    mlp_bias: bool = False
    no_rope_layers: tuple[int, ...] | None = field(default=None, metadata={"low": 0})
    no_rope_layer_interval: int = 4
    tie_word_embeddings: bool = True

    def turns(self, layer: int) -> bool:
        """Whether layer number `layer` has rotary positions."""
        if self.no_rope_layers is None:
            return (layer + 1) % self.no_rope_layer_interval != 0
        return bool(self.no_rope_layers[layer])


class Model(CausalLM):
    """Layers with and without rotary positions (arXiv:2501.18795)."""

    def __init__(self, args: ModelArgs):
        layers = (build_layer(args, n) for n in range(args.num_hidden_layers))
        super().__init__(args, Decoder(args, layers))


def build_layer(args: ModelArgs, layer: int) -> Layer:
    """One layer; those that no_rope_layers marks with 0 do not turn."""
    attention = Attention(
        args.hidden_size,
        args.num_attention_heads,
        args.num_key_value_heads,
        args.head_dim,
        qkv_bias=args.attention_bias,
        out_bias=args.attention_bias,
        kind=FULL if args.turns(layer) else None,
    )
    return Layer(args, attention, MLP(args.hidden_size, args.intermediate_size, args.mlp_bias))
