"""Channels of groups interleaved."""

from __future__ import annotations

from .. import functional as F
from .module import Module


class ChannelShuffle(Module):
    """Channels [g, C / g] reordered to [C / g, g]. torch.nn.ChannelShuffle."""

    __constants__ = ["groups"]

    def __init__(self, groups: int):
        super().__init__()
        self.groups = groups

    def forward(self, input):
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self):
        return f"groups={self.groups}"
