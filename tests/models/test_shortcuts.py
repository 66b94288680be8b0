"""Batches, drafts and prompt caches give the tokens of plain generation, hybrids included."""

import numpy as np
import pytest

import torchmlx as torch
from tests import tiny
from tests.conftest import ROOT
from torchmlx.errors import InputError
from torchmlx.models import batch_generate, generate, load, stream_generate
from torchmlx.models.prompt_cache import (
    TAIL,
    PromptCache,
    load_prompt_cache,
    save_prompt_cache,
)

AUSTEN = ROOT / "torchmlx" / "assets" / "tiny-austen-moe"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    config = {"max_position_embeddings": 400, "eos_token_id": None}
    return load(str(tiny.write(tmp_path_factory.mktemp("llama"), config)))


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    """Another model with the same tokens: often wrong."""
    config = {"max_position_embeddings": 400, "eos_token_id": None, "num_hidden_layers": 1}
    return load(str(tiny.write(tmp_path_factory.mktemp("draft"), config)))[0]


@pytest.fixture(scope="module")
def hybrid():
    """The shipped model: recurrent layers, attention and experts."""
    model, tokenizer = load(str(AUSTEN), dtype="float32")
    model.generation_defaults = {}  # greedy
    return model, tokenizer


def ids_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


def tokens(pair, ids, **options) -> list[int]:
    return [r.token for r in stream_generate(*pair, ids, **options)]


def text_ids(pair, text: str) -> list[int]:
    return pair[1].encode(text)


def test_batch_equals_single_runs(llama):
    prompts = [ids_of(n, n) for n in (1, 40, 7, 25)]
    found = batch_generate(*llama, prompts, max_tokens=12, prefill_step_size=16)
    assert found == [generate(*llama, ids, max_tokens=12) for ids in prompts]


def test_batch_of_a_hybrid_equals_single_runs(hybrid):
    prompts = ["It is a truth", "She was then", "Mr. Darcy"]
    found = batch_generate(*hybrid, prompts, max_tokens=10)
    assert found == [generate(*hybrid, text, max_tokens=10) for text in prompts]


def test_batch_with_stop_strings_and_penalties(llama):
    prompts = [ids_of(n, n) for n in (3, 11)]
    options = dict(max_tokens=20, repetition_penalty=1.3)
    whole = generate(*llama, prompts[0], **options)
    stop = whole[5:7]
    found = batch_generate(*llama, prompts, stop=[stop], **options)
    assert found == [generate(*llama, ids, stop=[stop], **options) for ids in prompts]
    assert found[0] == whole[: whole.index(stop)]


def test_no_prompts(llama):
    with pytest.raises(InputError, match="no prompts"):
        batch_generate(*llama, [])


@pytest.mark.parametrize("count", [1, 3, 15])
def test_a_draft_changes_no_token(llama, draft, count):
    ids = ids_of(20)
    options = dict(max_tokens=40, draft_model=draft, num_draft_tokens=count)
    assert tokens(llama, ids, **options) == tokens(llama, ids, max_tokens=40)


def test_the_model_as_its_own_draft(llama):
    """Every proposal counts."""
    ids = ids_of(250)
    options = dict(max_tokens=30, draft_model=llama[0])
    assert tokens(llama, ids, **options) == tokens(llama, ids, max_tokens=30)


def test_a_draft_and_a_seed(llama, draft):
    """The sampler draws once a token, so that the numbers are those without a draft."""
    options = dict(max_tokens=30, temperature=1.0, seed=3, repetition_penalty=1.2)
    plain = tokens(llama, ids_of(9), **options)
    assert tokens(llama, ids_of(9), draft_model=draft, **options) == plain


def test_a_hybrid_with_a_hybrid_draft(hybrid):
    ids = text_ids(hybrid, "It is a truth universally")
    plain = tokens(hybrid, ids, max_tokens=24)
    assert tokens(hybrid, ids, max_tokens=24, draft_model=hybrid[0]) == plain


def test_a_hybrid_with_a_bad_draft(hybrid, tmp_path):
    vocab = hybrid[0].args.vocab_size
    bad = load(str(tiny.write(tmp_path, {"vocab_size": vocab, "max_position_embeddings": 400})))[0]
    ids = text_ids(hybrid, "It is a truth universally")
    plain = tokens(hybrid, ids, max_tokens=16)
    assert tokens(hybrid, ids, max_tokens=16, draft_model=bad) == plain


def test_a_draft_of_other_tokens(hybrid, draft):
    if hybrid[1].vocab_size <= draft.args.vocab_size:
        pytest.fail("the draft was meant to know fewer tokens")
    with pytest.raises(InputError, match="same family"):
        stream_generate(*hybrid, "It", draft_model=draft)
    with pytest.raises(InputError, match="from 1 to 15"):
        stream_generate(*hybrid, "It", draft_model=hybrid[0], num_draft_tokens=16)


@pytest.mark.parametrize("pair", ["llama", "hybrid"])
def test_a_conversation_is_not_read_twice(request, pair):
    pair = request.getfixturevalue(pair)
    first = text_ids(pair, "It is a truth universally acknowledged")
    longer = first + text_ids(pair, ", that a single man")
    prompts, told = PromptCache(), []
    tokens(pair, first, max_tokens=5, prompt_cache=prompts)
    found = tokens(
        *(pair, longer),
        max_tokens=8,
        prompt_cache=prompts,
        progress=lambda done, total: told.append(total),
    )
    assert found == tokens(pair, longer, max_tokens=8)
    assert told == [len(longer) - len(first)]


