"""bfloat16, and sequences longer than every window, chunk and cache step."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import torchmlx as tm
from tests.models.oracle import IDS, assert_close, randomise, reference
from torchmlx.models.config import read_config
from torchmlx.models.loading import load_model
from torchmlx.models.prompt_cache import load_prompt_cache, save_prompt_cache

torch = pytest.importorskip("torch", reason="torch is the oracle")
transformers = pytest.importorskip("transformers", reason="transformers is the oracle")

COMMON = dict(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=1024,
    eos_token_id=2,
    pad_token_id=0,
)
DELTA = dict(
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    layer_types=["linear_attention", "linear_attention", "full_attention"],
)
ROUTED = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
MOE = ROUTED | dict(shared_expert_intermediate_size=32)
GEMMA = dict(sliding_window=40, query_pre_attn_scalar=16, layer_types=["sliding_attention"] * 2)
GEMMA["layer_types"] = [*GEMMA["layer_types"], "full_attention"]

GPT_OSS = dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=20)


def build(kind: str, fields: dict, folder: Path):
    """transformers' model in float32 with weights that bfloat16 can hold, also in `folder`."""
    config = transformers.AutoConfig.for_model(kind, **COMMON, **fields)
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    randomise(theirs.float().eval(), 0.07)
    with torch.no_grad():
        for parameter in theirs.parameters():  # .bfloat16() would round the rotation too
            parameter.copy_(parameter.bfloat16())
    theirs.save_pretrained(folder)
    return theirs


