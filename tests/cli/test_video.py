"""The commands for videos, with wan22-mini: what they write is what the model makes."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import torchmlx as torch
from tests.bounded import started
from torchmlx.cli.shapes import moving_shapes
from torchmlx.models.assets import small_autoencoder
from torchmlx.models.autoencoder_kl_wan import AutoencoderKLWan
from torchmlx.models.clips import read_clip, write_clip
from torchmlx.models.latents import read_latents, write_latents
from torchmlx.models.likeness import psnr, ssim

VAE = ("--vae", str(small_autoencoder()))
SHAPES = moving_shapes(5, 64, 96)


@pytest.fixture(scope="module")
def model():
    return AutoencoderKLWan.from_pretrained(small_autoencoder(), torch.float32)


@pytest.fixture(scope="module")
def mean(model):
    """The latents of SHAPES."""
    x = torch.tensor(SHAPES.transpose(3, 0, 1, 2)[None].astype(np.float32) / 127.5 - 1)
    return model.encode(x).latent_dist.mode()


@pytest.fixture(scope="module")
def pixels(model, mean):
    """What becomes of SHAPES: frames in uint8."""
    return as_frames(model.decode(mean).sample)


def as_frames(video):
    array = video[0].numpy().transpose(1, 2, 3, 0).astype(np.float64)
    return np.round((array + 1) * 127.5).clip(0, 255).astype(np.uint8)


def near(got, expected):
    """Within a rounding: chunks of frames are computed in another order of sums."""
    assert got.shape == expected.shape
    assert np.abs(got.astype(int) - expected).max() <= 1
    assert np.mean(got != expected) < 0.01


@pytest.fixture
def latents(mean, tmp_path):
    write_latents(tmp_path / "z.safetensors", mean, {})
    return tmp_path / "z.safetensors"


def decoded(torchmlx, tmp_path, latents, *flags, out="frames"):
    arguments = ("--latents", str(latents), "--out", str(tmp_path / out), *flags)
    outcome = torchmlx("decode-video", *VAE, *arguments)
    assert outcome.code == 0, outcome.err
    return read_clip(tmp_path / out)


@pytest.mark.parametrize("name", ["shapes.webp", "shapes"])
def test_encode(torchmlx, tmp_path, mean, name):
    write_clip(tmp_path / name, iter(SHAPES), 20)
    arguments = ("--input", str(tmp_path / name), "--out", str(tmp_path / "z.safetensors"))
    outcome = torchmlx("encode-video", *VAE, *arguments)
    assert outcome.code == 0, outcome.err
    assert outcome.out.endswith("latents [1, 48, 2, 4, 6] of 5 frames\n")
    values, notes = read_latents(tmp_path / "z.safetensors", 48)
    np.testing.assert_allclose(values.numpy(), mean.numpy(), atol=1e-4)
    assert notes == {"normalized": "false", "fps": "20" if "." in name else "16"}


def test_encode_cuts_what_does_not_fit(torchmlx, tmp_path, mean):
    """One frame too many, 7 columns and 2 rows: the middle of the picture stays."""
    large = np.pad(SHAPES, ((0, 1), (1, 1), (3, 4), (0, 0)))
    write_clip(tmp_path / "large.webp", iter(large))
    arguments = ("--input", str(tmp_path / "large.webp"), "--out", str(tmp_path / "z.safetensors"))
    outcome = torchmlx("encode-video", *VAE, *arguments)
    assert "6 frames of 103 x 66 cut to 5 of 96 x 64" in outcome.err
    values, _ = read_latents(tmp_path / "z.safetensors", 48)
    np.testing.assert_allclose(values.numpy(), mean.numpy(), atol=1e-4)


def test_encode_a_picture_and_the_first_frames(torchmlx, tmp_path, mean):
    write_clip(tmp_path / "one.png", iter(SHAPES[:1]))
    write_clip(tmp_path / "all.webp", iter(SHAPES))
    for name, flags in (("one.png", ()), ("all.webp", ("--frames", "1"))):
        arguments = ("--input", str(tmp_path / name), "--out", str(tmp_path / "z.safetensors"))
        assert torchmlx("encode-video", *VAE, *arguments, *flags).code == 0
        values, _ = read_latents(tmp_path / "z.safetensors", 48)
        np.testing.assert_allclose(values.numpy(), mean[:, :, :1].numpy(), atol=1e-4)


@pytest.mark.parametrize(("out", "least"), [("c.webp", 55), ("c.gif", 30), ("c.mp4", 38)])
def test_decode_to_files(torchmlx, tmp_path, latents, pixels, out, least):
    clip = decoded(torchmlx, tmp_path, latents, "--fps", "12.5", out=out)
    assert clip.fps == pytest.approx(12.5)
    assert psnr(clip.frames, pixels) > least
    assert sorted(p.name for p in tmp_path.iterdir()) == [out, latents.name]


def test_decode_to_pictures(torchmlx, tmp_path, latents, pixels, mean):
    near(decoded(torchmlx, tmp_path, latents).frames, pixels)
    assert sorted(p.name for p in (tmp_path / "frames").iterdir()) == [
        f"{n:05}.png" for n in range(5)
    ]
    write_latents(tmp_path / "first.safetensors", mean[:, :, :1], {})
    one = decoded(torchmlx, tmp_path, tmp_path / "first.safetensors", out="one.png")
    near(one.frames, pixels[:1])


def test_decode_other_files(torchmlx, tmp_path, mean, pixels):
    """NumPy's, big-endian too, and torch.save's, a batch of one or none."""
    array = mean.numpy()
    np.save(tmp_path / "a.npy", array.astype(">f8"))
    np.save(tmp_path / "b.npy", array[0])
    torch.save(mean, tmp_path / "c.pt")
    torch.save({"latents": mean[0], "seed": torch.zeros(1)}, tmp_path / "d.pth")
    for name in ("a.npy", "b.npy", "c.pt", "d.pth"):
        near(decoded(torchmlx, tmp_path, tmp_path / name, out=name + ".webp").frames, pixels)


def test_normalized(torchmlx, tmp_path, model, mean, pixels):
    """(z - mean) / std by config.json; a file that says so needs no flag."""
    write_clip(tmp_path / "shapes.webp", iter(SHAPES))
    arguments = ("--input", str(tmp_path / "shapes.webp"), "--out", str(tmp_path / "n.safetensors"))
    assert torchmlx("encode-video", *VAE, *arguments, "--normalized").code == 0
    values, notes = read_latents(tmp_path / "n.safetensors", 48)
    assert notes["normalized"] == "true"
    centre, spread = (
        np.array(n).reshape(1, 48, 1, 1, 1)
        for n in (model.config.latents_mean, model.config.latents_std)
    )
    np.testing.assert_allclose(values.numpy(), (mean.numpy() - centre) / spread, atol=1e-4)
    near(decoded(torchmlx, tmp_path, tmp_path / "n.safetensors", out="a").frames, pixels)
    np.save(tmp_path / "n.npy", values.numpy())
    near(decoded(torchmlx, tmp_path, tmp_path / "n.npy", "--normalized", out="b").frames, pixels)
    assert psnr(decoded(torchmlx, tmp_path, tmp_path / "n.npy", out="c").frames, pixels) < 30


def test_tiles(torchmlx, tmp_path, latents, mean, pixels):
    tiled = AutoencoderKLWan.from_pretrained(small_autoencoder(), torch.float32)
    tiled.enable_tiling(64, 64, 32, 32, blend="cosine")
    flags = ("--tile", "64", "--stride", "32", "--blend", "cosine")
    got = decoded(torchmlx, tmp_path, latents, *flags).frames
    near(got, as_frames(tiled.decode(mean).sample))
    assert (got != pixels).any()


@pytest.mark.parametrize(("dtype", "least"), [("float16", 55), ("bfloat16", 35)])
def test_dtypes(torchmlx, tmp_path, latents, pixels, dtype, least):
    """float16 computes in float32, whose range the decoder needs."""
    assert psnr(decoded(torchmlx, tmp_path, latents, "--dtype", dtype).frames, pixels) > least


def test_memory_limit(torchmlx, tmp_path, mean):
    """The limit chooses the tile; one that is too small is refused with one that does."""
    write_latents(tmp_path / "z.safetensors", mean[:, :, :1].tile(1, 1, 1, 4, 4), {})
    command = ("decode-video", *VAE, "--latents", str(tmp_path / "z.safetensors"))
    out = str(tmp_path / "c.mp4")
    refused = torchmlx(*command, "--out", out, "--memory-limit", "100MiB")
    assert refused.code == 2 and not os.path.exists(out)
    assert "1 frames of 384 x 256 do not fit in 0.10 GiB" in refused.err
    least = refused.err.split("--memory-limit ")[1].strip()
    kept = torchmlx(*command, "--out", out, "--memory-limit", least)
    assert kept.code == 0, kept.err
    assert "bfloat16, tiles of 192, stride 144; at most " in kept.err
    assert read_clip(out).frames.shape == (1, 256, 384, 3)
    large = torchmlx(*command, "--out", out, "--memory-limit", "64GiB")
    assert "float32, whole frames; " in large.err


def test_roundtrip(torchmlx, tmp_path, pixels):
    write_clip(tmp_path / "shapes.webp", iter(SHAPES))
    arguments = ("--input", str(tmp_path / "shapes.webp"), "--out", str(tmp_path / "sheet.png"))
    outcome = torchmlx("roundtrip", *VAE, *arguments, "--json")
    assert outcome.code == 0, outcome.err
    numbers = json.loads(outcome.out)
    assert numbers["frames"] == 5 and numbers["out"] == str(tmp_path / "sheet.png")
    assert numbers["psnr"] == pytest.approx(psnr(SHAPES, pixels), abs=0.02)
    assert numbers["ssim"] == pytest.approx(ssim(SHAPES, pixels), abs=0.002)
    sheet = read_clip(tmp_path / "sheet.png").frames[0]
    picks = [0, 1, 3, 4]  # evenly from first to last
    for row, frames in enumerate((SHAPES, pixels)):
        for column, n in enumerate(picks):
            top, left = 68 * row + 2, 100 * column + 2
            near(sheet[top : top + 64, left : left + 96], frames[n])
    told = torchmlx("roundtrip", *VAE, *arguments).out
    assert f"5 frames: PSNR {numbers['psnr']:.2f} dB, SSIM {numbers['ssim']:.4f}" in told


# What a shell starts in the background ignores the signal, and so would this test's process.
HEEDING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from torchmlx.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["int", "term", "hup"],
)
def test_interrupt_leaves_nothing(tmp_path, mean, number, code):
    """A real signal while frames are written."""
    write_latents(tmp_path / "z.safetensors", mean.repeat(1, 1, 40, 1, 1), {})
    command = [sys.executable, "-c", HEEDING, "decode-video", *VAE, "--no-tiling"]
    command += ["--latents", str(tmp_path / "z.safetensors"), "--out", str(tmp_path / "frames")]
    with started(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not any(tmp_path.glob(".frames.partial-*/*.png")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in told
    assert [p.name for p in tmp_path.iterdir()] == ["z.safetensors"]
