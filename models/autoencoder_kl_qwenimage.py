"""Qwen-Image's autoencoder: Wan2.1's, fine-tuned on images, which it takes as videos of one frame.

Qwen-Image-Layered's has four channels. A tiled decode is not clamped to -1..1, as diffusers' is
not. Source: diffusers 0.42, autoencoder_kl_qwenimage.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .autoencoder_kl_wan import AutoencoderKLWan, Config


class QwenImageConfig(Config):
    """config.json of an AutoencoderKLQwenImage, whose `input_channels` are the output's too."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "config") -> Config:
        """Of config.json's content; InputError for what cannot be one."""
        channels = values.get("input_channels", 3)
        return super().from_dict(
            {**values, "in_channels": channels, "out_channels": channels}, where
        )


class AutoencoderKLQwenImage(AutoencoderKLWan):
    """Images [B, 3, 1, H, W], or videos, to latents and back. diffusers.AutoencoderKLQwenImage."""

    config_class = QwenImageConfig
    clamps_tiles = False
