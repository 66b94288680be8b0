"""Qwen3-Next and Qwen3-Coder-Next (model_type "qwen3_next").

As Qwen3.5 with experts, except that the gated delta layers have their projections fused.
"""

from dataclasses import dataclass
from functools import partial

from .decoder import CausalLM
from .gated_delta_net import FusedGatedDeltaNet
from .moe import MoEArgs, build_mlp
from .qwen3_5 import HybridArgs, build_decoder


@dataclass(frozen=True, kw_only=True)
class ModelArgs(HybridArgs, MoEArgs):
    """The hybrids' and the mixtures' fields."""

    shared_expert_intermediate_size: int | None = 512


class Model(CausalLM):
    """Gated delta layers and gated attention with experts."""

    def __init__(self, args: ModelArgs):
        mlp = partial(build_mlp, args)
        super().__init__(args, build_decoder(args, mlp, FusedGatedDeltaNet))
