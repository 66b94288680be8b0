"""Qwen1.5-MoE and Qwen2 with experts (model_type "qwen2_moe")."""

from dataclasses import dataclass

from .attention import Attention
from .decoder import CausalLM, Decoder, Layer
from .moe import MoEArgs, build_mlp


@dataclass(frozen=True, kw_only=True)
class ModelArgs(MoEArgs):
    """The mixtures' fields; the chosen experts' weights are not made to sum up to one."""

    shared_expert_intermediate_size: int | None = 5632
    norm_topk_prob: bool = False
    qkv_bias: bool = True


class Model(CausalLM):
    """Qwen2's attention with a bias on q, k and v; experts, one of them shared by all tokens."""

    def __init__(self, args: ModelArgs):
        layers = (
            Layer(args, build_attention(args), build_mlp(args, n))
            for n in range(args.num_hidden_layers)
        )
        super().__init__(args, Decoder(args, layers))


def build_attention(args: ModelArgs) -> Attention:
    """Qwen2's attention; the biases of q, k and v are a field here."""
    return Attention(
        args.hidden_size,
        args.num_attention_heads,
        args.num_key_value_heads,
        args.head_dim,
        qkv_bias=args.qkv_bias,
    )
