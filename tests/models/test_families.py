"""Logits of every architecture against transformers, on tiny random checkpoints it wrote."""

import json
from pathlib import Path

import numpy as np
import pytest

import torchmlx as tm
from tests.models.oracle import IDS, assert_close, randomise, reference
from torchmlx.models.config import read_config
from torchmlx.models.loading import load_model

pytest.importorskip("torch", reason="torch is the oracle")
transformers = pytest.importorskip("transformers", reason="transformers is the oracle")

COMMON = dict(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    bos_token_id=1,
    eos_token_id=2,
)
LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)

# name: (model_type, config fields, options)
CASES = {
    "llama": ("llama", {}, {}),
    "llama-tied": ("llama", dict(tie_word_embeddings=True), {}),
    "llama-multi-head": ("llama", dict(num_key_value_heads=4), {}),
    "llama-biases": ("llama", dict(attention_bias=True, mlp_bias=True), {}),
    "llama-sharded": ("llama", {}, dict(shard="40KB")),
    "llama-llama3-rope": ("llama", dict(rope_scaling=LLAMA3, rope_theta=500000.0), {}),
    "llama-llama3-rope-old": (
        "llama",
        dict(rope_scaling=LLAMA3, rope_theta=500000.0),
        dict(old=True),
    ),
    "llama-linear-rope": ("llama", dict(rope_scaling=dict(rope_type="linear", factor=4.0)), {}),
    "qwen2": ("qwen2", dict(rope_theta=1e6), {}),
    "qwen2-tied-old": ("qwen2", dict(tie_word_embeddings=True, rope_theta=1e6), dict(old=True)),
    "qwen3": ("qwen3", dict(head_dim=32), {}),
    "qwen3-tied-sharded": (
        "qwen3",
        dict(head_dim=32, tie_word_embeddings=True),
        dict(shard="40KB"),
    ),
    "qwen3-old": ("qwen3", dict(head_dim=24, rope_theta=1e6), dict(old=True)),
}
MOE = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
DELTA = dict(
    head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=24,
    num_hidden_layers=4,
)
GEMMA = dict(
    head_dim=24, sliding_window=13, query_pre_attn_scalar=24, num_hidden_layers=7, pad_token_id=0
)
SWAPPED = ["full_attention", "linear_attention"] * 2
SHARED = dict(shared_expert_intermediate_size=48)
CASES |= {
    "qwen3-default-head": ("qwen3", dict(hidden_size=32), {}),
    "qwen3_5": ("qwen3_5_text", DELTA, {}),
    "qwen3_5-tied-interval": (
        "qwen3_5_text",
        DELTA
        | dict(tie_word_embeddings=True, layer_types=["full_attention", "linear_attention"] * 2),
        {},
    ),
    "qwen3_5_moe-per-expert": ("qwen3_5_moe_text", DELTA | MOE | SHARED, {}),
    "qwen3_5_moe-stacked": ("qwen3_5_moe_text", DELTA | MOE | SHARED, dict(stacked=True)),
    "qwen3_next": ("qwen3_next", DELTA | MOE | SHARED, {}),
    "qwen3_moe": ("qwen3_moe", MOE | dict(head_dim=24, mlp_only_layers=[0]), {}),
    "qwen3_moe-sparse-step": (
        "qwen3_moe",
        MOE | dict(norm_topk_prob=True, decoder_sparse_step=2),
        {},
    ),
    "qwen2_moe": ("qwen2_moe", MOE | SHARED, {}),
    "mistral": ("mistral", dict(sliding_window=13), {}),
    "mistral-no-window": ("mistral", dict(sliding_window=None, head_dim=24), {}),
    "mixtral": ("mixtral", dict(num_local_experts=4, sliding_window=30), {}),
    "smollm3": ("smollm3", dict(num_hidden_layers=4, pad_token_id=0), {}),
    "smollm3-old": ("smollm3", dict(no_rope_layers=[0, 1, 1], pad_token_id=0), dict(old=True)),
    "gemma3_text": ("gemma3_text", GEMMA, {}),
    "gemma3_text-old": ("gemma3_text", GEMMA | dict(final_logit_softcapping=2.0), dict(old=True)),
    "gpt_oss": (
        "gpt_oss",
        dict(num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=11),
        {},
    ),
}


