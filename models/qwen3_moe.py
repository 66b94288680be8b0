"""Qwen3 with experts, such as Qwen3-30B-A3B (model_type "qwen3_moe")."""

from dataclasses import dataclass

from .decoder import CausalLM, Decoder, Layer
from .moe import MoEArgs, build_mlp
from .qwen3 import build_attention


@dataclass(frozen=True, kw_only=True)
class ModelArgs(MoEArgs):
    """The mixtures' fields; unlike its successors it leaves weights as they are by default."""

    norm_topk_prob: bool = False
    attention_bias: bool = False


class Model(CausalLM):
    """Qwen3's attention, experts in some or all layers, none of them shared."""

    def __init__(self, args: ModelArgs):
        layers = (
            Layer(args, build_attention(args), build_mlp(args, n))
            for n in range(args.num_hidden_layers)
        )
        super().__init__(args, Decoder(args, layers))
