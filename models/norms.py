"""The norm that Qwen3.5 and Gemma add to torch's; norms of sums."""

import torchmlx as torch
from torchmlx import Tensor, nn, ops

from .plain import plain


class ZeroCentredNorm(nn.Module):
    """RMS norm whose weight is stored less one: x / rms(x) * (1 + weight), rounded once."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, eps=self.eps, offset=1.0)


OFFSETS: dict[type, float] = {nn.RMSNorm: 0.0, ZeroCentredNorm: 1.0}


def add_and_norm(norm: nn.Module, x: Tensor, more: Tensor | None) -> tuple[Tensor, Tensor]:
    """norm(x + more) and x + more, in one call where the norm is one of root mean squares.

    None adds nothing."""
    if more is None:
        return norm(x), x
    if x.dtype == more.dtype and plain(x, norm, kinds=tuple(OFFSETS)):
        offset = OFFSETS[type(norm)]
        return ops.rms_norm(more, norm.weight, x, eps=norm.eps, offset=offset)
    total = x + more
    return norm(total), total
