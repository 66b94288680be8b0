"""Qwen3.5 and 3.6 with experts, such as Qwen3.6-35B-A3B: the text model ("qwen3_5_moe").

The layers of Qwen3.5 with a mixture of experts in each, one of them shared by all tokens.
"""

from dataclasses import dataclass
from functools import partial

from .decoder import CausalLM
from .moe import MoEArgs, build_mlp
from .mtp import MTP
from .norms import ZeroCentredNorm
from .qwen3_5 import HybridArgs, build_attention, build_decoder


@dataclass(frozen=True, kw_only=True)
class ModelArgs(HybridArgs, MoEArgs):
    """The hybrids' and the mixtures' fields; the chosen experts' weights always sum up to one."""

    shared_expert_intermediate_size: int | None = 512


class Model(CausalLM):
    """Gated delta layers and gated attention with experts."""

    def __init__(self, args: ModelArgs):
        super().__init__(args, build_decoder(args, partial(build_mlp, args)))


def build_mtp(args: ModelArgs) -> MTP:
    """What the checkpoints' `mtp.*` tensors fill: a layer with experts of its own."""
    return MTP(args, build_attention(args), build_mlp(args, 0), ZeroCentredNorm)
