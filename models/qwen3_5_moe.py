"""Qwen3.5 and 3.6 with experts, such as Qwen3.6-35B-A3B: the text model ("qwen3_5_moe").

The layers of Qwen3.5 with a mixture of experts in each, one of them shared by all tokens.
"""

from dataclasses import dataclass

from .decoder import MLP, CausalLM
from .moe import Experts, MoE
from .qwen3_5 import HybridArgs, build_decoder


@dataclass(frozen=True, kw_only=True)
class ModelArgs(HybridArgs):
    """What the mixture's config.json has beside the hybrids' fields."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int


class Model(CausalLM):
    """Gated delta layers and gated attention with experts."""

    def __init__(self, args: ModelArgs):
        super().__init__(args, build_decoder(args, lambda: build_moe(args)))


def build_moe(args, normalise: bool = True) -> MoE:
    """Experts, and a shared one, in the field names of Qwen's configurations."""
    return MoE(
        args.hidden_size,
        Experts(args.num_experts, args.hidden_size, args.moe_intermediate_size),
        args.num_experts_per_tok,
        normalise,
        MLP(args.hidden_size, args.shared_expert_intermediate_size),
    )
