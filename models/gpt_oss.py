"""gpt-oss 20B and 120B (model_type "gpt_oss"): attention sinks, windows in every other layer, and
experts with biases and a clamped activation, which the releases have in MXFP4.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

import torchmlx as torch
from torchmlx import Tensor, nn, ops

from . import decoder
from .attention import Attention
from .decoder import CausalLM, Decoder, Layer
from .experts_filling import Fill
from .filling import Planner
from .moe import combine, sort_by_expert
from .sources import Sources
from .step import FULL, SLIDING
from .weights import Packed, Packing, QuantizedStack

MXFP4 = Packing(32, 4, "mxfp4")


@dataclass(frozen=True, kw_only=True)
class ModelArgs(decoder.ModelArgs):
    """What gpt-oss's config.json has beside the common fields."""

    intermediate_size: int
    num_local_experts: int
    num_experts_per_tok: int = 4
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    attention_bias: bool = True
    sliding_window: int | None = None
    layer_kinds: ClassVar[tuple[str, ...]] = (FULL, SLIDING)
    layer_types: tuple[str, ...] | None = None
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0

    def kinds(self) -> tuple[str, ...]:
        """sliding_attention or full_attention for each layer."""
        if self.layer_types is not None:
            return self.layer_types
        return tuple(FULL if n % 2 else SLIDING for n in range(self.num_hidden_layers))


class Model(CausalLM):
    """Windows and sinks, and experts in every layer."""

    def __init__(self, args: ModelArgs):
        layers = (Layer(args, build_attention(args, kind), SinkMoE(args)) for kind in args.kinds())
        super().__init__(args, Decoder(args, layers))


def build_attention(args: ModelArgs, kind: str) -> Attention:
    """Attention with sinks and biases; `kind` says whether a window limits it."""
    return Attention(
        args.hidden_size,
        args.num_attention_heads,
        args.num_key_value_heads,
        args.head_dim,
        qkv_bias=args.attention_bias,
        out_bias=args.attention_bias,
        window=args.sliding_window if kind == SLIDING else None,
        sinks=True,
    )


