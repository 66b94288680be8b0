"""What `generate` asks of torchmlx.models, and what it prints; the model is a stand-in."""

import io
import json
import sys
from types import SimpleNamespace

import pytest

from torchmlx import models


class Tokenizer:
    chat_template = "a template"

    def encode_chat(self, messages, **variables):
        text = "".join(f"<{m['role']}>{m['content']}" for m in messages)
        return f"{text}{variables}" if variables else text


@pytest.fixture
def calls(monkeypatch):
    """Stands in for loading and generating; records the arguments of both."""
    seen = SimpleNamespace(load=None, stream=None, tokenizer=Tokenizer())

    def load(path, **options):
        seen.load = (path, options)
        return "model", seen.tokenizer

    def stream_generate(model, tokenizer, prompt, **options):
        seen.stream = (prompt, options)
        for count, text in enumerate(("Grüße", ", 世界"), start=1):
            yield SimpleNamespace(
                text=text,
                token=count,
                finish_reason="stop" if count == 2 else None,
                prompt_tokens=7,
                prompt_tps=100.0,
                generation_tokens=count,
                generation_tps=12.34,
                peak_memory=3 * 2**29,
            )

    monkeypatch.setattr(models, "load", load, raising=False)
    monkeypatch.setattr(models, "stream_generate", stream_generate, raising=False)
    return seen


def test_text_on_stdout_and_numbers_on_stderr(torchmlx, calls):
    outcome = torchmlx("generate", "--model", "m", "--prompt", "hello")
    assert outcome.code == 0
    assert outcome.out == "Grüße, 世界\n"
    assert outcome.err == (
        "prompt: 7 tokens, 100.0 tokens/s; generated: 2 tokens, 12.3 tokens/s; "
        "peak memory: 1.50 GiB\n"
    )


def test_json(torchmlx, calls):
    result = json.loads(torchmlx("generate", "--model", "m", "--prompt", "p", "--json").out)
    assert result.pop("load_seconds") >= 0
    assert result == {
        "text": "Grüße, 世界",
        "finish_reason": "stop",
        "prompt_tokens": 7,
        "prompt_tps": 100.0,
        "generation_tokens": 2,
        "generation_tps": 12.34,
        "peak_memory_bytes": 3 * 2**29,
    }


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_stdout_without_utf8(torchmlx, calls, monkeypatch, encoding):
    """What it cannot show it replaces, and JSON spells it."""
    common = ("generate", "--model", "m", "--prompt", "p")
    for flags in ((), ("--json",)):
        stdout = io.TextIOWrapper(io.BytesIO(), encoding)
        monkeypatch.setattr(sys, "stdout", stdout)
        assert torchmlx(*common, *flags).code == 0
        written = stdout.buffer.getvalue().decode(encoding)
        if flags:
            assert json.loads(written)["text"] == "Grüße, 世界"
        else:
            assert written == "Grüße, 世界\n".encode(encoding, "replace").decode(encoding)


def test_flags_that_are_absent_are_left_to_the_checkpoint(torchmlx, calls):
    torchmlx("generate", "--model", "m", "--prompt", "p")
    unset = dict(dtype=None, device=None, revision=None, force=False, dequantize=False, mtp=False)
    assert calls.load == ("m", unset)
    assert calls.stream == ("<user>p", dict(max_tokens=512, stop=[], seed=None))


def test_every_flag_arrives(torchmlx, calls):
    torchmlx(
        *("generate", "--model", "m", "--prompt", "p", "--system", "s", "--max-tokens", "3"),
        *("--temperature", "0", "--top-p", "0.5", "--top-k", "4", "--min-p", "0.25"),
        *("--repetition-penalty", "1.5", "--stop", "a", "--stop", "b", "--seed", "9"),
        *("--dtype", "float16", "--device", "cpu", "--revision", "r", "--force"),
        "--dequantize",
    )
    given = dict(dtype="float16", device="cpu", revision="r", force=True, dequantize=True)
    given["mtp"] = False
    assert calls.load == ("m", given)
    prompt, options = calls.stream
    assert prompt == "<system>s<user>p"
    assert options == dict(
        max_tokens=3,
        temperature=0.0,
        top_p=0.5,
        top_k=4,
        min_p=0.25,
        repetition_penalty=1.5,
        stop=["a", "b"],
        seed=9,
    )


