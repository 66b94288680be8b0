"""Modules whose weights are not plain: e4m3 codes with scales, and MLX's quantised groups.

The loader puts them where the architecture has an `nn.Linear`, an `nn.Embedding` or `Experts`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torchmlx as torch
from torchmlx import Tensor, nn, ops
from torchmlx.nn import functional as F

from .moe import DECODE_PLACES, combine, sort_by_expert


def constant(tensor: Tensor) -> nn.Parameter:
    """A parameter without gradient, as codes must be."""
    return nn.Parameter(tensor, requires_grad=False)


class FP8Linear(nn.Module):
    """A linear map with e4m3 weights [N, K]; the scale multiplies: (), [N, 1] or square blocks."""

    def __init__(self, weight: Tensor, scale: Tensor, block: int, bias: nn.Parameter | None = None):
        super().__init__()
        self.weight, self.weight_scale_inv = constant(weight), constant(scale)
        self.bias, self.block = bias, block

    def forward(self, x: Tensor) -> Tensor:
        return ops.fp8_linear(x, self.weight, self.weight_scale_inv, self.block, self.bias)


class FP8Experts(nn.Module):
    """`Experts` in e4m3 codes with scales of 128 x 128 blocks, or one for each row [E, N, 1]."""

    def __init__(self, gate_up: tuple[Tensor, Tensor], down: tuple[Tensor, Tensor]):
        super().__init__()
        self.gate_up_proj, self.gate_up_proj_scale_inv = (constant(t) for t in gate_up)
        self.down_proj, self.down_proj_scale_inv = (constant(t) for t in down)
        self.count = gate_up[0].shape[0]
        self.blocks = all(is_grid(scale, codes) for codes, scale in (gate_up, down))

    def forward(self, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        if self.blocks and indices.numel() <= DECODE_PLACES:
            scales = (self.gate_up_proj_scale_inv, self.down_proj_scale_inv)
            return ops.moe_decode(x, self.gate_up_proj, self.down_proj, indices, weights, scales)
        order, offsets = sort_by_expert(indices, self.count)
        rows = ops.take_rows(x, order // indices.shape[1])
        gate_up = ops.fp8_grouped(rows, self.gate_up_proj, self.gate_up_proj_scale_inv, offsets)
        gate, up = gate_up.chunk(2, dim=-1)
        hidden = F.silu(gate) * up
        parts = ops.fp8_grouped(hidden, self.down_proj, self.down_proj_scale_inv, offsets)
        return combine(parts, order, weights)


def is_grid(scale: Tensor, codes: Tensor) -> bool:
    """Whether scales are of 128 x 128 blocks of codes [E, N, K]."""
    return tuple(scale.shape[1:]) == tuple(-(-n // 128) for n in codes.shape[1:])


def dequantize_fp8(codes: Tensor, scale: Tensor, block: int, dtype: torch.dtype) -> Tensor:
    """codes [.., N, K] times their scales [.., 1, 1], [.., N, 1] or a grid, rounded once."""
    n, k = codes.shape[-2:]
    scale = scale.float()
    if tuple(scale.shape[-2:]) not in ((1, 1), (n, 1)):
        scale = scale.repeat_interleave(block, -2)[..., :n, :]
        scale = scale.repeat_interleave(block, -1)[..., :k]
    return (ops.from_fp8(codes, torch.float32) * scale).to(dtype)


@dataclass(frozen=True)
class Packing:
    """How MLX packed a weight: groups of `group_size` along K, `bits` a value; see its `mode`."""

    group_size: int
    bits: int
    mode: str

    @property
    def options(self) -> dict:
        return {"group_size": self.group_size, "bits": self.bits, "mode": self.mode}


@dataclass(frozen=True)
class Packed:
    """A quantised weight: packed [.., N, K * bits / 32] uint32, scales, and affine's biases."""

    weight: nn.Parameter
    scales: nn.Parameter
    biases: nn.Parameter | None
    packing: Packing

    @classmethod
    def of(cls, tensors: Sequence[Tensor], packing: Packing) -> "Packed":
        """From weight, scales and, for affine, biases."""
        weight, scales, *biases = map(constant, tensors)
        return cls(weight, scales, biases[0] if biases else None, packing)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        like = torch.empty(0, dtype=dtype, device=self.weight.device)
        return ops.dequantize(
            self.weight, self.scales, self.biases, like=like, **self.packing.options
        )


class QuantizedLinear(nn.Module):
    """A linear map with a weight that MLX has quantised; `bias` is added as ever."""

    def __init__(self, packed: Packed, bias: nn.Parameter | None = None):
        super().__init__()
        self.weight, self.scales = packed.weight, packed.scales
        self.biases, self.bias, self.packing = packed.biases, bias, packed.packing

    def forward(self, x: Tensor) -> Tensor:
        out = ops.quantized_matmul(x, self.weight, self.scales, self.biases, **self.packing.options)
        return out if self.bias is None else out + self.bias


class QuantizedEmbedding(nn.Module):
    """Rows of a quantised table, in `dtype`."""

    def __init__(self, packed: Packed, dtype: torch.dtype):
        super().__init__()
        self.weight, self.scales = packed.weight, packed.scales
        self.biases, self.packing, self.dtype = packed.biases, packed.packing, dtype

    def forward(self, ids: Tensor) -> Tensor:
        tables = (self.weight, self.scales, self.biases)
        parts = (ops.take_rows(table, ids) for table in tables if table is not None)
        return Packed.of(tuple(parts), self.packing).dequantize(self.dtype)

    def head(self) -> QuantizedLinear:
        """The transposed table as a linear map, for tied models."""
        return QuantizedLinear(Packed(self.weight, self.scales, self.biases, self.packing))


class QuantizedExperts(nn.Module):
    """`Experts` whose stacked weights MLX has quantised."""

    def __init__(self, gate_up: Packed, down: Packed):
        super().__init__()
        self.count = gate_up.weight.shape[0]
        self.gate_up_proj, self.down_proj = QuantizedStack(gate_up), QuantizedStack(down)

    def forward(self, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        order, _ = sort_by_expert(indices, self.count)
        experts = ops.take_rows(indices.flatten(), order)
        gate, up = self.gate_up_proj(ops.take_rows(x, order // indices.shape[1]), experts).chunk(
            2, dim=-1
        )
        return combine(self.down_proj(F.silu(gate) * up, experts), order, weights)


class QuantizedStack(nn.Module):
    """Linear maps of several experts; row i of x goes through experts[i], which ascend."""

    def __init__(self, packed: Packed):
        super().__init__()
        self.weight, self.scales = packed.weight, packed.scales
        self.biases, self.packing = packed.biases, packed.packing

    def forward(self, x: Tensor, experts: Tensor) -> Tensor:
        return ops.gather_quantized_matmul(
            x,
            self.weight,
            self.scales,
            self.biases,
            experts,
            sorted_indices=True,
            **self.packing.options,
        )
