"""Sampling against transformers' own logits processors and its generate()."""

import mlx.core as mx
import numpy as np
import pytest

import torchmlx as tm
from tests import tiny
from torchmlx.errors import InputError
from torchmlx.models import load, stream_generate
from torchmlx.models.sampling import NO_TOKEN, Sampler, Sampling, checked, filtered, penalise

CPU = tm.device("cpu")


def logits(rows: int = 3, vocab: int = 50, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (rows, vocab)).astype(np.float32)


FILTERS = [
    {"temperature": 0.7},
    {"temperature": 1.5, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.0, "top_p": 1e-4},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.0, "top_k": 1000},
]


def processors(options: dict):
    """transformers' processors in the order its generate() applies them."""
    t = pytest.importorskip("transformers", reason="transformers is the oracle")
    made = [t.TemperatureLogitsWarper(options["temperature"])]
    if options.get("top_k"):
        made.append(t.TopKLogitsWarper(options["top_k"]))
    if options.get("top_p", 1.0) < 1:
        made.append(t.TopPLogitsWarper(options["top_p"]))
    if options.get("min_p"):
        made.append(t.MinPLogitsWarper(options["min_p"]))
    return t.LogitsProcessorList(made)


@pytest.mark.parametrize("options", FILTERS, ids=str)
def test_filters(options):
    torch = pytest.importorskip("torch", reason="torch is the oracle")
    scores = logits()
    expected = processors(options)(None, torch.tensor(scores)).numpy()
    found = filtered(tm.tensor(scores), Sampling(**options)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_repetition_penalty():
    scores = np.array([[2.0, -2.0, 1.0, -1.0]], np.float32)
    seen = tm.tensor([[1.0, 1.0, 0.0, 0.0]])
    assert penalise(tm.tensor(scores), seen, 2.0).tolist() == [[1.0, -4.0, 1.0, -1.0]]


def test_penalty_counts_prompt_and_own_tokens():
    sampler = Sampler(Sampling(repetition_penalty=10.0), None, CPU)
    sampler.observe(tm.tensor([[3]]), 5)
    scores = tm.tensor([[1.0, 2.0, 3.0, 4.0, 0.5]])
    # 4 becomes 0.4, then each chosen token falls behind the next.
    assert [sampler(scores).item() for _ in range(4)] == [2, 1, 0, 4]


def test_greedy_takes_the_first_of_equals():
    sampler = Sampler(Sampling(), None, CPU)
    assert sampler(tm.tensor([[1.0, 5.0, 5.0], [7.0, 2.0, 7.0]])).tolist() == [[1], [0]]


def test_draws_follow_the_probabilities():
    sampler = Sampler(Sampling(temperature=1.0), 0, CPU)
    p = np.array([0.5, 0.3, 0.15, 0.05])
    draws = sampler(tm.tensor(np.log(np.tile(p, (20000, 1))).astype(np.float32))).numpy()
    share = np.bincount(draws.ravel(), minlength=4) / 20000
    np.testing.assert_allclose(share, p, atol=0.012)  # 3.4 standard deviations of a half


BAD = [
    {"temperature": -0.1},
    {"temperature": float("nan")},
    {"temperature": float("inf")},
    {"top_k": -1},
    {"temperature": 10**400},
    {"top_p": -0.1},
    {"top_p": 1.5},
    {"min_p": -0.1},
    {"min_p": float("nan")},
    {"repetition_penalty": 0.0},
    {"repetition_penalty": 1e-7},
    {"repetition_penalty": 10**400},
    {"presence_penalty": float("nan")},
    {"frequency_penalty": 10**400},
    {"logit_bias": {3: float("inf")}},
]


GREEDY = [{"temperature": 1e-6}, {"temperature": 5e-324}, {"temperature": 1.0, "top_p": 0}]


@pytest.mark.parametrize("options", GREEDY, ids=str)
def test_the_coldest_and_the_smallest_mass_are_greedy(options):
    """As vLLM for the temperature, and as transformers for top_p."""
    rules = Sampling(**options, top_k=50)
    scores = tm.tensor(logits(rows=40) * 1e30 if "top_p" not in options else logits(rows=40))
    assert rules.greedy
    assert Sampler(rules, 3, CPU)(scores).tolist() == scores.argmax(-1, keepdim=True).tolist()
    if options.get("top_p") == 0:
        t = pytest.importorskip("transformers", reason="transformers is the oracle")
        torch = pytest.importorskip("torch", reason="torch is the oracle")
        left = t.TopPLogitsWarper(0.0)(None, torch.tensor(logits(rows=40))).isfinite()
        assert left.nonzero()[:, 1].tolist() == scores.argmax(-1).tolist()


INF = float("inf")
NOT_NUMBERS = [[1.0, float("nan"), 3.0], [INF, 1.0, 2.0], [-INF] * 3, [float("nan")] * 3]
RULES = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.5, "top_k": 2, "top_p": 0.9, "min_p": 0.1},
    {"repetition_penalty": 1.3, "presence_penalty": 1.0},
    {"logit_bias": {1: 5.0}},
]


