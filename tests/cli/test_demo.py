"""The demo's commands, with stand-ins for fetching, converting and generating."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchmlx.cli import generate
from torchmlx.errors import InputError


@pytest.fixture
def work(monkeypatch, tmp_path):
    """Stands in for the work; `done` lists what was asked of it, in order."""
    done = []

    def convert(src, out, **options):
        done.append(("convert", Path(src).name))
        Path(out).mkdir()

    gguf = tmp_path / "SmolLM2.gguf"
    assets = SimpleNamespace(fetch_smollm2=lambda: gguf)
    monkeypatch.setitem(sys.modules, "torchmlx.models.assets", assets)
    monkeypatch.setitem(sys.modules, "torchmlx.models.convert", SimpleNamespace(convert=convert))
    monkeypatch.setattr(generate, "run", lambda args: done.append(args.prompt) or 0)
    return SimpleNamespace(done=done, folder=tmp_path / "SmolLM2-135M-Instruct")


def test_demo_converts_once_and_shows_its_commands(torchmlx, work):
    prompts = ["What is the capital of France?", "Why is the sky blue?"]
    outcome = torchmlx("demo")
    assert (outcome.code, outcome.err) == (0, "")
    assert work.done == [("convert", "SmolLM2.gguf"), *prompts]
    assert outcome.out.count("$ torchmlx convert ") == 1
    assert f"--prompt '{prompts[0]}'" in outcome.out

    work.done.clear()
    assert torchmlx("demo", "text").code == 0
    assert work.done == prompts


def test_demo_stops_at_the_first_failure(torchmlx, work, monkeypatch):
    def fail(args):
        raise InputError("not enough memory")

    work.folder.mkdir()
    monkeypatch.setattr(generate, "run", fail)
    outcome = torchmlx("demo")
    assert outcome.code == 2
    assert outcome.err == "torchmlx: error: not enough memory\n"