def half_precision(folder: Path) -> np.ndarray:
    """transformers' logits of IDS in bfloat16."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="eager"
    )
    with torch.no_grad():
        return model(torch.tensor(IDS)).logits.float().numpy()


# A prompt, then a token at a time.
PIECES = [(0, 50), *((i, i + 1) for i in range(50, 70))]


def assert_no_further(folder: Path, exact: np.ndarray, rounded: np.ndarray) -> None:
    """Our bfloat16 logits are no further from `exact` than 1.5 times what `rounded` are."""
    ours = load_model(folder, read_config(folder), "bfloat16")
    cache, pieces = ours.make_cache(), []
    for first, last in PIECES:
        pieces.append(ours(tm.tensor(IDS[:, first:last]), cache))
        cache.settle()
    found = np.concatenate([p.float().numpy() for p in pieces], axis=1)
    assert pieces[0].dtype is tm.bfloat16
    allowed = 1.5 * np.square(rounded - exact).mean()
    assert 0 < np.square(found - exact).mean() <= allowed


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("llama", {}),
        ("mistral", dict(sliding_window=20)),
        ("smollm3", dict(no_rope_layers=[0, 1, 1])),
        ("qwen2", {}),
        ("qwen3", {}),
        ("qwen3_5_text", DELTA),
        ("gemma3_text", GEMMA),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bfloat16(kind, fields, tmp_path):
    """No further from the float32 logits than 1.5 times what transformers' bfloat16 is."""
    theirs = build(kind, fields, tmp_path)
    assert_no_further(tmp_path, reference(theirs, IDS), half_precision(tmp_path))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("qwen3_5_moe_text", DELTA | MOE),
        ("qwen3_next", DELTA | MOE),
        ("qwen3_moe", ROUTED | dict(norm_topk_prob=True)),
        ("qwen2_moe", MOE),
        ("mixtral", dict(num_local_experts=4)),
        ("gpt_oss", GPT_OSS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bfloat16_with_experts(kind, fields, tmp_path, monkeypatch):
    """The same with experts, every token sent where float32 sends it.

    Else a router whose choice tips over with the rounding would decide, in either.
    """
    theirs, chosen, topk = build(kind, fields, tmp_path), [], torch.topk

    def record(x, k, **options):
        found = topk(x, k, **options)
        chosen.append(found.indices)
        return found

    monkeypatch.setattr(torch, "topk", record)
    exact = reference(theirs, IDS)
    again = iter(chosen)

    def replay(x, k, **options):
        indices = next(again)
        return x.gather(-1, indices), indices

    monkeypatch.setattr(torch, "topk", replay)
    rounded = half_precision(tmp_path)
    experts = [indices.reshape(*IDS.shape, -1) for indices in chosen]
    places = iter([each[:, a:b].flatten(0, 1) for a, b in PIECES for each in experts])

    def router(logits, k, normalise=True):
        indices = tm.tensor(next(places).numpy())
        weights = logits.float().softmax(-1).gather(-1, indices)
        if normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(logits.dtype), indices.int()

    monkeypatch.setattr(tm.ops, "router", router)
    assert_no_further(tmp_path, exact, rounded)
    assert next(places, None) is None and next(again, None) is None


# Others than these share all of their layers' kinds with one of them.
DAILY = ("llama", "mistral", "gemma3_text", "qwen3_5_moe_text", "gpt_oss")
LONG = {
    "llama": {},
    "mistral": dict(sliding_window=100),
    "mixtral": dict(num_local_experts=4, sliding_window=100),
    "smollm3": dict(no_rope_layers=[0, 1, 1]),
    "gemma3_text": GEMMA,
    "gpt_oss": GPT_OSS,
    "qwen2": {},
    "qwen2_moe": MOE,
    "qwen3": {},
    "qwen3_moe": ROUTED,
    "qwen3_next": DELTA | MOE,
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": DELTA | MOE,
}


@pytest.mark.parametrize(
    "kind", [k if k in DAILY else pytest.param(k, marks=pytest.mark.slow) for k in LONG]
)
def test_longer_than_a_cache_step(kind, tmp_path):
    """600 tokens: chunks of 64 in the delta rule, windows, and buffers grown past 256 and 512.

    Read in pieces up to 500, then decoded, so that buffers grow while decoding too; some tokens
    are taken back on the way, and at 580 the cache is saved and loaded.
    """
    theirs = build(kind, LONG[kind], tmp_path)
    ids = np.random.default_rng(5).integers(3, 320, (1, 600))
    expected = reference(theirs, ids)
    ours = load_model(tmp_path, read_config(tmp_path), "float32")
    cache, logits = ours.make_cache(), []
    for first, last in ((0, 130), (130, 200), (200, 500)):
        logits.append(ours(tm.tensor(ids[:, first:last]), cache).numpy())
    cache.settle()
    for i in range(500, 600):
        if i == 540:
            cache.mark()
            for wrong in (5, 6, 7):
                cache.reserve(cache.length + 1)
                ours(tm.tensor([[wrong]]), cache)
            assert cache.trim(3)
        if i == 580:
            save_prompt_cache(tmp_path / "cache", cache, ids[0, :580].tolist(), ours)
            cache, known = load_prompt_cache(tmp_path / "cache", ours)
            assert known == ids[0, :580].tolist()
            cache.settle()
        cache.reserve(i + 1)
        logits.append(ours(tm.tensor(ids[:, i : i + 1]), cache).numpy())
    assert_close(np.concatenate(logits, axis=1), expected)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("qwen3_5_moe_text", DELTA | MOE),
        # MLX compiles C++ for every fused kernel here: 15 s.
        pytest.param("gemma3_text", GEMMA, marks=pytest.mark.slow),
        pytest.param("gpt_oss", GPT_OSS, marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_decoding_is_traced_once(kind, fields, tmp_path):
    """A decode step is a function of arrays alone: compiled at one position, right at the others.

    So nothing in it looks at values on the host, which tracing refuses.
    """
    theirs = build(kind, fields, tmp_path)
    ours = load_model(tmp_path, read_config(tmp_path), "float32")
    cache, traces = ours.make_cache(), []
    logits = [ours(tm.tensor(IDS[:1, :30]), cache).numpy()]
    cache.settle()

    def step(token, *arrays):
        traces.append(len(arrays))
        cache.replace(arrays)
        return [ours(tm.from_mx(token), cache).mx, *cache.arrays()]

    compiled = mx.compile(step)
    for i in range(30, 50):
        found, *arrays = compiled(mx.array(IDS[:1, i : i + 1]), *cache.arrays())
        cache.replace(arrays)
        logits.append(np.array(found))
    assert len(traces) == 1
    assert_close(np.concatenate(logits, axis=1), reference(theirs, IDS[:1, :50]))