@pytest.mark.parametrize("options", RULES, ids=str)
def test_logits_that_are_no_numbers_give_no_token(options):
    """Each such row by itself, and at the next token again; -inf here and there is a number."""
    sampler = Sampler(Sampling(**options), 0, CPU)
    rows = tm.tensor([*NOT_NUMBERS, [-INF, 1.0, -INF]])
    sampler.observe(tm.tensor([[2]] * 5), 3)
    for _ in range(2):
        found = sampler(rows).flatten().tolist()
        assert found[:4] == [NO_TOKEN] * 4 and found[4] == 1
    with pytest.raises(InputError, match="logits are not finite numbers"):
        checked(found[0])
    assert checked(found[4]) == 1


@pytest.mark.parametrize("options", [*FILTERS, *RULES], ids=str)
def test_nothing_waits_for_the_device(options):
    """Else the graph of the next token is not built while this one is computed; in a compiled
    function waiting is an error."""
    sampler = Sampler(Sampling(**options), 0, CPU)
    sampler.observe(tm.tensor([[2], [2], [2]]), 50)
    sample = mx.compile(lambda scores: sampler(tm.from_mx(scores)).mx)
    assert sample(mx.array(logits())).shape == (3, 1)


def test_draws_are_torchs(monkeypatch):
    """The race without multinomial's checks draws what multinomial draws."""
    torch = pytest.importorskip("torch", reason="torch is the oracle")
    sampler = Sampler(Sampling(temperature=1.0), 11, CPU)
    monkeypatch.setattr(tm.Tensor, "__bool__", None)  # nothing waits for the device
    found = [sampler(tm.tensor(logits(seed=i))) for i in range(20)]
    monkeypatch.undo()
    torch.manual_seed(11)
    for i, token in enumerate(found):
        expected = torch.multinomial(torch.tensor(logits(seed=i)).softmax(-1), 1)
        assert token.tolist() == expected.tolist()


@pytest.mark.parametrize("options", BAD, ids=str)
def test_bad_options(options):
    with pytest.raises(InputError, match=next(iter(options))):
        Sampling(**options)


OPTIONS = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.2}


def test_same_seed_same_tokens_as_transformers(tmp_path):
    """The whole loop: with a seed, generate() in transformers and here draw the same tokens."""
    torch = pytest.importorskip("torch", reason="torch is the oracle")
    transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
    folder = tiny.write(tmp_path / "tiny", {"eos_token_id": 300, "vocab_size": 320})
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = [72, 73, 74, 10, 11]
    torch.manual_seed(5)
    expected = theirs.generate(
        torch.tensor([prompt]), do_sample=True, max_new_tokens=24, pad_token_id=0, **OPTIONS
    )[0, len(prompt) :].tolist()
    model, tokenizer = load(str(folder))
    responses = list(stream_generate(model, tokenizer, prompt, max_tokens=24, seed=5, **OPTIONS))
    assert [r.token for r in responses] == expected
    assert len(set(expected)) > 12


