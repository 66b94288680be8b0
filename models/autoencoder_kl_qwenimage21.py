"""Qwen-Image-2.1's autoencoder: the layers of Wan2.2's on single images with an alpha channel.

Convolutions have no extent in time. The shortcuts around its stages have one all the same: an
encoder's averages every image with a frame of zeros before it.
Source: diffusers 0.42, autoencoder_kl_qwenimage21.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchmlx import Tensor

from ..errors import InputError
from .autoencoder_kl_wan import AutoencoderKLWan, Config
from .wan_layers import CausalConv3d


@dataclass(frozen=True)
class QwenImage21Config(Config):
    """config.json of an AutoencoderKLQwenImage21; defaults are the released one's."""

    decoder_base_dim: int | None = 144
    z_dim: int = 64
    dim_mult: tuple[int, ...] = (1, 2, 4, 8, 8)
    temperal_downsample: tuple[bool, ...] = (False, True, True, True)
    is_residual: bool = True
    in_channels: int = 4
    out_channels: int = 4
    scale_factor_temporal: int = 8
    scale_factor_spatial: int = 16


class AutoencoderKLQwenImage21(AutoencoderKLWan):
    """Images [B, 4, 1, H, W] in -1..1 to latents and back. diffusers.AutoencoderKLQwenImage21."""

    config_class = QwenImage21Config

    def __init__(self, config: Config | None = None, **values: Any) -> None:
        super().__init__(config, **values)
        for module in self.modules():
            if isinstance(module, CausalConv3d):
                module.flatten_time()
        self.requires_grad_(False)

    def _check(self, x: Tensor, channels: int, what: str, multiple: int) -> None:
        super()._check(x, channels, what, multiple)
        if x.shape[2] != 1:
            raise InputError(
                f"this autoencoder takes images, one frame each, not {x.shape[2]} frames; "
                "give them as a batch"
            )
