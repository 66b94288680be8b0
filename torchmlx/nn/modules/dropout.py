"""Dropout: elements or whole channels set to zero at random while training."""

from __future__ import annotations

from .. import functional as F
from .module import Module


class _Dropout(Module):
    __constants__ = ["p", "inplace"]

    def __init__(self, p: float = 0.5, inplace: bool = False):
        super().__init__()
        if p < 0 or p > 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p, self.inplace = p, inplace

    def extra_repr(self):
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """Elements zeroed with probability p, the others scaled by 1 / (1 - p). torch.nn.Dropout."""

    def forward(self, input):
        return F.dropout(input, self.p, self.training, self.inplace)


class Dropout1d(_Dropout):
    """Channels of [N, C, L] or [C, L] zeroed. torch.nn.Dropout1d."""

    def forward(self, input):
        return F.dropout1d(input, self.p, self.training, self.inplace)


class Dropout2d(_Dropout):
    """Channels of [N, C, H, W] zeroed. torch.nn.Dropout2d."""

    def forward(self, input):
        return F.dropout2d(input, self.p, self.training, self.inplace)


class Dropout3d(_Dropout):
    """Channels of [N, C, D, H, W] or [C, D, H, W] zeroed. torch.nn.Dropout3d."""

    def forward(self, input):
        return F.dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(_Dropout):
    """Dropout that keeps mean and variance of SELU's outputs. torch.nn.AlphaDropout."""

    def forward(self, input):
        return F.alpha_dropout(input, self.p, self.training)


class FeatureAlphaDropout(_Dropout):
    """AlphaDropout of whole channels. torch.nn.FeatureAlphaDropout."""

    def forward(self, input):
        return F.feature_alpha_dropout(input, self.p, self.training)
