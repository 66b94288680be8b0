"""What `convert --quantize` writes, read by those it is written for: transformers and mlx-lm."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import torchmlx as tm
from tests.models.oracle import IDS, assert_close, randomise, reference
from torchmlx.models.config import read_config
from torchmlx.models.convert import convert
from torchmlx.models.loading import load_model

torch = pytest.importorskip("torch", reason="torch is the oracle")
transformers = pytest.importorskip("transformers", reason="transformers is the oracle")

COMMON = dict(
    vocab_size=320,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,  # mlx-lm's qwen2 and mixtral know no other than hidden_size / heads
    max_position_embeddings=512,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=128)
SHARED = MOE | dict(shared_expert_intermediate_size=128)
DELTA = dict(
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=64,
    linear_value_head_dim=64,
)
LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
GEMMA = dict(num_hidden_layers=7, sliding_window=11, query_pre_attn_scalar=32)
OSS = dict(intermediate_size=128, num_local_experts=4, num_experts_per_tok=2, sliding_window=11)
OSS["rope_parameters"] = dict(rope_type="default", rope_theta=1.5e5)  # mlx-lm's yarn differs
CASES = {
    "llama": dict(rope_theta=5e5, rope_scaling=LLAMA3),
    "mistral": {},
    "qwen2": dict(tie_word_embeddings=True),
    "qwen3": {},
    "smollm3": {},
    "gemma3_text": GEMMA,
    "qwen2_moe": SHARED,
    "qwen3_moe": MOE | dict(norm_topk_prob=True, rope_theta=1e6),
    "mixtral": dict(num_local_experts=4),
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": DELTA | SHARED,
    "qwen3_next": DELTA | SHARED,
    "gpt_oss": OSS,
}
# gpt_oss has no FP8 layout; transformers rounds gemma's embedding scale to the file's bfloat16.
FP8 = [kind for kind in CASES if kind not in ("gpt_oss", "gemma3_text")]
DAILY = ("qwen3_5_moe_text",)


def write(kind: str, folder: Path) -> Path:
    """A tiny model in bfloat16, as transformers saves it."""
    config = transformers.AutoConfig.for_model(kind, **{**COMMON, **CASES[kind]})
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    randomise(model, 0.05)
    model.bfloat16().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "kind", [k if k in DAILY else pytest.param(k, marks=pytest.mark.slow) for k in FP8]
)
def test_transformers_reads_fp8(kind, tmp_path, monkeypatch):
    """Every tensor finds its place, and the weights that it dequantises are ours."""
    from transformers.quantizers import quantizer_finegrained_fp8 as quantizer

    out = convert(write(kind, tmp_path / "in"), tmp_path / "fp8", quantize="fp8")
    # It insists on accelerate, of which it uses nothing on the CPU.
    monkeypatch.setattr(quantizer, "is_accelerate_available", lambda: True)
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        out, dtype=torch.bfloat16, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values())
    plain = load_model(out, read_config(out), "bfloat16", dequantize=True).float()
    assert_close(plain(tm.tensor(IDS)).numpy(), reference(theirs.float(), IDS))


@pytest.mark.slow
@pytest.mark.parametrize("form", ("int4", "int8", "mxfp4", "mxfp8"))
@pytest.mark.parametrize("kind", CASES)
def test_mlx_lm_reads_the_others(kind, form, tmp_path):
    """mlx-lm loads it, strictly, and gives our logits."""
    utils = pytest.importorskip("mlx_lm.utils", reason="mlx-lm is not installed: extra bench")
    out = convert(write(kind, tmp_path / "in"), tmp_path / form, quantize=form)
    ours = load_model(out, read_config(out), "float32")(tm.tensor(IDS)).numpy()
    with mx.stream(mx.cpu):
        theirs, _ = utils.load_model(out)
        theirs.set_dtype(mx.float32)
        logits = np.array(theirs(mx.array(IDS)).astype(mx.float32))
    if kind == "gemma3_text":  # mlx-lm scales embeddings in bfloat16
        assert np.square(logits - ours).mean() < 1e-4 * np.square(ours).mean()
    else:
        assert_close(ours, logits)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("llama", {"rope_theta": 5e5, "rope_scaling": {**LLAMA3, "type": "llama3"}}),
        ("qwen3_moe", {"rope_theta": 1e6, "num_experts": 4, "tie_word_embeddings": False}),
        ("gemma3_text", {"rope_local_base_freq": 1e4, "sliding_window_pattern": 6}),
        ("qwen3_next", {"partial_rotary_factor": 0.25, "full_attention_interval": 4}),
    ],
)
def test_old_names_are_written_for_mlx_lm(kind, names, tmp_path):
    """transformers 5 leaves them out; mlx-lm would take its own defaults without a word."""
    source = write(kind, tmp_path / "in")
    before = json.loads((source / "config.json").read_text())
    out = convert(source, tmp_path / "out", quantize="int8")
    after = json.loads((out / "config.json").read_text())
    scaling = names.get("rope_scaling", {})
    assert scaling.items() <= after.get("rope_scaling", {}).items()
    assert all(after[name] == value for name, value in names.items() if value is not scaling)
    for name, value in before.items():
        if value is not None:
            assert after[name] == value
    assert read_config(out).values["rope"] == read_config(source).values["rope"]
