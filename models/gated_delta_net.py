"""The gated delta rule as a layer: linear attention with a state of constant size.

arXiv:2412.06464, as Qwen3-Next and Qwen3.5 use it.
"""

from dataclasses import dataclass

import torchmlx as torch
from torchmlx import Tensor, nn, ops
from torchmlx.nn import functional as F

from .cache import RecurrentState
from .step import Step


@dataclass(frozen=True, kw_only=True)
class DeltaArgs:
    """config.json's fields for these layers, with transformers' defaults."""

    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32


class GatedDeltaNet(nn.Module):
    """Short convolution, gated delta rule, gated norm; x [B, L, hidden] -> [B, L, hidden].

    Each key head serves value heads / key heads consecutive value heads.
    """

    def __init__(self, hidden: int, eps: float, args: DeltaArgs):
        super().__init__()
        self.args = args
        self.keys = args.linear_num_key_heads * args.linear_key_head_dim
        self.values = args.linear_num_value_heads * args.linear_value_head_dim
        channels, heads = 2 * self.keys + self.values, args.linear_num_value_heads
        self._make_projections(hidden)
        taps = args.linear_conv_kernel_dim
        self.conv1d = nn.Conv1d(channels, channels, taps, groups=channels, bias=False)
        self.dt_bias = nn.Parameter(torch.ones(heads))
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.norm = nn.RMSNorm(args.linear_value_head_dim, eps=eps)
        self.out_proj = nn.Linear(self.values, hidden, bias=False)

    def _make_projections(self, hidden: int) -> None:
        heads = self.args.linear_num_value_heads
        self.in_proj_qkv = nn.Linear(hidden, 2 * self.keys + self.values, bias=False)
        self.in_proj_z = nn.Linear(hidden, self.values, bias=False)
        self.in_proj_b = nn.Linear(hidden, heads, bias=False)
        self.in_proj_a = nn.Linear(hidden, heads, bias=False)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k and v of all heads side by side [B, L, channels]; z [B, L, values]; b and a."""
        return self.in_proj_qkv(x), self.in_proj_z(x), self.in_proj_b(x), self.in_proj_a(x)

    def make_state(self, bits: int | None = None) -> RecurrentState:
        """What a cache holds for this layer, in full precision whatever `bits` are."""
        return RecurrentState()

    def forward(self, x: Tensor, step: Step, state: RecurrentState | None) -> Tensor:
        if step.real is not None:
            # Padding must leave no trace in the convolution and the state.
            x = x * step.real
        qkv, z, b, a = self._project(x)
        before = state.tensors(x.device) if state is not None else []
        conv, memory = before or (None, None)
        qkv, conv = ops.causal_conv1d(qkv, self.conv1d.weight, conv, silu=True)
        q, k, v = qkv.split((self.keys, self.keys, self.values), dim=-1)
        q, k = (t.unflatten(-1, (-1, self.args.linear_key_head_dim)) for t in (q, k))
        v, z = (t.unflatten(-1, (-1, self.args.linear_value_head_dim)) for t in (v, z))
        g = -self.A_log.float().exp() * F.softplus(a.float() + self.dt_bias)
        o, memory = ops.gated_delta(q, k, v, g, b.sigmoid(), memory)
        if state is not None:
            state.store(conv, memory)
        o = (self.norm(o) * F.silu(z.float())).to(x.dtype)
        return self.out_proj(o.flatten(2))


class FusedGatedDeltaNet(GatedDeltaNet):
    """The same with Qwen3-Next's two projections, whose rows are grouped by key head."""

    def _make_projections(self, hidden: int) -> None:
        heads = self.args.linear_num_value_heads
        self.in_proj_qkvz = nn.Linear(hidden, 2 * (self.keys + self.values), bias=False)
        self.in_proj_ba = nn.Linear(hidden, 2 * heads, bias=False)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        groups, dk = self.args.linear_num_key_heads, self.args.linear_key_head_dim
        dv, heads = self.values // groups, self.args.linear_num_value_heads // groups
        qkvz = self.in_proj_qkvz(x).unflatten(-1, (groups, -1))
        q, k, v, z = (t.flatten(2) for t in qkvz.split((dk, dk, dv, dv), dim=-1))
        ba = self.in_proj_ba(x).unflatten(-1, (groups, -1))
        b, a = (t.flatten(2) for t in ba.split((heads, heads), dim=-1))
        return torch.cat((q, k, v), dim=-1), z, b, a
