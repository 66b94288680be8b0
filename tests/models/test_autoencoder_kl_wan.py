"""Wan's video autoencoders against diffusers on torch: random weights, and the trained one."""

import numpy as np
import pytest
import torch as real

import torchmlx as torch
from torchmlx.errors import InputError
from torchmlx.models.autoencoder_kl_wan import AutoencoderKLWan, Config
from torchmlx.models.frame_buffer import FrameBuffer
from torchmlx.models.wan_names import diffusers_name

from .vae_oracle import close, diffusers, randomise

SMALL = {"base_dim": 8, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 1}
WAN21 = {**SMALL, "z_dim": 4}
WAN22 = {
    **SMALL, "decoder_base_dim": 12, "z_dim": 6, "is_residual": True, "in_channels": 12,
    "out_channels": 12, "patch_size": 2, "scale_factor_spatial": 16,
}  # fmt: skip
CONFIGS = {"2.1": WAN21, "2.2": WAN22}


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request, tmp_path_factory):
    theirs = randomise(diffusers.AutoencoderKLWan(**CONFIGS[request.param]))
    folder = tmp_path_factory.mktemp("vae")
    theirs.save_pretrained(folder)
    return theirs, AutoencoderKLWan.from_pretrained(folder)


def video(frames, height, width, seed=0):
    numbers = np.random.default_rng(seed).uniform(-1, 1, (1, 3, frames, height, width))
    return numbers.astype(np.float32)


def latents(model, frames, height, width):
    shape = (1, model.config.z_dim, frames, height, width)
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("frames", [1, 4, 5, 7])
def test_encode(pair, frames):
    theirs, ours = pair
    x = video(frames, 32, 48)
    with real.no_grad():
        expected = theirs.encode(real.tensor(x)).latent_dist
    got = ours.encode(torch.tensor(x)).latent_dist
    close(got.mode(), expected.mode())
    close(got.std, expected.std)


@pytest.mark.parametrize("frames", [1, 2, 4])
def test_decode(pair, frames):
    theirs, ours = pair
    z = latents(ours, frames, 3, 2)
    with real.no_grad():
        expected = theirs.decode(real.tensor(z)).sample
    close(ours.decode(torch.tensor(z)).sample, expected)
    parts = list(ours.decode_frames(torch.tensor(z)))
    assert [part.shape[2] for part in parts] == [1, 4, 4, 4][:frames]
    close(torch.cat(parts, 2), expected)


def test_batches(pair):
    theirs, ours = pair
    z = np.concatenate([latents(ours, 2, 2, 2), -latents(ours, 2, 2, 2)])
    with real.no_grad():
        expected = theirs.decode(real.tensor(z)).sample
    close(ours.decode(torch.tensor(z)).sample, expected)
    ours.enable_slicing()
    close(ours.decode(torch.tensor(z), return_dict=False)[0], expected)
    ours.disable_slicing()


