"""Mixtures of experts: router, stacked experts, shared expert."""

from dataclasses import dataclass, field

import torchmlx as torch
from torchmlx import Tensor, nn, ops
from torchmlx.nn import functional as F

from ..errors import InputError
from . import decoder
from .decoder import MLP

# Tokens times chosen experts up to which every token reads its own experts' weights. Beyond it
# tokens are sorted, so that each expert's weights are read once for all of its tokens. The kernel
# moe_decode has the same bound (its MAX_PLACES).
DECODE_PLACES = 64


@dataclass(frozen=True, kw_only=True)
class MoEArgs(decoder.ModelArgs):
    """config.json's fields for Qwen's mixtures; `intermediate_size` is for layers without one."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int | None = None
    norm_topk_prob: bool = True
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = field(default=(), metadata={"low": 0})
    intermediate_size: int | None = None


def build_mlp(args: MoEArgs, layer: int) -> nn.Module:
    """What layer number `layer` has: a mixture of experts, or a plain block where it has none."""
    if layer in args.mlp_only_layers or (layer + 1) % args.decoder_sparse_step:
        if args.intermediate_size is None:
            raise InputError(f"layer {layer} has no experts, but intermediate_size is missing")
        return MLP(args.hidden_size, args.intermediate_size)
    shared = args.shared_expert_intermediate_size
    return MoE(
        args.hidden_size,
        Experts(args.num_experts, args.hidden_size, args.moe_intermediate_size),
        args.num_experts_per_tok,
        args.norm_topk_prob,
        None if shared is None else MLP(args.hidden_size, shared),
    )


class Experts(nn.Module):
    """SwiGLU experts, stacked: gate_up_proj [E, 2 I, K] with gate rows first, down_proj [E, K, I].

    forward(x [T, K], indices [T, S] int32, weights [T, S]) is the weighted sum of each token's
    experts, [T, K].
    """

    def __init__(self, experts: int, hidden: int, intermediate: int):
        super().__init__()
        self.count, self.hidden, self.intermediate = experts, hidden, intermediate
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * intermediate, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, intermediate))

    def forward(self, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        if indices.numel() <= DECODE_PLACES:
            return ops.moe_decode(x, self.gate_up_proj, self.down_proj, indices, weights)
        return self._by_expert(x, indices, weights)

    def _by_expert(self, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        order, offsets = sort_by_expert(indices, self.count)
        gate_up = self._up(ops.take_rows(x, order // indices.shape[1]), offsets)
        gate, up = gate_up.chunk(2, dim=-1)
        return combine(self._down(F.silu(gate) * up, offsets), order, weights)

    def _up(self, x: Tensor, offsets: Tensor) -> Tensor:
        return ops.grouped_matmul(x, self.gate_up_proj.transpose(1, 2), offsets)

    def _down(self, x: Tensor, offsets: Tensor) -> Tensor:
        return ops.grouped_matmul(x, self.down_proj.transpose(1, 2), offsets)


def sort_by_expert(indices: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """The places of indices [T, S] in the order of their experts, and where each expert ends.

    int32 [T S] and [experts]; nothing is read back from the device.
    """
    places = indices.flatten()
    order = torch.argsort(places, stable=True)
    numbers = torch.arange(experts, dtype=places.dtype, device=places.device)
    return order, (places[:, None] <= numbers).sum(0).int()


def combine(parts: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """The weighted sums of parts [T S, K], which lie in `order`; weights [T, S]; in float32."""
    back = torch.argsort(order)
    parts = ops.take_rows(parts, back).unflatten(0, weights.shape).float()
    return (parts * weights[..., None].float()).sum(1).to(weights.dtype)


class MoE(nn.Module):
    """A router (`gate`), its experts, and perhaps a shared expert behind a gate of its own.

    normalise: the chosen experts' probabilities are divided by their sum.
    """

    def __init__(
        self,
        hidden: int,
        experts: Experts,
        chosen: int,
        normalise: bool = True,
        shared: nn.Module | None = None,
    ):
        super().__init__()
        self.chosen, self.normalise = chosen, normalise
        self.gate = nn.Linear(hidden, experts.count, bias=False)
        self.experts = experts
        self.shared_expert = shared
        if shared is not None:
            self.shared_expert_gate = nn.Linear(hidden, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        weights, indices = ops.router(self.gate(rows), self.chosen, self.normalise)
        out = self.experts(rows, indices, weights)
        if self.shared_expert is not None:
            out = out + self.shared_expert_gate(rows).sigmoid() * self.shared_expert(rows)
        return out.reshape(x.shape)