def test_raw_skips_the_template(torchmlx, calls):
    torchmlx("generate", "--model", "m", "--prompt", "p", "--raw")
    assert calls.stream[0] == "p"


def test_model_without_template_continues_the_prompt(torchmlx, calls):
    calls.tokenizer.chat_template = None
    torchmlx("generate", "--model", "m", "--prompt", "p")
    assert calls.stream[0] == "p"


def test_system_message_needs_a_template(torchmlx, calls):
    calls.tokenizer.chat_template = None
    outcome = torchmlx("generate", "--model", "m", "--prompt", "p", "--system", "s")
    assert outcome.code == 2 and "no chat template" in outcome.err


def test_dash_reads_stdin_without_its_last_line_end(torchmlx, calls, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("two\nlines\n"))
    torchmlx("generate", "--model", "m", "--prompt", "-", "--raw")
    assert calls.stream[0] == "two\nlines"


def test_template_variables_are_json_where_they_can_be(torchmlx, calls):
    variables = ("enable_thinking=false", "budget=3", "name=Ada L.")
    flags = [word for v in variables for word in ("--template-var", v)]
    torchmlx("generate", "--model", "m", "--prompt", "p", *flags)
    expected = {"enable_thinking": False, "budget": 3, "name": "Ada L."}
    assert calls.stream[0] == f"<user>p{expected}"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--template-var", "x"), "NAME=VALUE"),
        (("--template-var", "a-b=1"), "NAME=VALUE"),
        (("--template-var", "a=1", "--raw"), "--raw"),
        (("--kv-bits", "3"), "--kv-bits"),
        (("--num-draft-tokens", "16"), "1 to 15"),
        (("--prefill-step-size", "0"), "--prefill-step-size"),
        (("--mtp", "--draft-model", "d"), "exclude each other"),
    ],
    ids=str,
)
def test_faults_of_newer_flags(torchmlx, calls, flags, text):
    outcome = torchmlx("generate", "--model", "m", "--prompt", "p", *flags)
    assert outcome.code == 2 and text in outcome.err and outcome.err.count("\n") == 1


@pytest.mark.parametrize("name", [".", "absent/c.safetensors", "setup.py/c.safetensors"])
def test_a_prompt_cache_that_cannot_be_written_is_refused_first(torchmlx, calls, name, tmp_path):
    (tmp_path / "setup.py").touch()
    calls.stream = None
    flags = ("--model", "m", "--prompt", "p", "--prompt-cache", str(tmp_path / name))
    outcome = torchmlx("generate", *flags)
    assert outcome.code == 2 and "cannot write it" in outcome.err
    assert outcome.err.count("\n") == 1 and calls.stream is None


def test_a_template_variable_needs_a_template(torchmlx, calls):
    calls.tokenizer.chat_template = None
    outcome = torchmlx("generate", "--model", "m", "--prompt", "p", "--template-var", "a=1")
    assert outcome.code == 2 and "no chat template" in outcome.err


def test_reading_flags_and_a_draft_arrive(torchmlx, calls):
    flags = ("--kv-bits", "8", "--prefill-step-size", "64", "--num-draft-tokens", "5")
    torchmlx("generate", "--model", "m", "--prompt", "p", *flags, "--draft-model", "d")
    expected = dict(kv_bits=8, prefill_step_size=64, num_draft_tokens=5, draft_model="model")
    assert {name: calls.stream[1].get(name) for name in expected} == expected
    assert calls.load[0] == "d"


def test_a_head_arrives(torchmlx, calls):
    torchmlx("generate", "--model", "m", "--prompt", "p", "--mtp", "--num-draft-tokens", "1")
    assert calls.load[1]["mtp"] is True
    assert (calls.stream[1]["mtp"], calls.stream[1]["num_draft_tokens"]) == (True, 1)