@pytest.mark.parametrize(("tile", "stride", "size"), [(32, 16, (3, 4)), (64, 48, (4, 5))])
def test_tiles(pair, tile, stride, size):
    """Last tiles of one latent row or column, and overlaps wider than they are."""
    theirs, ours = pair
    scale = ours.config.scale_factor_spatial
    numbers = [n * scale // 16 for n in (tile, tile, stride, stride)]
    z, x = latents(ours, 2, *size), video(5, *(n * scale for n in size))
    for model in pair:
        model.enable_tiling(*numbers)
    try:
        with real.no_grad():
            close(ours.decode(torch.tensor(z)).sample, theirs.decode(real.tensor(z)).sample)
            # diffusers measures an encoder's tiles on the patchified grid.
            expected = theirs.encode(real.tensor(x)).latent_dist.mode()
        close(ours.encode(torch.tensor(x)).latent_dist.mode(), expected)
    finally:
        for model in pair:
            model.disable_tiling()


@pytest.fixture
def tiled(pair):
    """Ours, set to tiles of 2 x 2 latents of which neighbours share one."""
    _, ours = pair
    scale = ours.config.scale_factor_spatial
    ours.enable_tiling(*(2 * scale,) * 2, *(scale,) * 2)
    yield ours
    ours.enable_tiling(blend="linear")
    ours.disable_tiling()


@pytest.mark.parametrize("memory", [0, 1 << 20], ids=["file", "memory"])
def test_tiles_wait_in_a_buffer(tiled, memory):
    z = torch.tensor(latents(tiled, 2, 3, 2))
    expected, seen = tiled.decode(z).sample, []
    parts = list(tiled.decode_frames(z, torch.uint8, memory, lambda *numbers: seen.append(numbers)))
    assert [part.shape[2] for part in parts] == [1, 4]
    rounded = ((expected.numpy().astype(np.float64) + 1) * 127.5).round()
    assert np.abs(torch.cat(parts, 2).numpy() - rounded).max() <= 1  # ties, in float32
    assert (torch.cat(parts, 2).numpy() == rounded).mean() > 0.999
    assert seen == [(n + 1, 12) for n in range(12)]  # 3 x 2 tiles of two latent frames
    half = torch.cat(list(tiled.decode_frames(z, torch.float16, memory)), 2)
    np.testing.assert_array_equal(half.numpy(), expected.numpy().astype(np.float16))


def test_bytes_are_encoded_as_their_values(tiled):
    pixels = np.random.default_rng(2).integers(0, 256, (5, 48, 64, 3), np.uint8)
    values = (pixels / 127.5 - 1).astype(np.float32).transpose(3, 0, 1, 2)[None]
    expected = tiled.encode(torch.tensor(values)).latent_dist.mode().numpy()
    got = tiled.encode(FrameBuffer(pixels[None])).latent_dist.mode().numpy()
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_cosine_blend(tiled):
    """Two tiles, as the plain decoder makes them, mixed by hand; the third lies in the second."""
    scale = tiled.config.scale_factor_spatial
    tiled.enable_tiling(blend="cosine")
    z = torch.tensor(latents(tiled, 1, 3, 2))
    got = tiled.decode(z).sample.numpy()
    tiled.disable_tiling()
    first, second = (tiled.decode(z[:, :, :, n : n + 2]).sample.numpy() for n in (0, 1))
    patch = tiled.config.patch_size or 1
    steps = np.repeat((np.arange(scale // patch) + 0.5) * patch / scale, patch)
    weight = ((1 - np.cos(np.pi * steps)) / 2)[:, None]
    middle = first[..., scale:, :] * (1 - weight) + second[..., :scale, :] * weight
    expected = np.concatenate([first[..., :scale, :], middle, second[..., scale:, :]], 3)
    np.testing.assert_allclose(got, expected, atol=5e-3)  # clamped before mixing, here


def test_half_types(pair):
    theirs, ours = pair
    z = latents(ours, 2, 2, 3)
    with real.no_grad():
        expected = theirs.decode(real.tensor(z)).sample.numpy()
    for dtype, bound in ((torch.bfloat16, 1e-3), (torch.float16, 1e-5)):
        half = AutoencoderKLWan(ours.config)
        half.load_state_dict({k: v.to(dtype) for k, v in ours.state_dict().items()}, assign=True)
        got = half.decode(torch.tensor(z)).sample
        assert got.dtype is dtype
        error = ((got.float().numpy() - expected) ** 2).mean() / (expected**2).mean()
        assert error <= bound


ORIGINAL = {
    "2.1": {
        "conv1.weight": "quant_conv.weight",
        "conv2.bias": "post_quant_conv.bias",
        "encoder.conv1.weight": "encoder.conv_in.weight",
        "encoder.downsamples.0.residual.0.gamma": "encoder.down_blocks.0.norm1.gamma",
        "encoder.downsamples.2.resample.1.weight": "encoder.down_blocks.2.resample.1.weight",
        "encoder.downsamples.5.time_conv.bias": "encoder.down_blocks.5.time_conv.bias",
        "encoder.downsamples.3.shortcut.weight": "encoder.down_blocks.3.conv_shortcut.weight",
        "encoder.middle.1.to_qkv.weight": "encoder.mid_block.attentions.0.to_qkv.weight",
        "encoder.head.0.gamma": "encoder.norm_out.gamma",
        "encoder.head.2.bias": "encoder.conv_out.bias",
        "decoder.middle.2.residual.6.bias": "decoder.mid_block.resnets.1.conv2.bias",
        "decoder.upsamples.3.time_conv.weight": "decoder.up_blocks.0.upsamplers.0.time_conv.weight",
        "decoder.upsamples.4.residual.2.weight": "decoder.up_blocks.1.resnets.0.conv1.weight",
        "decoder.upsamples.14.residual.3.gamma": "decoder.up_blocks.3.resnets.2.norm2.gamma",
    },
    "2.2": {
        "encoder.downsamples.1.downsamples.0.residual.0.gamma": (
            "encoder.down_blocks.1.resnets.0.norm1.gamma"
        ),
        "encoder.downsamples.1.downsamples.2.time_conv.weight": (
            "encoder.down_blocks.1.downsampler.time_conv.weight"
        ),
        "encoder.downsamples.0.downsamples.2.resample.1.bias": (
            "encoder.down_blocks.0.downsampler.resample.1.bias"
        ),
        "decoder.upsamples.0.upsamples.3.resample.1.weight": (
            "decoder.up_blocks.0.upsampler.resample.1.weight"
        ),
        "decoder.upsamples.3.upsamples.1.shortcut.weight": (
            "decoder.up_blocks.3.resnets.1.conv_shortcut.weight"
        ),
    },
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_original_names(kind):
    for old, new in ORIGINAL[kind].items():
        assert diffusers_name(old, kind == "2.2") == new == diffusers_name(new, kind == "2.2")


def test_pth_file(pair, tmp_path):
    theirs, ours = pair
    real.save(theirs.state_dict(), tmp_path / "vae.pth")
    again = AutoencoderKLWan.from_single_file(tmp_path / "vae.pth", ours.config)
    for name, parameter in again.named_parameters():
        np.testing.assert_array_equal(parameter.detach().numpy(), ours.get_parameter(name).detach())


@pytest.mark.shared
def test_the_trained_one(shared):
    """A round trip of moving shapes, by the small trained model."""
    folder = shared / "assets" / "wan22-mini"
    theirs = diffusers.AutoencoderKLWan.from_pretrained(folder).float()
    ours = AutoencoderKLWan.from_pretrained(folder, torch_dtype=torch.float32)
    rows, columns = np.mgrid[:64, :64] / 32 - 1
    frames = [np.stack([np.tanh(4 * (columns - t / 9)), rows, -columns]) for t in range(5)]
    x = np.stack(frames, 1)[None].astype(np.float32)
    with real.no_grad():
        mean = theirs.encode(real.tensor(x)).latent_dist.mode()
        expected = theirs.decode(mean).sample
    got = ours(torch.tensor(x)).sample
    close(got, expected)
    noise = [((video.numpy() - x) ** 2).mean() for video in (got, expected)]
    assert abs(10 * np.log10(noise[0] / noise[1])) <= 0.02  # dB


def test_bad_input(pair, tmp_path):
    _, ours = pair
    with pytest.raises(InputError, match="latents for this model are"):
        ours.decode(torch.zeros(1, 3, 1, 2, 2))
    with pytest.raises(InputError, match="multiples of"):
        ours.encode(torch.zeros(1, 3, 1, 20, 32))
    with pytest.raises(InputError, match="floating-point"):
        ours.decode(torch.zeros(1, ours.config.z_dim, 1, 2, 2, dtype=torch.int32))
    with pytest.raises(InputError, match="the stride is at most the tile"):
        ours.enable_tiling(64, 64, 96, 64)
    with pytest.raises(InputError, match="config.json"):
        AutoencoderKLWan.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"base_dim": "wide"}')
    with pytest.raises(InputError, match="not this autoencoder's"):
        AutoencoderKLWan.from_pretrained(tmp_path)
    state = {"nothing.weight": real.zeros(1)}
    real.save(state, tmp_path / "other.pth")
    with pytest.raises(InputError, match="no weight of this model"):
        AutoencoderKLWan.from_single_file(tmp_path / "other.pth", ours.config)
    real.save({}, tmp_path / "empty.pth")
    with pytest.raises(InputError, match="weights are missing"):
        AutoencoderKLWan.from_single_file(tmp_path / "empty.pth", ours.config)


def test_configurations():
    assert Config.from_dict({"dim_mult": [1, 2, 4, 4], "_class_name": "x"}) == Config()
    with pytest.raises(InputError, match="attn_scales"):
        Config.from_dict({"attn_scales": [1.0]})
