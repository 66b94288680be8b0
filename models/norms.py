"""The norm that Qwen3.5 and Gemma add to torch's."""

import torchmlx as torch
from torchmlx import Tensor, nn, ops


class ZeroCentredNorm(nn.Module):
    """RMS norm whose weight is stored less one: x / rms(x) * (1 + weight), rounded once."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, eps=self.eps, offset=1.0)
