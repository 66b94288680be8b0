"""Instance normalisation."""

from __future__ import annotations

import warnings

from .. import functional as F
from .batchnorm import Normalisation


class _InstanceNorm(Normalisation):
    n: int

    def __init__(
        self, num_features, eps=1e-5, momentum=0.1, affine=False, track_running_stats=False,
        device=None, dtype=None, *, bias=True,
    ):  # fmt: skip
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias
        )

    def _check(self, input) -> None:
        if input.ndim not in (self.n + 1, self.n + 2):
            raise ValueError(
                f"expected {self.n + 1}D or {self.n + 2}D input (got {input.ndim}D input)"
            )
        dim = input.ndim - self.n - 1
        size = input.shape[dim]
        if size != self.num_features and self.affine:
            raise ValueError(
                f"expected input's size at dim={dim} to match num_features ({self.num_features}), "
                f"but got: {size}."
            )
        if size != self.num_features:
            warnings.warn(
                f"input's size at dim={dim} does not match num_features. You can silence this "
                "warning "
                "by not passing in num_features, which is not used because affine=False",
                stacklevel=3,
            )

    def forward(self, input):
        self._check(input)
        batched = input if input.ndim == self.n + 2 else input.unsqueeze(0)
        result = F.instance_norm(
            batched, self.running_mean, self.running_var, self.weight, self.bias,
            self.training or not self.track_running_stats, self.momentum or 0.0, self.eps,
        )  # fmt: skip
        return result if input.ndim == self.n + 2 else result.squeeze(0)


class InstanceNorm1d(_InstanceNorm):
    """Channels of [N, C, L] or [C, L] normalised on their own. torch.nn.InstanceNorm1d."""

    n = 1


class InstanceNorm2d(_InstanceNorm):
    """Channels of [N, C, H, W] or [C, H, W] normalised on their own. torch.nn.InstanceNorm2d."""

    n = 2


class InstanceNorm3d(_InstanceNorm):
    """Channels of [N, C, D, H, W] or [C, D, H, W] normalised on their own.

    torch.nn.InstanceNorm3d.
    """

    n = 3
