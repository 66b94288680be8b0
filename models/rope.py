"""Rotary position embedding: the tables that `torchmlx.ops.rope` turns queries and keys by."""

import torchmlx as torch
from torchmlx import Tensor

from .config import RopeConfig


class Rope:
    """cos and sin of every position, float32, computed once per forward pass for all layers.

    The angles are the outer product of positions and inverse frequencies, doubled: both halves of a
    head turn by the same angles.
    """

    def __init__(self, config: RopeConfig, head_dim: int):
        self.config, self.head_dim = config, head_dim
        self._longest = 0
        self._set(0)

    def _set(self, length: int) -> None:
        frequencies, self.scale = self.config.inverse_frequencies(self.head_dim, length)
        self.frequencies = torch.from_numpy(frequencies)

    def __call__(self, positions: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """positions [L] or [B, 1, L]; the longest position so far + 1 as `length` (for dynamic
        scaling). Returns cos and sin [.., L, d]."""
        if self.config.rope_type == "dynamic" and length > self._longest:
            self._longest = length
            self._set(length)
        angles = positions.float().unsqueeze(-1) * self.frequencies.to(positions.device)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos() * self.scale, angles.sin() * self.scale
