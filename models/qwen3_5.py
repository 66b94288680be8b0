"""Qwen3.5, 3.6 and 3.8, dense, their text model (model_type "qwen3_5").

Three gated delta layers, then one of gated attention, and so on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torchmlx import nn

from . import decoder
from .attention import Attention
from .decoder import MLP, CausalLM, Decoder, Layer
from .gated_delta_net import DeltaArgs, GatedDeltaNet
from .mtp import MTP
from .norms import ZeroCentredNorm
from .step import FULL, LINEAR


@dataclass(frozen=True, kw_only=True)
class HybridArgs(decoder.ModelArgs, DeltaArgs):
    """What the hybrid models' config.json have in common beside the common fields.

    Without `layer_types` every layer whose number is a multiple of the interval is full attention.
    """

    attention_bias: bool = False
    layer_kinds: ClassVar[tuple[str, ...]] = (FULL, LINEAR)
    layer_types: tuple[str, ...] | None = None
    full_attention_interval: int = 4

    def kinds(self) -> tuple[str, ...]:
        """linear_attention or full_attention for each layer."""
        if self.layer_types is not None:
            return self.layer_types
        interval, numbers = self.full_attention_interval, range(1, self.num_hidden_layers + 1)
        return tuple(LINEAR if n % interval else FULL for n in numbers)


@dataclass(frozen=True, kw_only=True)
class ModelArgs(HybridArgs):
    """What Qwen3.5's config.json has beside the hybrids' fields."""

    intermediate_size: int


class Model(CausalLM):
    """Gated delta layers and gated attention with SwiGLU."""

    def __init__(self, args: ModelArgs):
        super().__init__(
            args,
            build_decoder(args, lambda layer: MLP(args.hidden_size, args.intermediate_size)),
        )


def build_mtp(args: ModelArgs) -> MTP:
    """What the checkpoints' `mtp.*` tensors fill."""
    mlp = MLP(args.hidden_size, args.intermediate_size)
    return MTP(args, build_attention(args), mlp, ZeroCentredNorm)


def build_decoder(
    args: HybridArgs, mlp: Callable[[int], nn.Module], delta: type[GatedDeltaNet] = GatedDeltaNet
) -> Decoder:
    """A hybrid decoder; `mlp` makes what layer number n has after its mixer."""

    def mixer(kind: str) -> Attention | GatedDeltaNet:
        if kind == LINEAR:
            return delta(args.hidden_size, args.rms_norm_eps, args)
        return build_attention(args)

    layers = (
        Layer(args, mixer(kind), mlp(n), ZeroCentredNorm) for n, kind in enumerate(args.kinds())
    )
    return Decoder(args, layers, ZeroCentredNorm)


def build_attention(args: HybridArgs) -> Attention:
    """Attention with normed query and key heads and an output gate."""
    return Attention(
        args.hidden_size,
        args.num_attention_heads,
        args.num_key_value_heads,
        args.head_dim,
        qkv_bias=args.attention_bias,
        out_bias=args.attention_bias,
        norm=partial(ZeroCentredNorm, eps=args.rms_norm_eps),
        gated=True,
    )