def write_old_config(folder: Path, fields: dict) -> None:
    """config.json as transformers 4 wrote it: torch_dtype, rope_theta and rope_scaling on top."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    new = config.pop("rope_parameters")
    config["torch_dtype"] = config.pop("dtype")
    config["rope_theta"] = new.get("full_attention", new)["rope_theta"]
    config["rope_scaling"] = fields.get("rope_scaling")
    if "sliding_attention" in new:
        config["rope_local_base_freq"] = new["sliding_attention"]["rope_theta"]
    for derived in ("layer_types", "head_dim" if "head_dim" not in fields else "use_cache"):
        config.pop(derived, None)
    path.write_text(json.dumps(config))


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    """(transformers model, our model) of the same checkpoint, in float32."""
    kind, fields, options = CASES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    config = transformers.AutoConfig.for_model(kind, **{**COMMON, **fields})
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    theirs = theirs.float().eval()
    randomise(theirs, 0.07 if "linear_num_key_heads" in fields else 0.12)
    theirs.save_pretrained(
        folder,
        max_shard_size=options.get("shard", "1GB"),
        save_original_format=not options.get("stacked"),
    )
    if options.get("shard"):
        assert (folder / "model.safetensors.index.json").exists()
    if options.get("old"):
        write_old_config(folder, fields)
    return theirs, load_model(folder, read_config(folder))


def test_prefill(pair):
    theirs, ours = pair
    assert_close(ours(tm.tensor(IDS)).numpy(), reference(theirs, IDS))


def test_token_by_token(pair):
    """A prompt of 5, two chunks, then one token at a time give the logits of one pass."""
    theirs, ours = pair
    expected = reference(theirs, IDS)
    cache = ours.make_cache()
    pieces = [(0, 5), (5, 40), (40, 62)] + [(i, i + 1) for i in range(62, 70)]
    logits = [ours(tm.tensor(IDS[:, a:b]), cache).numpy() for a, b in pieces]
    assert_close(np.concatenate(logits, axis=1), expected)
    assert cache.length == 70


def test_left_padding(pair):
    """Rows of different length, padded on the left: as the same rows alone, prefill and decode."""
    theirs, ours = pair
    lengths = (23, 70)
    mask = np.array([[0] * (70 - n) + [1] * n for n in lengths])
    ids = np.where(mask, IDS, 0)
    cache = ours.make_cache()
    first = ours(tm.tensor(ids[:, :67]), cache, tm.tensor(mask[:, :67])).numpy()
    rest = [
        ours(tm.tensor(ids[:, i : i + 1]), cache, tm.tensor(mask[:, : i + 1])).numpy()
        for i in range(67, 70)
    ]
    logits = np.concatenate([first, *rest], axis=1)
    for row, n in enumerate(lengths):
        alone = reference(theirs, ids[row : row + 1, 70 - n :])
        assert_close(logits[row : row + 1, 70 - n :], alone)


def test_decoding(pair):
    """A padded batch, then one token at a time in buffers of fixed capacity, and back some tokens.

    `settle` drops the padding: each row then stands where its own tokens end.
    """
    theirs, ours = pair
    mask = np.array([[0] * 31 + [1] * 29, [1] * 60])
    ids = np.where(mask, IDS[:, :60], 0)
    cache = ours.make_cache()
    logits = [ours(tm.tensor(ids), cache, tm.tensor(mask)).numpy()[:, -1:]]
    cache.settle(tm.tensor(mask))
    cache.mark()
    for wrong in (5, 6, 7):
        ours(tm.tensor([[wrong], [wrong]]), cache)
    assert cache.trim(3)
    logits += [ours(tm.tensor(IDS[:, i : i + 1]), cache).numpy() for i in range(60, 66)]
    for row, first in enumerate((31, 0)):
        alone = reference(theirs, IDS[row : row + 1, first:66])[:, -7:]
        assert_close(np.concatenate([x[row : row + 1] for x in logits], axis=1), alone)


def test_last_logits_only(pair):
    _, ours = pair
    whole = ours(tm.tensor(IDS)).numpy()
    np.testing.assert_allclose(
        ours(tm.tensor(IDS), logits_to_keep=1).numpy(), whole[:, -1:], rtol=1e-5, atol=1e-5
    )
