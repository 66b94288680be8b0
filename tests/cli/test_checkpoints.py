"""`torchmlx generate` on a tiny checkpoint: text from a good one, one line from a damaged one."""

import json
import os
import struct

import mlx.core as mx
import pytest

from tests import tiny
from torchmlx.models import load, stream_generate
from torchmlx.models.assets import tiny_model
from torchmlx.models.step import LINEAR
from torchmlx.serialization.safetensors import SafetensorsFile, save

from .test_errors import assert_one_line

EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture
def folder(tmp_path):
    return tiny.write(tmp_path / "tiny")


def generate(torchmlx, folder, *flags, prompt="hello"):
    return torchmlx("generate", "--model", str(folder), "--prompt", prompt, *flags)


def test_generates(torchmlx, folder):
    """Greedy is repeatable; --json tells the same text and its length."""
    first = generate(torchmlx, folder, "--max-tokens", "8")
    assert first.code == 0 and first.out.strip()
    assert "generated: 8 tokens" in first.err
    result = json.loads(generate(torchmlx, folder, "--max-tokens", "8", "--json").out)
    assert result["text"] == first.out.removesuffix("\n")
    assert result["generation_tokens"] == 8
    assert result["finish_reason"] == "length"


@pytest.mark.parametrize("model", ["llama", "hybrid"])
def test_prompt_cache(torchmlx, tmp_path, model):
    """A prompt kept in a file is not read again, and the text is that without it."""
    folder = tiny_model() if model == "hybrid" else None
    folder = folder or tiny.write(tmp_path / "tiny", {"max_position_embeddings": 512})
    path, told = tmp_path / "c.safetensors", []
    common = ("--raw", "--temperature", "0", "--dtype", "float32", "--max-tokens", "6")
    beginning = "It is a truth universally acknowledged, that a single man in possession"
    first = generate(torchmlx, folder, *common, "--prompt-cache", str(path), prompt=beginning)
    assert first.code == 0 and path.exists()
    with SafetensorsFile(path) as file:
        known = len(json.loads(file.metadata["tokens"]))
    for prompt in (beginning, beginning + " of a good fortune"):
        plain = generate(torchmlx, folder, *common, prompt=prompt)
        again = generate(torchmlx, folder, *common, "--prompt-cache-file", str(path), prompt=prompt)
        assert again.out == plain.out
        with SafetensorsFile(path) as file:
            told.append(len(json.loads(file.metadata["tokens"])))
    assert told[0] == known < told[1]


def test_a_file_that_is_no_prompt_cache(torchmlx, folder):
    weights = str(folder / "model.safetensors")
    outcome = generate(torchmlx, folder, "--prompt-cache", weights)
    assert_one_line(outcome, "not a prompt cache")


def edit(folder, name, **fields):
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def rewrite(folder, change):
    tensors = tiny.weights()
    change(tensors)
    save(folder / "model.safetensors", tensors)


def header(folder, text: str) -> None:
    data = text.encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(data)) + data + bytes(8))


def cut(folder, length: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])


def index(folder, file: str) -> None:
    """Weights as the index of one file names them, which is the one there or not."""
    (folder / "model.safetensors").rename(folder / "m.safetensors")
    named = dict.fromkeys(tiny.weights(), "m.safetensors")
    text = json.dumps({"weight_map": {**named, "model.norm.weight": file}})
    (folder / "model.safetensors.index.json").write_text(text)