def test_a_common_beginning_is_used_where_layers_can_be_trimmed(llama, hybrid):
    for pair, expected in ((llama, 8), (hybrid, 0)):
        prompts = PromptCache()
        tokens(pair, ids_of(12), max_tokens=2, prompt_cache=prompts)
        other = [*ids_of(8), *ids_of(6, 9)]
        cache, kept = prompts.fetch(other)
        assert kept == expected and (cache is None) == (expected == 0)
        assert tokens(pair, other, max_tokens=6, prompt_cache=prompts) == tokens(
            pair, other, max_tokens=6
        )


def test_a_hybrid_s_next_turn_is_not_read_from_its_start(hybrid):
    """The last tokens of a prompt are otherwise in the next turn's history; recurrent layers
    cannot be trimmed, so there is a snapshot before them."""
    history, opening = ids_of(60), ids_of(9, 7)
    prompts = PromptCache()
    tokens(hybrid, [*history, *opening], max_tokens=2, prompt_cache=prompts)
    turn = [*history, *ids_of(40, 8)]
    assert prompts.fetch(turn)[1] == 69 - TAIL
    found = tokens(hybrid, turn, max_tokens=6, prompt_cache=prompts)
    assert found == tokens(hybrid, turn, max_tokens=6)


def test_a_hybrid_learns_where_prompts_part(hybrid):
    """Behind a beginning that two prompts share is a snapshot for the third."""
    system, prompts = ids_of(30), PromptCache()
    for seed in (1, 2, 3):
        ids = [*system, *ids_of(25, seed)]
        known = prompts.fetch(ids)[1]
        assert known == (30 if seed == 3 else 0)
        found = tokens(hybrid, ids, max_tokens=6, prompt_cache=prompts, prefill_step_size=20)
        assert found == tokens(hybrid, ids, max_tokens=6)


def test_the_oldest_prompts_are_forgotten(llama):
    prompts = PromptCache(entries=2)
    for seed in range(3):
        tokens(llama, ids_of(10, seed), max_tokens=1, prompt_cache=prompts)
    assert len(prompts) == 2
    assert prompts.fetch(ids_of(10, 0))[1] == 0 and prompts.fetch(ids_of(10, 2))[1] == 9
    small = PromptCache(most_bytes=10)
    tokens(llama, ids_of(10), max_tokens=1, prompt_cache=small)
    assert len(small) == 0


@pytest.mark.parametrize("pair", ["llama", "hybrid"])
def test_saved_and_loaded(request, pair, tmp_path):
    pair = request.getfixturevalue(pair)
    ids = text_ids(pair, "It is a truth universally acknowledged")
    prompts = PromptCache()
    tokens(pair, ids, max_tokens=1, prompt_cache=prompts)
    ((_, cache),) = prompts._caches.items()
    save_prompt_cache(tmp_path / "c.safetensors", cache, ids, pair[0])
    again, found = load_prompt_cache(tmp_path / "c.safetensors", pair[0])
    assert found == ids and again.length == len(ids)
    fresh = PromptCache()
    fresh.store(ids, again)
    longer = [*ids, *text_ids(pair, ", that a")]
    plain = tokens(pair, longer, max_tokens=8)
    assert tokens(pair, longer, max_tokens=8, prompt_cache=fresh) == plain


def test_a_cache_of_another_model(llama, hybrid, draft, tmp_path):
    prompts = PromptCache()
    tokens(llama, ids_of(5), max_tokens=1, prompt_cache=prompts)
    ((ids, cache),) = prompts._caches.items()
    path = tmp_path / "c.safetensors"
    save_prompt_cache(path, cache, ids, llama[0])
    same = load(str(tiny.write(tmp_path / "same", {"max_position_embeddings": 400})))[0]
    assert load_prompt_cache(path, same)[1] == list(ids)
    with torch.no_grad():
        same.model.norm.weight[0] += 1  # another checkpoint of the same shapes
    for other in (hybrid[0], draft, same):
        with pytest.raises(InputError, match="another model"):
            load_prompt_cache(path, other)
    tiny.write(tmp_path / "m")
    with pytest.raises(InputError, match="not a prompt cache"):
        load_prompt_cache(tmp_path / "m" / "model.safetensors", llama[0])


TEXTS = [
    "Grüße, 世界! 👍🏽👩‍👩‍👧",
    "e\u0301 a\u0308 \u0915\u094d\u0937",
    " two  spaces\n\n\ttab",
    "“It is…”",
]


@pytest.mark.parametrize("seed", range(4))
def test_streamed_text_is_the_decoded_one(hybrid, seed):
    """The shipped tokenizer, on real text and on random ids: half characters, special tokens."""
    tokenizer = hybrid[1]
    random = np.random.default_rng(seed).integers(0, tokenizer.vocab_size, 300).tolist()
    for ids in (tokenizer.encode(TEXTS[seed]), random):
        stream = tokenizer.stream()
        text = "".join(map(stream.push, ids)) + stream.finish()
        assert text == tokenizer.decode(ids, skip_special_tokens=True)