class SinkMoE(nn.Module):
    """A router with a bias, whose chosen logits alone make the weights, and its experts."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.chosen = args.num_experts_per_tok
        self.router = nn.Linear(args.hidden_size, args.num_local_experts)
        self.experts = ClampedExperts(args)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        weights, indices = ops.router(self.router(rows), self.chosen)
        return self.experts(rows, indices, weights).reshape(x.shape)


@dataclass(frozen=True)
class ExpertMap:
    """One linear map [E, N, K] of all experts in a checkpoint: what reads its bias [E, N], and its
    weight, as MXFP4's words and exponents where it is `packed`, else as one array of values.
    """

    kind: str
    shape: tuple[int, int, int]
    name: str
    bias_name: str
    packed: bool
    weight: Callable[[], list[mx.array]]
    bias: Callable[[], mx.array]


class ClampedExperts(nn.Module):
    """Experts with biases: (up + 1) gate sigmoid(alpha gate), both clamped; gate and up alternate.

    Plain weights are [E, hidden, 2 I] and [E, I, hidden]; MXFP4 ones lie transposed, in stacks.
    """

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.alpha, self.limit, self.count = (
            args.swiglu_alpha, args.swiglu_limit, args.num_local_experts,
        )  # fmt: skip
        hidden, inner = args.hidden_size, args.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(self.count, hidden, 2 * inner))
        self.gate_up_proj_bias = nn.Parameter(torch.empty(self.count, 2 * inner))
        self.down_proj = nn.Parameter(torch.empty(self.count, inner, hidden))
        self.down_proj_bias = nn.Parameter(torch.empty(self.count, hidden))

    def plan_fills(self, planner: Planner, path: str) -> Iterator[Fill]:
        """Fills from plain tensors, from packed blocks with scales, or from mlx-lm's stacks."""
        if f"{path}.gate_proj.weight" in planner.sources:
            yield self._three_stacks(planner, path)
            return
        for name in ("gate_up_proj", "down_proj"):
            yield from planner.plain(f"{path}.{name}_bias", getattr(self, f"{name}_bias"), self)
            if f"{path}.{name}_blocks" in planner.sources:
                yield self._packed(planner, path, name)
            else:
                yield from planner.plain(f"{path}.{name}", getattr(self, name), self)

    def _packed(self, planner: Planner, path: str, name: str) -> Fill:
        """blocks [E, N, K / 32, 16] of two values a byte, scales [E, N, K / 32] of exponents."""
        count, k, n = getattr(self, name).shape
        names = (f"{path}.{name}_blocks", f"{path}.{name}_scales")
        for each, shape in zip(names, ((count, n, k // 32, 16), (count, n, k // 32)), strict=True):
            planner.sources.take(each)
            planner.check_shape(each, shape)

        def run() -> None:
            blocks, scales = (planner.placed(planner.sources.read(each)) for each in names)
            words = blocks.view(torch.uint32).flatten(2)
            packed = Packed.of((words, scales), MXFP4)
            if planner.target.dequantize:
                plain = packed.dequantize(planner.target.dtype).transpose(1, 2).contiguous()
                getattr(self, name).data = plain
            else:
                delattr(self, name)
                setattr(self, name, QuantizedStack(packed))

        return Fill(sum(planner.sources.info(each).nbytes for each in names), run)

    def _three_stacks(self, planner: Planner, path: str) -> Fill:
        """mlx-lm's layout: gate and up apart, quantised along K in any of MLX's ways."""
        count, hidden, inner = self.count, self.gate_up_proj.shape[1], self.down_proj.shape[1]
        found, stems = {}, {"gate_proj": inner, "up_proj": inner, "down_proj": hidden}
        for stem, rows in stems.items():
            name = f"{path}.{stem}"
            found[stem] = planner.take_packed(name, (count, rows, inner + hidden - rows))
            planner.take_floats(f"{name}.bias", (count, rows))

        def read(name: str) -> Tensor:
            return planner.placed(planner.sources.read(name))

        def run() -> None:
            bias = {s: read(f"{path}.{s}.bias").to(planner.target.dtype) for s in stems}
            pair = torch.stack((bias["gate_proj"], bias["up_proj"]), -1).flatten(1)
            self.gate_up_proj_bias.data, self.down_proj_bias.data = pair, bias["down_proj"]
            packed = {s: Packed.of([read(n) for n in names], p) for s, (p, names) in found.items()}
            if planner.target.dequantize:
                gate, up, down = (packed[s].dequantize(planner.target.dtype) for s in stems)
                both = torch.stack((gate, up), 2).flatten(1, 2)
                self.gate_up_proj.data = both.transpose(1, 2).contiguous()
                self.down_proj.data = down.transpose(1, 2).contiguous()
                return
            del self.gate_up_proj, self.down_proj
            self.gate_proj, self.up_proj, self.down_proj = map(QuantizedStack, packed.values())

        names = [name for _, each in found.values() for name in each]
        return Fill(sum(planner.sources.info(name).nbytes for name in names), run)

    def maps(self, sources: Sources, path: str) -> Iterator[ExpertMap]:
        """gate, up and down one by one, of a checkpoint as OpenAI or transformers writes it."""
        hidden, inner = self.gate_up_proj.shape[1], self.down_proj.shape[1]
        for kind, stem, rows, shape in (
            ("gate_proj", "gate_up_proj", slice(0, None, 2), (self.count, inner, hidden)),
            ("up_proj", "gate_up_proj", slice(1, None, 2), (self.count, inner, hidden)),
            ("down_proj", "down_proj", slice(None), (self.count, hidden, inner)),
        ):
            own = f"{path}.{stem}"
            packed = f"{own}_blocks" in sources

            def weight(own=own, rows=rows, packed=packed) -> list[mx.array]:
                if not packed:
                    return [sources.read(own).swapaxes(1, 2)[:, rows]]
                blocks, scales = (sources.read(f"{own}_{e}") for e in ("blocks", "scales"))
                return [blocks.view(mx.uint32).flatten(2)[:, rows], scales[:, rows]]

            def bias(own=own, rows=rows) -> mx.array:
                return sources.read(f"{own}_bias")[:, rows]

            name = f"{own}_blocks" if packed else own
            yield ExpertMap(kind, shape, name, f"{own}_bias", packed, weight, bias)

    def forward(self, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        order, offsets = sort_by_expert(indices, self.count)
        experts = ops.take_rows(indices.flatten(), order)
        rows = ops.take_rows(x, order // indices.shape[1])
        if hasattr(self, "gate_proj"):
            both = (self.gate_proj(rows, experts), self.up_proj(rows, experts))
            gate_up = torch.stack(both, -1).flatten(1)
        else:
            gate_up = self._product(rows, self.gate_up_proj, experts, offsets)
        gate_up = gate_up + ops.take_rows(self.gate_up_proj_bias, experts)
        gate = gate_up[..., ::2].clamp(max=self.limit)
        up = gate_up[..., 1::2].clamp(-self.limit, self.limit)
        hidden = (up + 1) * gate * (gate * self.alpha).sigmoid()
        parts = self._product(hidden, self.down_proj, experts, offsets)
        return combine(parts + ops.take_rows(self.down_proj_bias, experts), order, weights)

    def _product(self, x: Tensor, weight, experts: Tensor, offsets: Tensor) -> Tensor:
        if isinstance(weight, QuantizedStack):
            return weight(x, experts)
        return ops.grouped_matmul(x, weight, offsets)
