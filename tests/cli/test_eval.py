"""`torchmlx eval` against likelihoods summed by hand."""

import json

import numpy as np
import pytest

import torchmlx as tm
from tests import tiny
from torchmlx.models import load

TEXT = "Grüße, 世界! 👍🏽 The quick brown fox."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("tiny"))


def by_hand(folder, ids: list[int]) -> float:
    logits = load(str(folder))[0](tm.tensor([ids])).numpy()[0].astype(np.float64)
    odds = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -sum(odds[i, token] for i, token in enumerate(ids[1:]))


def test_per_token_and_per_byte(torchmlx, folder, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    command = ("eval", "--model", str(folder), "--text", str(tmp_path / "text"), "--json")
    found = json.loads(torchmlx(*command).out)
    ids = load(str(folder))[1].encode(TEXT)
    total = by_hand(folder, ids)
    # One token a byte; the first is given, and its byte does not count.
    assert found["tokens"] == len(ids) - 1 and found["bytes"] == len(TEXT.encode()) - 1
    assert found["nll_per_token"] == pytest.approx(total / (len(ids) - 1), rel=1e-5)
    assert found["nll_per_byte"] == pytest.approx(found["nll_per_token"], rel=1e-9)
    assert found["perplexity"] == pytest.approx(np.exp(found["nll_per_token"]), rel=1e-5)


def test_pieces_do_not_see_one_another(torchmlx, folder, tmp_path):
    (tmp_path / "text").write_text("abcdefghijk")
    command = ("eval", "--model", str(folder), "--text", str(tmp_path / "text"))
    found = json.loads(torchmlx(*command, "--context", "5", "--json").out)
    ids = load(str(folder))[1].encode("abcdefghijk")
    total = by_hand(folder, ids[:5]) + by_hand(folder, ids[5:10])
    assert found["tokens"] == 8
    assert found["nll_per_token"] == pytest.approx(total / 8, rel=1e-5)
    assert torchmlx(*command).out.startswith("nll per token: ")


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"", "at least two tokens"), (b"a", "at least two tokens"), (b"ab\xff", "at byte 2")],
)
def test_bad_text(torchmlx, folder, tmp_path, content, text):
    (tmp_path / "text").write_bytes(content)
    outcome = torchmlx("eval", "--model", str(folder), "--text", str(tmp_path / "text"))
    assert outcome.code == 2 and text in outcome.err and outcome.err.count("\n") == 1


def test_missing_text(torchmlx, folder):
    outcome = torchmlx("eval", "--model", str(folder), "--text", "/nowhere")
    assert outcome.code == 2 and "/nowhere: cannot read it" in outcome.err
