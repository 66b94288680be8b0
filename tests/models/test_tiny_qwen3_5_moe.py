"""The tiny trained qwen3_5_moe against what transformers computed in float32, in three layouts.

The package ships the FP8 one; the others are in shared/.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import torchmlx as torch
from torchmlx.models import load
from torchmlx.models.assets import tiny_model
from torchmlx.models.tokenizer import Tokenizer
from torchmlx.nn import functional as F

DATA = Path(__file__).parents[1] / "data" / "tiny-austen-moe-goldens.json"


def check_goldens(folder: Path, goldens: dict, **options) -> None:
    """Greedy tokens exactly, the best logits of the first step, and a passage's likelihood.

    The smallest gap between two best logits is 0.018, far above float32 rounding. The FP8 goldens
    are of weights rounded to bfloat16, which moves logits by less than their smallest gap too.
    """
    model, tokenizer = load(str(folder), dtype="float32", **options)
    for golden in goldens["prompts"]:
        ids = golden["prompt_ids"]
        assert tokenizer.encode(golden["prompt"]) == ids
        logits = model(torch.tensor([ids]), logits_to_keep=1)[0, -1]
        best = golden["first_step_top5"]
        values, indices = logits.topk(5)
        assert indices.tolist() == best["ids"]
        assert values.tolist() == pytest.approx(best["logits"], abs=0.02)
        assert greedy(model, ids, 32) == golden["greedy_ids"]
    passage = goldens["passage"]
    logits = model(torch.tensor([passage["ids"]]))[0, :-1]
    nll = F.cross_entropy(logits, torch.tensor(passage["ids"][1:])).item()
    assert nll == pytest.approx(passage["mean_nll"], abs=1e-3)


def greedy(model, ids: list[int], count: int) -> list[int]:
    """Tokens one at a time through the cache, past any end of text."""
    cache, found = model.make_cache(), []
    new = ids
    for _ in range(count):
        found.append(model(torch.tensor([new]), cache, logits_to_keep=1)[0, -1].argmax().item())
        new = found[-1:]
    return found


def test_shipped_fp8():
    check_goldens(tiny_model(), json.loads(DATA.read_text()))


def test_shipped_dequantized():
    check_goldens(tiny_model(), json.loads(DATA.read_text()), dequantize=True)


@pytest.mark.shared
@pytest.mark.parametrize("layout", ("A_stacked", "B_fp8", "C_per_expert"))
def test_tokenizers(shared, layout):
    """Ids, text, chats; and what is streamed, of every beginning of the goldens, characters cut in
    the middle among them, and of random ids."""
    folder = shared / "assets" / "tiny-qwen3_5-moe"
    tokenizer = Tokenizer.from_folder(folder / layout)
    goldens = json.loads((folder / "goldens_tokenizer.json").read_text())
    for case in goldens["cases"]:
        assert tokenizer.encode(case["text"]) == case["ids"]
        assert tokenizer.decode(case["ids"]) == case["decoded"]
    chat = goldens["chat"]
    options = {"add_generation_prompt": chat["add_generation_prompt"]}
    assert tokenizer.apply_chat_template(chat["messages"], **options) == chat["rendered"]
    assert tokenizer.encode_chat(chat["messages"], **options) == chat["ids"]
    random = np.random.default_rng(2).integers(0, tokenizer.vocab_size, (50, 40)).tolist()
    wholes = [*(case["ids"] for case in goldens["cases"]), chat["ids"]]
    for ids in (*(whole[:n] for whole in wholes for n in range(len(whole) + 1)), *random):
        for skip in (False, True):
            stream = tokenizer.stream(skip)
            assert "".join(map(stream.push, ids)) + stream.finish() == tokenizer.decode(ids, skip)


@pytest.mark.shared
@pytest.mark.parametrize("layout", ("A_stacked", "B_fp8", "C_per_expert"))
def test_layouts(shared, layout):
    folder = shared / "assets" / "tiny-qwen3_5-moe"
    check_goldens(folder / layout, json.loads((folder / f"goldens_{layout}.json").read_text()))
