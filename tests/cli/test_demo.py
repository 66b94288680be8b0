"""The demo: the models in the package for real; SmolLM2's commands with stand-ins for the work."""

import shlex
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from torchmlx.cli import generate
from torchmlx.cli.demo import OPENINGS
from torchmlx.cli.shapes import moving_shapes
from torchmlx.errors import InputError
from torchmlx.kernels.dispatch import trace
from torchmlx.models.clips import read_clip
from torchmlx.models.likeness import psnr

VIDEO = ("encode-video", "decode-video", "roundtrip")


@pytest.fixture
def work(monkeypatch, tmp_path):
    """Stands in for the work; `done` lists what was asked of it, in order."""
    done = []

    def convert(src, out, *options):
        done.append(("convert", Path(src).name))
        Path(out).mkdir()

    gguf = tmp_path / "SmolLM2.gguf"
    assets = SimpleNamespace(fetch_smollm2=lambda: gguf)
    monkeypatch.setitem(sys.modules, "torchmlx.models.assets", assets)
    monkeypatch.setitem(sys.modules, "torchmlx.models.convert", SimpleNamespace(convert=convert))
    monkeypatch.setattr(generate, "run", lambda args: done.append(args.prompt) or 0)
    return SimpleNamespace(done=done, folder=tmp_path / "SmolLM2-135M-Instruct")


def test_tiny_model_writes_through_its_kernels(torchmlx, monkeypatch):
    """Offline, and the expert, gated delta and FP8 kernels served it."""
    monkeypatch.setattr(socket, "socket", None)
    with trace() as calls:
        outcome = torchmlx("demo", "text")
    assert outcome.code == 0
    assert {"moe_decode", "router", "gated_delta", "fp8_matmul"} <= {c.kernel for c in calls}
    for opening in OPENINGS:
        assert f"--prompt {shlex.quote(opening)} --raw" in outcome.out
    written = outcome.out.split("--seed 1\n")[1:]
    assert len(written) == 2
    # Held out text has 3.58 nats a token: what it writes is words of the novels, not noise.
    words = " ".join(written).lower().split()
    common = {"the", "of", "to", "and", "a", "in", "was", "her", "be", "not", "had", "she", "he"}
    assert len(words) > 60 and sum(word in common for word in words) > len(words) / 6


def test_demo_converts_once_and_shows_its_commands(torchmlx, work):
    prompts = ["What is the capital of France?", "Why is the sky blue?"]
    outcome = torchmlx("demo", "text", "--model", "smollm2")
    assert (outcome.code, outcome.err) == (0, "")
    assert work.done == [("convert", "SmolLM2.gguf"), *prompts]
    assert outcome.out.count("$ torchmlx convert ") == 1
    assert f"--prompt '{prompts[0]}'" in outcome.out

    work.done.clear()
    assert torchmlx("demo", "text", "--model", "smollm2").code == 0
    assert work.done == prompts


def test_small_autoencoder_codes_a_clip(torchmlx, monkeypatch, tmp_path):
    """Offline; what comes back is near what was drawn, and the sheet shows both."""
    monkeypatch.setattr(socket, "socket", None)
    monkeypatch.setattr("torchmlx.cli.demo.FRAMES", 5)
    monkeypatch.setattr("torchmlx.cli.demo.HEIGHT", 96)
    monkeypatch.setattr("torchmlx.cli.demo.WIDTH", 128)
    outcome = torchmlx("demo", "video", "--out", str(tmp_path / "new" / "demo"))
    assert outcome.code == 0
    assert all(f"$ torchmlx {command} --vae" in outcome.out for command in VIDEO)
    assert "not Wan's weights" in outcome.out
    folder = tmp_path / "new" / "demo"
    drawn, back = (read_clip(folder / name) for name in ("shapes.mp4", "back.mp4"))
    assert drawn.frames.shape == back.frames.shape == (5, 96, 128, 3)
    assert psnr(moving_shapes(5, 96, 128), drawn.frames) > 35
    # 23.6 dB; a picture of one grey is 16.7 dB off (2026-12-02).
    assert psnr(drawn.frames, back.frames) > 22
    sheet = read_clip(folder / "sheet.png").frames
    assert sheet.shape == (1, 2 * 100, 4 * 132, 3)
    np.testing.assert_array_equal(sheet[0, 2:98, 2:130], drawn.frames[0])


def test_demo_does_both(torchmlx, work, monkeypatch):
    work.folder.mkdir()
    monkeypatch.setattr("torchmlx.cli.demo._video", lambda folder: work.done.append(folder) or [])
    assert torchmlx("demo", "--model", "smollm2").code == 0
    assert work.done[-1] == Path("torchmlx-demo") and len(work.done) == 3


def test_demo_says_what_video_needs(torchmlx, work, monkeypatch):
    """Without PyAV the text is a demo too; who asks for the video gets an error."""
    work.folder.mkdir()
    monkeypatch.setitem(sys.modules, "av", None)
    outcome = torchmlx("demo", "--model", "smollm2")
    assert outcome.code == 0
    assert outcome.out.endswith("pip install 'torchmlx[video]'\n")
    outcome = torchmlx("demo", "video", "--out", str(work.folder))
    assert outcome.code == 2
    assert outcome.err.endswith("pip install 'torchmlx[video]'\n")


def test_demo_stops_at_the_first_failure(torchmlx, work, monkeypatch):
    def fail(args):
        raise InputError("not enough memory")

    work.folder.mkdir()
    monkeypatch.setattr(generate, "run", fail)
    outcome = torchmlx("demo", "text", "--model", "smollm2")
    assert outcome.code == 2
    assert outcome.err == "torchmlx: error: not enough memory\n"
