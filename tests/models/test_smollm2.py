"""SmolLM2-135M, converted by our command, against tokens and likelihoods that torch computed."""

import json
from pathlib import Path

import pytest

import torchmlx as torch
from torchmlx.models import generate, load, stream_generate
from torchmlx.nn import functional as F

GOLDENS = json.loads((Path(__file__).parents[1] / "data" / "smollm2-135m-goldens.json").read_text())
# Below this gap between the two best logits, float32 rounding may choose the other token.
WIDE = 0.05


@pytest.fixture(scope="module")
def float32(smollm2):
    return load(str(smollm2), dtype="float32")


@pytest.mark.parametrize("golden", GOLDENS["greedy"], ids=lambda g: g["prompt"][:24])
def test_greedy_tokens(float32, golden):
    model, tokenizer = float32
    messages = [{"role": "user", "content": golden["prompt"]}]
    assert tokenizer.apply_chat_template(messages) == golden["text"]
    assert tokenizer.encode_chat(messages) == golden["ids"]
    expected = golden["out"]
    if golden["min_gap"] <= WIDE:
        expected = expected[: golden["min_gap_at"]]
    responses = list(stream_generate(model, tokenizer, golden["ids"], max_tokens=len(expected)))
    assert [r.token for r in responses] == expected
    text = "".join(r.text for r in responses)
    assert text == tokenizer.decode(expected, skip_special_tokens=True)
    ended = expected[-1] in model.eos_token_ids
    assert responses[-1].finish_reason == ("stop" if ended else "length")
    assert responses[-1].prompt_tokens == len(golden["ids"])
    assert responses[-1].generation_tokens == len(expected)


def test_first_logits(float32):
    model, _ = float32
    golden = GOLDENS["greedy"][0]
    logits = model(torch.tensor([golden["ids"]]), logits_to_keep=1)[0, -1]
    top = torch.topk(logits, 5)
    assert top.indices.tolist() == golden["top5_ids"]
    assert top.values.tolist() == pytest.approx(golden["top5_logits"], abs=2e-3)


def mean_nll(model, ids: list[int]) -> float:
    logits = model(torch.tensor([ids]))[0, :-1].float()
    return F.cross_entropy(logits, torch.tensor(ids[1:])).item()


@pytest.mark.parametrize("text", GOLDENS["nll"], ids=lambda t: t["name"])
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-3), ("bfloat16", 2e-2)])
def test_likelihood(smollm2, text, dtype, bound):
    model, tokenizer = load(str(smollm2), dtype=dtype)
    ids = tokenizer.encode(text["text"])
    assert ids == text["ids"]
    assert mean_nll(model, ids) == pytest.approx(text["mean_nll"], abs=bound)


def test_stop_string_and_seed(float32):
    model, tokenizer = float32
    prompt = GOLDENS["greedy"][1]["ids"]
    text = generate(model, tokenizer, prompt, max_tokens=16, stop=["intricate dance"])
    assert text == "The answer to this question lies in the "
    sampled = [
        generate(model, tokenizer, prompt, max_tokens=12, temperature=0.9, top_p=0.95, seed=s)
        for s in (7, 7, 8)
    ]
    assert sampled[0] == sampled[1] != sampled[2]
