"""Qwen3, dense (model_type "qwen3"): RMS norm on each query and key head, no biases."""

from dataclasses import dataclass
from functools import partial

from torchmlx import nn

from . import decoder
from .attention import Attention
from .decoder import MLP, CausalLM, Decoder, Layer


@dataclass(frozen=True, kw_only=True)
class ModelArgs(decoder.ModelArgs):
    """What Qwen3's config.json has beside the common fields."""

    intermediate_size: int
    attention_bias: bool = False


class Model(CausalLM):
    """head_dim is given, so queries may be wider or narrower than the hidden size."""

    def __init__(self, args: ModelArgs):
        mlp = partial(MLP, args.hidden_size, args.intermediate_size)
        layers = (Layer(args, build_attention(args), mlp()) for _ in range(args.num_hidden_layers))
        super().__init__(args, Decoder(args, layers))


def build_attention(args) -> Attention:
    """Qwen3's attention, dense or with experts."""
    return Attention(
        args.hidden_size,
        args.num_attention_heads,
        args.num_key_value_heads,
        args.head_dim,
        qkv_bias=args.attention_bias,
        out_bias=args.attention_bias,
        norm=partial(nn.RMSNorm, eps=args.rms_norm_eps),
    )
