"""wan22-mini on real clips against diffusers: long videos, tiles, half types."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch as real

import torchmlx as torch
from torchmlx.models.autoencoders import computed_in, load_autoencoder
from torchmlx.models.clips import read_clip
from torchmlx.models.likeness import psnr

from .vae_oracle import close, diffusers

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.shared]


@pytest.fixture(scope="module")
def clips(shared, tmp_path_factory) -> Path:
    """The folder of the three clips: their rights are not stated, so none is in the repository."""
    folder = tmp_path_factory.mktemp("assets")
    script = shared / "assets" / "fetch_assets.py"
    subprocess.run([sys.executable, script, "clips", folder], check=True, timeout=300)
    return folder / "clips"


@pytest.fixture(scope="module")
def models(shared):
    """Theirs and ours, in float32."""
    folder = shared / "assets" / "wan22-mini"
    theirs = diffusers.AutoencoderKLWan.from_pretrained(folder, torch_dtype=real.float32).eval()
    return theirs, load_autoencoder(folder, torch.float32)


def frames_of(path, count, height, width):
    """The middle of the first frames, uint8 [T, H, W, 3]."""
    frames = read_clip(path, most=count).frames
    top, left = (frames.shape[1] - height) // 2, (frames.shape[2] - width) // 2
    assert len(frames) == count
    return frames[:, top : top + height, left : left + width]


def values(frames):
    return (frames.astype(np.float32) / 127.5 - 1).transpose(3, 0, 1, 2)[None]


def pixels(video):
    """uint8 frames of a video in -1..1."""
    array = video.detach().float().numpy()[0].transpose(1, 2, 3, 0).astype(np.float64)
    return np.round((array + 1) * 127.5).clip(0, 255).astype(np.uint8)


def both(models, x):
    """Latents and video, theirs then ours; ours decodes their latents."""
    theirs, ours = models
    with real.no_grad():
        mean = theirs.encode(real.tensor(x)).latent_dist.mode()
        sample = theirs.decode(mean).sample
    close(ours.encode(torch.tensor(x)).latent_dist.mode(), mean)
    got = ours.decode(torch.tensor(mean.numpy())).sample
    close(got, sample)
    return sample, got


@pytest.mark.parametrize("count", [1, 4, 5, 17, 33])
def test_frame_counts(models, clips, count):
    """There and back; four frames come back as one, as theirs do."""
    clip = frames_of(clips / "carphone_pristine.mp4", count, 144, 176)
    sample, got = both(models, values(clip))
    seen = clip[: sample.shape[2]]
    assert abs(psnr(pixels(got), seen) - psnr(pixels(sample), seen)) <= 0.02


# A last tile of one row or column of latents; sides that are no multiples of the stride.
@pytest.mark.parametrize(
    ("tile", "stride", "height", "width"), [(128, 96, 208, 336), (96, 64, 208, 208)]
)
def test_tiles(models, clips, tile, stride, height, width):
    x = values(frames_of(clips / "bikes.mp4", 5, height, width))
    for model in models:
        model.enable_tiling(tile, tile, stride, stride)
    try:
        both(models, x)
    finally:
        for model in models:
            model.disable_tiling()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("clip", ["bikes", "bigbuckbunny", "carphone_pristine"])
def test_half_types_keep_the_likeness(models, clips, shared, dtype, clip):
    """float16 is computed in float32, since values inside of the decoder pass its range."""
    clip = frames_of(clips / f"{clip}.mp4", 9, 128, 160)
    x = values(clip)
    with real.no_grad():
        theirs = models[0]
        expected = theirs.decode(theirs.encode(real.tensor(x)).latent_dist.mode()).sample
    dtype = computed_in(getattr(torch, dtype))
    ours = load_autoencoder(shared / "assets" / "wan22-mini", dtype)
    got = ours(torch.tensor(x).to(dtype)).sample
    assert abs(psnr(pixels(got), clip) - psnr(pixels(expected), clip)) <= 0.1
