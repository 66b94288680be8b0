"""`torchmlx chat` on a tiny model: what it remembers, its commands, its faults."""

import io
import json
import sys

import pytest

from tests import tiny
from torchmlx.models import load, stream_generate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config = {"max_position_embeddings": 300, "eos_token_id": None}
    return tiny.write(tmp_path_factory.mktemp("tiny"), config)


@pytest.fixture
def talk(torchmlx, folder, monkeypatch):
    def say(*lines, flags=()):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return torchmlx("chat", "--model", str(folder), "--max-tokens", "6", *flags)

    return say


def answer(folder, messages) -> str:
    model, tokenizer = load(str(folder))
    ids = tokenizer.encode_chat(messages)
    return "".join(r.text for r in stream_generate(model, tokenizer, ids, max_tokens=6))


def user(text):
    return {"role": "user", "content": text}


def test_answers_see_the_conversation(talk, folder):
    outcome = talk("hello", "and then?")
    first = answer(folder, [user("hello")])
    history = [user("hello"), {"role": "assistant", "content": first}, user("and then?")]
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"{first}\n{answer(folder, history)}\n"


def test_undo_again_clear_and_system(talk, folder):
    outcome = talk("hello", "/again", "/clear", "hello", "/undo", "/history", "/system Be brief.")
    assert outcome.out == f"{answer(folder, [user('hello')])}\n" * 3
    outcome = talk("/system Be brief.", "hello")
    system = {"role": "system", "content": "Be brief."}
    assert outcome.out == f"{answer(folder, [system, user('hello')])}\n"
    assert talk("hello", flags=("--system", "Be brief.")).out == outcome.out


def test_messages_of_several_lines(talk, folder, tmp_path):
    talk('"""', "one", "/clear", '"""', "two\\", "three", f"/save {tmp_path / 'c.json'}", "/exit")
    saved = json.loads((tmp_path / "c.json").read_text())
    assert [m["content"] for m in saved if m["role"] == "user"] == ["one\n/clear", "two\nthree"]


def test_input_that_is_no_text_does_not_end_it(torchmlx, folder, monkeypatch, tmp_path):
    """Bytes that are no UTF-8, a NUL in a name."""
    lines = b"a\xff\n/system \xff\n/save \xff\n/save a\0b\nhello\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines), "utf-8"))
    outcome = torchmlx("chat", "--model", str(folder), "--max-tokens", "6")
    assert (outcome.code, outcome.out) == (0, f"{answer(folder, [user('hello')])}\n")
    assert outcome.err.count("that is not valid UTF-8") == 3 and outcome.err.count("\n") == 4
    assert "cannot write it: embedded null" in outcome.err


def test_what_goes_wrong_does_not_end_it(talk, folder):
    outcome = talk("/nonsense", "/undo", "/save", "a" * 400, "hello")
    assert outcome.code == 0
    assert outcome.out == f"{answer(folder, [user('hello')])}\n"
    assert "no command /nonsense" in outcome.err and "nothing to take back" in outcome.err
    assert "but the model has 300 positions" in outcome.err
