"""Qwen-Image's autoencoders against diffusers on torch."""

import json

import numpy as np
import pytest
import torch as real

import torchmlx as torch
from torchmlx.errors import InputError
from torchmlx.models.autoencoder_kl_qwenimage import AutoencoderKLQwenImage
from torchmlx.models.autoencoder_kl_qwenimage21 import AutoencoderKLQwenImage21
from torchmlx.models.autoencoders import load_autoencoder

from .vae_oracle import close, diffusers, randomise

SMALL = {"base_dim": 8, "num_res_blocks": 1}
MODELS = {
    "qwen": (AutoencoderKLQwenImage, {**SMALL, "z_dim": 4, "dim_mult": [1, 2, 4, 4]}, 3),
    "layered": (
        AutoencoderKLQwenImage,
        {**SMALL, "z_dim": 4, "dim_mult": [1, 2, 4, 4], "input_channels": 4},
        4,
    ),
    "2.1": (
        AutoencoderKLQwenImage21,
        {**SMALL, "decoder_base_dim": 12, "z_dim": 6, "dim_mult": [1, 2, 4, 8, 8]},
        4,
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def trio(request, tmp_path_factory):
    """Theirs, ours, and how many channels an image has."""
    kind, values, channels = MODELS[request.param]
    theirs = randomise(getattr(diffusers, kind.__name__)(**values))
    folder = tmp_path_factory.mktemp("vae")
    theirs.save_pretrained(folder)
    ours = load_autoencoder(folder)
    assert type(ours) is kind
    return theirs, ours, channels


def images(channels, height, width, frames=1):
    shape = (1, channels, frames, height, width)
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


def both(trio, what, x):
    """What `encode` or `decode` gives: ours, theirs."""
    theirs, ours, _ = trio
    with real.no_grad():
        if what == "decode":
            return ours.decode(torch.tensor(x)).sample, theirs.decode(real.tensor(x)).sample
        expected = theirs.encode(real.tensor(x)).latent_dist
        got = ours.encode(torch.tensor(x)).latent_dist
        close(got.std, expected.std)
        return got.mode(), expected.mode()


@pytest.mark.parametrize("size", [(32, 48), (96, 16)])
def test_there_and_back(trio, size):
    latents, expected = both(trio, "encode", images(trio[2], *size))
    close(latents, expected)
    close(*both(trio, "decode", latents.numpy()))


@pytest.mark.parametrize("size", [(512, 512), (528, 512)])
def test_zeros_before_large_images(trio, size):
    """Metal's padding of time garbles planes of 65,536 pixels and more in PyTorch (194922)."""
    if type(trio[1]) is AutoencoderKLQwenImage21:
        close(*both(trio, "encode", images(trio[2], *size)))


def test_tiles(trio):
    """The last row of tiles is one latent high."""
    scale = trio[1].config.scale_factor_spatial
    z = np.random.default_rng(1).standard_normal((1, trio[1].config.z_dim, 1, 5, 4))
    for model in trio[:2]:
        model.enable_tiling(3 * scale, 3 * scale, 2 * scale, 2 * scale)
    try:
        close(*both(trio, "decode", z.astype(np.float32)))
        close(*both(trio, "encode", images(trio[2], 5 * scale, 4 * scale)))
    finally:
        for model in trio[:2]:
            model.disable_tiling()


def test_a_tiled_decode_of_qwen_image_is_not_clamped(trio):
    _, ours, _ = trio
    scale, bias = ours.config.scale_factor_spatial, ours.decoder.conv_out.bias
    before = bias.data
    bias.data = before + 3
    z = torch.zeros(1, ours.config.z_dim, 1, 3, 2)
    assert ours.decode(z).sample.max().item() == 1
    ours.enable_tiling(2 * scale, 2 * scale, scale, scale)
    largest = ours.decode(z).sample.max().item()
    ours.disable_tiling()
    bias.data = before
    assert (largest > 1) == isinstance(ours, AutoencoderKLQwenImage)


def test_frames(trio):
    theirs, ours, channels = trio
    x = images(channels, 32, 32, frames=5)
    if isinstance(ours, AutoencoderKLQwenImage21):
        with pytest.raises(InputError, match="one frame each, not 5"):
            ours.encode(torch.tensor(x))
        with pytest.raises(InputError, match="one frame each, not 2"):
            ours.decode(torch.zeros(1, 6, 2, 2, 2))
        return
    latents, expected = both(trio, "encode", x)
    close(latents, expected)
    close(*both(trio, "decode", latents.numpy()))


def test_classes_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "AutoencoderKL"}))
    with pytest.raises(InputError, match="'AutoencoderKL' is not supported"):
        load_autoencoder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": ["x"]}))
    with pytest.raises(InputError, match="is not supported"):
        load_autoencoder(tmp_path)


def test_wrong_channels(trio):
    _, ours, channels = trio
    with pytest.raises(InputError, match=rf"\[B, {channels}, T, H, W\]"):
        ours.encode(torch.zeros(1, 7 - channels, 1, 32, 32))
