"""The autoencoders at their real sizes with random weights, against diffusers: one small image."""

import gc

import numpy as np
import pytest
import torch as real

import torchmlx as torch
from torchmlx.models.autoencoders import load_autoencoder

from .vae_oracle import close, diffusers, randomise

WAN22 = {
    "base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "is_residual": True, "in_channels": 12,
    "out_channels": 12, "patch_size": 2, "scale_factor_spatial": 16,
}  # fmt: skip
# Class and configuration, parameters, the shape of a video. Sources: models.md 3.1 and 4.
MODELS = {
    "Wan2.1": ("AutoencoderKLWan", {}, 126_892_531, (1, 3, 5, 32, 48)),
    "Wan2.2": ("AutoencoderKLWan", WAN22, 704_688_668, (1, 3, 5, 32, 48)),
    "Qwen-Image": ("AutoencoderKLQwenImage", {}, 126_892_531, (1, 3, 1, 48, 32)),
    "Qwen-Image-2.1": ("AutoencoderKLQwenImage21", {}, 337_740_404, (1, 4, 1, 32, 48)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_real_configuration(name, tmp_path):
    """Encoded and decoded as the oracle does, whole and in tiles, all its weights taken."""
    kind, values, parameters, shape = MODELS[name]
    theirs = randomise(getattr(diffusers, kind)(**values))
    theirs.save_pretrained(tmp_path)
    ours = load_autoencoder(tmp_path)
    for model in (ours, theirs):
        assert sum(p.numel() for p in model.parameters()) == parameters
    x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    with real.no_grad():
        latents = theirs.encode(real.tensor(x)).latent_dist.mode()
        sample = theirs.decode(latents).sample
        scale = ours.config.scale_factor_spatial
        for model in (ours, theirs):
            model.enable_tiling(2 * scale, 2 * scale, scale, scale)
        first = x[:, :, :1], latents[:, :, :1].numpy()
        tiled = theirs.encode(real.tensor(first[0])).latent_dist.mode()
        sample_of_tiles = theirs.decode(real.tensor(first[1])).sample
    del theirs
    gc.collect()
    close(ours.encode(torch.tensor(first[0])).latent_dist.mode(), tiled)
    close(ours.decode(torch.tensor(first[1])).sample, sample_of_tiles)
    ours.disable_tiling()
    close(ours.encode(torch.tensor(x)).latent_dist.mode(), latents)
    close(ours.decode(torch.tensor(latents.numpy())).sample, sample)