def test_generation_config_decides_what_no_option_does(tmp_path):
    settings = {"do_sample": True, "temperature": 0.5, "top_k": 3, "eos_token_id": [7, 9]}
    model, _ = load(str(tiny.write(tmp_path / "a", generation=settings)))
    assert model.generation_defaults == {"temperature": 0.5, "top_k": 3}
    assert model.eos_token_ids == {257, 7, 9}
    greedy = {"do_sample": False, "temperature": 0.5, "repetition_penalty": 1.1}
    model, _ = load(str(tiny.write(tmp_path / "b", generation=greedy)))
    assert model.generation_defaults == {"repetition_penalty": 1.1}


def test_stops_at_every_end_token(tmp_path):
    """Naming a token of the greedy answer an end token stops there, without its text."""
    folder = tiny.write(tmp_path / "a")
    model, tokenizer = load(str(folder))
    free = list(stream_generate(model, tokenizer, [65, 66], max_tokens=6))
    assert [r.finish_reason for r in free] == [None] * 5 + ["length"]
    end = next(r.token for r in free if r.token not in [f.token for f in free[:2]])
    at = [r.token for r in free].index(end)
    model, tokenizer = load(str(tiny.write(folder, generation={"eos_token_id": end})))
    stopped = list(stream_generate(model, tokenizer, [65, 66], max_tokens=6))
    assert [r.token for r in stopped] == [r.token for r in free[: at + 1]]
    assert stopped[-1].finish_reason == "stop"
    assert "".join(r.text for r in stopped) == tokenizer.decode([r.token for r in free[:at]])


def test_stops_at_the_last_position(tmp_path):
    model, tokenizer = load(str(tiny.write(tmp_path / "tiny")))
    responses = list(stream_generate(model, tokenizer, [65] * 60, max_tokens=100))
    assert len(responses) == 5 and responses[-1].finish_reason == "length"


def test_long_prompts_are_read_in_pieces(tmp_path, monkeypatch):
    """Pieces of 7 give the tokens of one pass."""
    model, tokenizer = load(str(tiny.write(tmp_path / "tiny")))
    whole = [r.token for r in stream_generate(model, tokenizer, range(30), max_tokens=8)]
    monkeypatch.setattr("torchmlx.models.generation.PREFILL_STEP", 7)
    assert [r.token for r in stream_generate(model, tokenizer, range(30), max_tokens=8)] == whole


def test_penalties_of_openai_count_generated_tokens_only():
    """presence once, frequency for each time; the prompt's 4 is not counted."""
    sampler = Sampler(Sampling(presence_penalty=0.5, frequency_penalty=1.0), None, CPU)
    sampler.observe(tm.tensor([[4]]), 5)
    scores = tm.tensor([[0.0, 1.0, 2.0, 3.0, 3.4]])
    # 4: 3.4, 1.9 after one time; 3: 3.0, 1.5; 2: 2.0, 0.5; then 4 again at 1.9, 3 at 1.5.
    assert [sampler(scores).item() for _ in range(5)] == [4, 3, 2, 4, 3]


def test_logit_bias():
    sampler = Sampler(Sampling(logit_bias={1: 5.0, 2: -100.0}), None, CPU)
    assert sampler(tm.tensor([[0.0, 1.0, 7.0, 3.0]])).item() == 1
    with pytest.raises(InputError, match="token 9 is outside the vocabulary of 4"):
        Sampler(Sampling(logit_bias={9: 1.0}), None, CPU)(tm.tensor([[0.0, 1.0, 7.0, 3.0]]))