HUGE = ",".join(["2147483647"] * 31)
ONE = '{"a":{"dtype":"F32","shape":[1],"data_offsets":[%s]}%s}'
DAMAGE = {
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no *.safetensors"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json"),
    "empty file": (lambda f: cut(f, 0), "model.safetensors"),
    "truncated header": (lambda f: cut(f, 100), "model.safetensors"),
    "truncated data": (lambda f: cut(f, -64), "model.safetensors"),
    "huge header": (
        lambda f: (f / "model.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}"),
        "model.safetensors",
    ),
    "offsets outside": (lambda f: header(f, ONE % ("0,400", "")), "'a'"),
    "overlap": (
        lambda f: header(f, ONE % ("0,4", ',"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}')),
        "overlap",
    ),
    "a name that is no Unicode": (
        lambda f: header(f, ONE.replace('"a"', '"\\ud800"') % ("0,4", "")),
        "its name is not valid Unicode",
    ),
    "a layer of 5000 digits": (
        lambda f: rewrite(f, lambda t: t.update({f"model.layers.{'9' * 5000}.x": mx.zeros((2,))})),
        "does not belong",
    ),
    "a huge shape of nothing": (
        lambda f: header(f, ONE.replace("[1]", f"[0,{HUGE}]") % ("0,0", "")),
        "too large for an array, even where an axis is empty",
    ),
    "a shape that takes pages to tell": (
        lambda f: header(f, ONE.replace("[1]", f"[{HUGE}]") % ("0,4", "")),
        "its offsets give 4",
    ),
    "a file's name beyond all names": (
        lambda f: index(f, "x" * 5000 + ".safetensors"),
        "not a plain file name",
    ),
    "a file outside": (lambda f: index(f, "../../etc/passwd"), "not a plain file name"),
    "a file outside by another system's path": (
        lambda f: index(f, "..\\m.safetensors"),
        "not a plain file name",
    ),
    "a file's name that is no Unicode": (
        lambda f: index(f, "\ud800.safetensors"),
        "not a plain file name",
    ),
    "an endless template": (
        lambda f: (f / "chat_template.jinja").open("wb").truncate(1 << 40),
        "1099511627776 bytes are too many",
    ),
    "an endless tokenizer": (
        lambda f: (f / "tokenizer.json").open("r+b").truncate(1 << 40),
        "too much for a tokenizer",
    ),
    "a template that cannot be read": (
        lambda f: (f / "chat_template.jinja").symlink_to("/proc/self/mem"),
        "chat_template.jinja: cannot read it",
    ),
    "a head of absurd size": (
        lambda f: edit(f, "config.json", head_dim=10**400),
        "'head_dim' must be an integer",
    ),
    "a rotation of nothing": (
        lambda f: edit(f, "config.json", partial_rotary_factor=1e-320),
        "too few dimensions turn",
    ),
    "missing tensor": (
        lambda f: rewrite(f, lambda t: t.pop("model.layers.1.mlp.up_proj.weight")),
        "'model.layers.1.mlp.up_proj.weight' is missing",
    ),
    "extra tensor": (
        lambda f: rewrite(f, lambda t: t.update(stray=mx.zeros((2,)))),
        "'stray' does not belong",
    ),
    "wrong shape": (
        lambda f: rewrite(f, lambda t: t.update({"model.norm.weight": mx.zeros((31,))})),
        "model.norm.weight has shape [31]",
    ),
    "NaN": (tiny.poison, "the model's logits are not finite numbers (NaN or infinity)"),
    "integer weights": (
        lambda f: rewrite(f, lambda t: t.update({"model.norm.weight": mx.zeros((32,), mx.int32)})),
        "model.norm.weight",
    ),
    "unknown model": (
        lambda f: edit(f, "config.json", model_type="gpt9"),
        "supported: gemma3_text, gpt_oss",
    ),
    "other activation": (lambda f: edit(f, "config.json", hidden_act="gelu"), "hidden_act"),
    "negative size": (lambda f: edit(f, "config.json", hidden_size=-1), "hidden_size"),
    "sliding window": (
        lambda f: edit(f, "config.json", model_type="qwen2", use_sliding_window=True),
        "use_sliding_window",
    ),
    "broken config": (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
    "more experts chosen than there are": (
        lambda f: edit(f, "config.json", num_experts=4, num_experts_per_tok=5),
        "num_experts_per_tok 5 is more than the 4 experts",
    ),
    "kinds of other layers": (
        lambda f: edit(f, "config.json", model_type="smollm3", no_rope_layers=[1] * 5000),
        "'no_rope_layers' has 5000 entries, num_hidden_layers is 2",
    ),
    "gemma3 with an unknown kind of layer": (
        lambda f: edit(f, "config.json", model_type="gemma3_text", layer_types=["x"] * 2),
        "layer_types 'x' is not supported",
    ),
    "gemma3 with a hybrid's layers": (
        lambda f: edit(f, "config.json", model_type="gemma3_text", layer_types=[LINEAR] * 2),
        "gemma3_text has full_attention and sliding_attention only",
    ),
    "llama with a hybrid's layers": (
        lambda f: edit(f, "config.json", layer_types=["full_attention", LINEAR]),
        "layer_types 'linear_attention' is not supported here: llama has full_attention only",
    ),
    "negative epsilon": (
        lambda f: edit(f, "config.json", rms_norm_eps=-1),
        "'rms_norm_eps' must be a finite number from 0",
    ),
    "gemma3 with a scale of nothing": (
        lambda f: edit(f, "config.json", model_type="gemma3_text", query_pre_attn_scalar=0),
        "'query_pre_attn_scalar' must be a finite number from 1e-06",
    ),
    "gemma3 with scores bent": (
        lambda f: edit(f, "config.json", model_type="gemma3_text", attn_logit_softcapping=50.0),
        "attn_logit_softcapping 50.0 is not supported",
    ),
    "endless name of a rotation": (
        lambda f: edit(f, "config.json", rope_scaling={"rope_type": ["x"] * 5000}),
        "unsupported rope type",
    ),
    "a pipe": (
        lambda f: ((f / "model.safetensors").unlink(), os.mkfifo(f / "model.safetensors")),
        "no *.safetensors",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json"),
    "broken tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json"),
    "broken template": (
        lambda f: edit(f, "tokenizer_config.json", chat_template="{% for %}"),
        "tokenizer_config.json",
    ),
    "malicious template": (
        lambda f: edit(
            f,
            "tokenizer_config.json",
            chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}",
        ),
        "tokenizer_config.json",
    ),
    "quantised": (
        lambda f: edit(f, "config.json", quantization_config={"quant_method": "gptq"}),
        "quantization_config",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_checkpoint(torchmlx, folder, name):
    damage, text = DAMAGE[name]
    damage(folder)
    outcome = generate(torchmlx, folder)
    assert_one_line(outcome, text)


@pytest.mark.parametrize("flags", [("--json",), ("--temperature", "0.7")], ids=str)
def test_a_checkpoint_that_breaks_while_it_writes(torchmlx, folder, flags):
    """Text that came before stays, then one line; no JSON object of half an answer."""
    rules = ("--raw", "--seed", "1", *flags)
    model, tokenizer = load(str(folder))
    options = {} if "--json" in flags else {"temperature": 0.7, "seed": 1}
    fourth = list(stream_generate(model, tokenizer, "hello", max_tokens=4, **options))[-1].token
    whole = generate(torchmlx, folder, *rules)
    outcome = generate(torchmlx, tiny.poison(folder, EMBEDDING, row=fourth), *rules)
    assert whole.code == 0 and outcome.code == 2 and outcome.err.count("\n") == 1
    assert "logits are not finite" in outcome.err
    assert whole.out.startswith(outcome.out) and bool(outcome.out) == ("--json" not in flags)


def test_a_broken_checkpoint_has_no_likelihood(torchmlx, folder):
    (folder / "text.txt").write_text("some words")
    assert_one_line(
        torchmlx("eval", "--model", str(tiny.poison(folder)), "--text", str(folder / "text.txt")),
        "logits are not finite",
    )


def test_a_file_instead_of_a_folder(torchmlx, tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert_one_line(generate(torchmlx, tmp_path / "m.gguf"), "torchmlx convert FILE.gguf OUT")


def test_no_such_folder(torchmlx, tmp_path):
    assert_one_line(generate(torchmlx, tmp_path / "absent"), "absent")


def test_prompt_longer_than_the_positions(torchmlx, folder):
    outcome = generate(torchmlx, folder, "--raw", prompt="x" * 65)
    assert_one_line(outcome, "65 tokens, but the model has 64 positions")
    assert generate(torchmlx, folder, "--raw", prompt="x" * 64).code == 0


def test_absent_device(torchmlx, folder):
    assert_one_line(generate(torchmlx, folder, "--device", "mps"), "--device")
