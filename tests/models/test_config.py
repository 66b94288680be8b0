"""config.json of any age gives one checked mapping; a wrong field gives one line naming it."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from torchmlx.errors import InputError
from torchmlx.models.config import RopeConfig, fill, normalise, read_config

OLD = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class Args:
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    layer_types: tuple[str, ...] = ()
    hidden_act: str = "silu"


def folder(path: Path, config: object, generation: object = None) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def changed(**fields) -> dict:
    return {key: value for key, value in (OLD | fields).items() if value is not ...}


def test_old_and_new_names_give_the_same(tmp_path):
    new = changed(torch_dtype=..., rope_theta=..., rope_scaling=..., dtype="bfloat16")
    new["rope_parameters"] = OLD["rope_scaling"] | {"rope_theta": 500000.0}
    new |= {"num_key_value_heads": 4, "head_dim": 32}
    old, new = (read_config(folder(tmp_path, config)) for config in (OLD, new))
    assert old.fill(Args) == new.fill(Args)
    assert old.values["dtype"] == new.values["dtype"] == "bfloat16"
    rope = old.values["rope"]
    assert (rope.rope_type, rope.theta, rope.factor) == ("llama3", 500000.0, 8.0)
    assert rope.original_max_position_embeddings == 1024


def test_absent_fields_are_derived(tmp_path):
    args = read_config(folder(tmp_path, OLD)).fill(Args)
    assert (args.num_key_value_heads, args.head_dim) == (4, 32)
    assert args.tie_word_embeddings is False and args.sliding_window is None


def test_given_fields_win(tmp_path):
    config = changed(num_key_value_heads=2, head_dim=64, tie_word_embeddings=True, hidden_act="x")
    args = read_config(folder(tmp_path, config)).fill(Args)
    assert (args.num_key_value_heads, args.head_dim) == (2, 64)
    assert args.tie_word_embeddings is True and args.hidden_act == "x"


def test_text_config_is_lifted(tmp_path):
    text = changed(model_type="qwen3_5_moe_text", eos_token_id=None, layer_types=["a", "b"])
    outer = {"model_type": "qwen3_5_moe", "text_config": text, "eos_token_id": 7}
    config = read_config(folder(tmp_path, outer))
    assert config.model_type == "qwen3_5_moe"
    assert config.values["model_type"] == "qwen3_5_moe"
    assert config.fill(Args).layer_types == ("a", "b")
    assert config.eos_token_ids == (7,)


def test_experts_under_either_name():
    assert normalise({"num_local_experts": 4}, Path("c"))["num_experts"] == 4
    assert normalise({"num_experts": 4}, Path("c"))["num_local_experts"] == 4


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, None, (2,)),
        (None, 3, (3,)),
        ([5, 4], [4, 9], (5, 4, 9)),
        (2, [3, 2], (2, 3)),
        (None, None, ()),
        (0, None, (0,)),
    ],
)
def test_eos_is_the_union_in_order(tmp_path, config, generation, expected):
    path = folder(tmp_path, changed(eos_token_id=config), {"eos_token_id": generation})
    assert read_config(path).eos_token_ids == expected


def test_generation_config(tmp_path):
    fields = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "other": {}}
    generation = read_config(folder(tmp_path, OLD, fields)).generation
    assert (generation.do_sample, generation.temperature) == (True, 0.6)
    assert (generation.top_k, generation.top_p, generation.min_p) == (20, 0.95, None)


WRONG = [
    (changed(hidden_size="128"), "'hidden_size' must be an integer"),
    (changed(hidden_size=True), "'hidden_size' must be an integer"),
    (changed(hidden_size=0), "'hidden_size' must be an integer from 1"),
    (changed(hidden_size=-128), "'hidden_size' must be an integer from 1"),
    (changed(hidden_size=2**40), "'hidden_size' must be an integer from 1"),
    (changed(hidden_size=...), "'hidden_size' is missing"),
    (changed(hidden_size=None), "'hidden_size' is missing"),
    (changed(hidden_size=130), "hidden_size 130 is not a multiple"),
    (changed(num_hidden_layers=10**9), "'num_hidden_layers' must be an integer from 1 to 4096"),
    (changed(num_hidden_layers=1.5), "'num_hidden_layers' must be an integer"),
    (changed(num_key_value_heads=3), "not a multiple of num_key_value_heads 3"),
    (changed(num_attention_heads=[]), "'num_attention_heads' must be an integer"),
    (changed(rms_norm_eps="1e-6"), "'rms_norm_eps' must be a finite number"),
    (changed(rms_norm_eps=math.inf), "'rms_norm_eps' must be a finite number"),
    (changed(rms_norm_eps=math.nan), "'rms_norm_eps' must be a finite number"),
    (changed(tie_word_embeddings="yes"), "'tie_word_embeddings' must be true or false"),
    (changed(layer_types="full"), "'layer_types' must be a list"),
    (changed(layer_types=[1]), "'layer_types' must be a string"),
    (changed(hidden_act=1), "'hidden_act' must be a string"),
    (changed(eos_token_id="2"), "'eos_token_id' must be a token id"),
    (changed(eos_token_id=[2, -1]), "'eos_token_id' must be a token id"),
    (changed(torch_dtype=16), "'dtype' must be a string"),
    (changed(model_type=...), "'model_type' is missing"),
    (changed(model_type=5), "'model_type' must be a string"),
    (changed(text_config=[]), "'text_config' must be an object"),
    (changed(rope_theta="big"), "'theta' must be a finite number"),
    (changed(rope_theta=0), "rope_theta must be greater than 1"),
    (changed(rope_scaling="linear"), "'rope_scaling' must be an object"),
    (changed(rope_scaling={"type": "longrope"}), "unsupported rope type 'longrope'; supported"),
    (changed(rope_scaling={"type": ["x"]}), "unsupported rope type"),
    (changed(rope_scaling={"type": "linear"}), "rope type linear needs the field 'factor'"),
    (changed(rope_scaling={"type": "linear", "factor": 0}), "factors must be positive"),
    (changed(rope_scaling={"type": "llama3", "factor": 8}), "needs the field 'low_freq_factor'"),
    (changed(partial_rotary_factor=1e-320), "too few dimensions turn"),
    (changed(partial_rotary_factor=0.01), "too few dimensions turn"),
    (changed(head_dim=1, partial_rotary_factor=1), "too few dimensions turn"),
    (changed(head_dim=2, rope_scaling={"type": "dynamic", "factor": 2}), "too few dimensions"),
    (changed(rope_parameters={"other_attention": {"rope_theta": 1e4}}), "'other_attention'"),
    ([], "not a JSON object"),
]


@pytest.mark.parametrize(("config", "message"), WRONG)
def test_wrong_fields(tmp_path, config, message):
    with pytest.raises(InputError, match=message) as caught:
        read_config(folder(tmp_path, config)).fill(Args)
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1), ("temperature", "hot"), ("top_p", 1.5), ("top_k", -1), ("min_p", None)],
)
def test_wrong_generation_fields(tmp_path, field, value):
    path = folder(tmp_path, OLD, {field: value})
    if value is None:
        assert read_config(path).generation.min_p is None
        return
    with pytest.raises(InputError, match=f"generation_config.json: field '{field}'"):
        read_config(path)


@pytest.mark.parametrize("text", ["", "{", "\ud800", '{"a":' * 100_000, "[" * 100_000])
def test_files_that_are_not_json(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError, match="config.json"):
        read_config(tmp_path)


def test_missing_folder_and_file(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        read_config(tmp_path / "absent")
    with pytest.raises(InputError, match="not a Hugging Face model folder"):
        read_config(tmp_path)


def test_fill_lets_none_stand_only_where_allowed(tmp_path):
    @dataclass
    class Window:
        sliding_window: int | None

    assert fill(Window, {"sliding_window": None}, Path("c")).sliding_window is None
    with pytest.raises(InputError, match="'sliding_window' is missing"):
        fill(Window, {}, Path("c"))


ROPES = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": OLD["rope_scaling"],
    "yarn": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    "yarn mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 512,
        "mscale": 1.0,
        "mscale_all_dim": 0.8,
        "beta_fast": 16,
        "truncate": False,
    },
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
}


@pytest.mark.parametrize("name", ROPES)
def test_frequencies_are_transformers(name):
    pytest.importorskip("torch")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    scaling = ROPES[name]
    raw = changed(rope_scaling=scaling or None)
    theirs = LlamaRotaryEmbedding(LlamaConfig(**json.loads(json.dumps(raw))))
    rope = normalise(raw, Path("c"))["rope"]
    frequencies, factor = rope.inverse_frequencies(32)
    np.testing.assert_allclose(frequencies, theirs.inv_freq.numpy(), rtol=3e-7)
    assert factor == pytest.approx(theirs.attention_scaling, rel=1e-12)


def test_dynamic_frequencies_stretch_past_the_trained_length():
    pytest.importorskip("torch")
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    raw = changed(rope_scaling=ROPES["dynamic"])
    theirs = LlamaRotaryEmbedding(LlamaConfig(**json.loads(json.dumps(raw))))
    theirs(torch.zeros(1), torch.arange(5000)[None])
    frequencies, _ = normalise(raw, Path("c"))["rope"].inverse_frequencies(32, length=5000)
    np.testing.assert_allclose(frequencies, theirs.inv_freq.numpy(), rtol=1e-6)
