"""Mixtral 8x7B and 8x22B (model_type "mixtral"): Mistral with experts."""

from dataclasses import dataclass

from . import decoder
from .decoder import CausalLM, Decoder, Layer
from .mistral import build_attention
from .moe import Experts, MoE

RENAMES = (
    (r"\.block_sparse_moe\.", ".mlp."),
    (r"\.w1\.", ".gate_proj."),
    (r"\.w2\.", ".down_proj."),
    (r"\.w3\.", ".up_proj."),
)


@dataclass(frozen=True, kw_only=True)
class ModelArgs(decoder.ModelArgs):
    """What Mixtral's config.json has beside the common fields."""

    intermediate_size: int
    num_local_experts: int
    num_experts_per_tok: int = 2
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = None


class Model(CausalLM):
    """Experts in every layer; the chosen ones' weights sum up to one."""

    def __init__(self, args: ModelArgs):
        layers = (
            Layer(args, build_attention(args), build_moe(args))
            for _ in range(args.num_hidden_layers)
        )
        super().__init__(args, Decoder(args, layers))


def build_moe(args: ModelArgs) -> MoE:
    """Experts as wide as a dense block, whose weights are normalised; none is shared."""
    experts = Experts(args.num_local_experts, args.hidden_size, args.intermediate_size)
    return MoE(args.hidden_size, experts, args.num_experts_per_tok)
