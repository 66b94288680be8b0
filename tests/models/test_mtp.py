"""The checkpoint's own head for multi-token prediction: its numbers, and the tokens it leads to."""

import logging

import mlx.core as mx
import numpy as np
import pytest

import torchmlx as tm
from tests.models.oracle import IDS, assert_close, randomise
from torchmlx.errors import InputError
from torchmlx.models.config import read_config
from torchmlx.models.generation import stream_generate
from torchmlx.models.loading import load_model
from torchmlx.models.mtp import HeadDraft
from torchmlx.models.quantize import to_blocks
from torchmlx.serialization.safetensors import SafetensorsFile, save

torch = pytest.importorskip("torch", reason="torch is the oracle")
transformers = pytest.importorskip("transformers", reason="transformers is the oracle")

COMMON = dict(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=24,
    layer_types=["linear_attention", "full_attention"],
    max_position_embeddings=512,
    eos_token_id=None,
)
MOE = dict(
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=48,
)
# transformers' names of the head's parts, and the checkpoints'.
NAMES = {
    "layers.0.mtp_block.": "mtp.layers.0.",
    "layers.0.eh_proj.": "mtp.fc.",
    "layers.0.enorm.": "mtp.pre_fc_norm_embedding.",
    "layers.0.hnorm.": "mtp.pre_fc_norm_hidden.",
    "layers.0.post_norm.": "mtp.norm.",
}


def head_tensors(head, per_expert: bool) -> dict:
    """The head's own tensors in the releases' names, experts stacked or one by one."""
    found = {}
    for name, tensor in head.state_dict().items():
        for theirs, ours in NAMES.items():
            if name.startswith(theirs):
                found[ours + name.removeprefix(theirs)] = tensor.clone()
    if per_expert:
        path = "mtp.layers.0.mlp.experts."
        both, down = found.pop(f"{path}gate_up_proj"), found.pop(f"{path}down_proj")
        for e in range(len(down)):
            gate, up = both[e].chunk(2)
            for kind, weight in (("gate", gate), ("up", up), ("down", down[e])):
                found[f"{path}{e}.{kind}_proj.weight"] = weight.clone()
    return found


def write(folder, kind: str, fields: dict, per_expert: bool = False, prefix: str = ""):
    """A random checkpoint with its head, as transformers has both: (model, head)."""
    from safetensors.torch import load_file, save_file
    from transformers.modeling_layers import MtpModel

    config = transformers.AutoConfig.for_model(kind, **COMMON, **fields)
    config.num_mtp_layers, config.mtp_layer_types = 1, ["full_attention"]
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    randomise(model.float().eval(), 0.1)
    head = MtpModel(model, 1)
    head.config._attn_implementation = "eager"
    randomise(head.float().eval(), 0.1)
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    more = {prefix + name: tensor for name, tensor in head_tensors(head, per_expert).items()}
    save_file({**load_file(path), **more}, path)
    return model, head


def guesses(model, head, ids: np.ndarray) -> np.ndarray:
    """transformers' logits of the head, for the tokens after ids[1:]."""
    from transformers.cache_utils import MtpCache

    ids = torch.tensor(ids)
    with torch.no_grad():
        hidden = model(ids, output_hidden_states=True).hidden_states[-1][:, :-1]
        places = torch.arange(1, ids.shape[1])[None]
        cache = MtpCache(config=model.config.get_mtp_config())
        hidden = head.forward_layer(0, hidden, places, cache, input_ids=ids[:, 1:])
        return head._project_to_logits(hidden).numpy()


LAYOUTS = {
    "dense": ("qwen3_5_text", dict(tie_word_embeddings=True), {}),
    "experts-stacked": ("qwen3_5_moe_text", MOE, {}),
    "experts-one-by-one": ("qwen3_5_moe_text", MOE, dict(per_expert=True, prefix="model.")),
}


@pytest.fixture(scope="module", params=LAYOUTS)
def pair(request, tmp_path_factory):
    """(transformers' model and head, ours) of one checkpoint, in float32."""
    kind, fields, options = LAYOUTS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    theirs = write(folder, kind, fields, **options)
    return theirs, load_model(folder, read_config(folder), mtp=True)


def test_logits(pair):
    """In one pass, and in pieces through the cache."""
    (model, head), ours = pair
    expected = guesses(model, head, IDS)
    hidden = ours.model(tm.tensor(IDS), None, None)[:, :-1]
    for pieces in ([(0, 69)], [(0, 30), (30, 31), (31, 69)]):
        cache = ours.mtp.make_cache(ours)
        found = [
            ours.logits(ours.mtp(ours, tm.tensor(IDS[:, a + 1 : b + 1]), hidden[:, a:b], cache))
            for a, b in pieces
        ]
        assert_close(np.concatenate([x.numpy() for x in found], axis=1), expected)


class Tokenizer:
    """Enough of one to generate from token ids."""

    vocab_size = COMMON["vocab_size"]

    def stream(self):
        return self

    def push(self, token: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


def run(model, length: int = 20, **options):
    ids = IDS[0, :length].tolist()
    return list(stream_generate(model, Tokenizer(), ids, max_tokens=24, **options))


def tokens(responses) -> list[int]:
    return [response.token for response in responses]


@pytest.mark.parametrize("count", [1, 4])
def test_tokens_are_those_without_the_head(pair, count):
    _, ours = pair
    plain = tokens(run(ours))
    assert tokens(run(ours, mtp=True, num_draft_tokens=count)) == plain
    assert tokens(run(ours, mtp=True, num_draft_tokens=count, prefill_step_size=7)) == plain


def test_a_prompt_of_one_token(pair):
    assert tokens(run(pair[1], 1, mtp=True)) == tokens(run(pair[1], 1))


def test_sampled_tokens_are_those_without_the_head(pair):
    options = dict(temperature=1.0, seed=5, repetition_penalty=1.1)
    assert tokens(run(pair[1], mtp=True, **options)) == tokens(run(pair[1], **options))


@pytest.mark.parametrize("rights", [(3, 3, 3), (0, 2, 1, 3)])
def test_proposals_that_hold(pair, monkeypatch, rights):
    """So many of three proposals are made right, round by round: the same tokens, marked as
    proposed; and what the head itself proposes is what transformers' head does after them."""
    (model, head), ours = pair
    plain, first, at, turn = tokens(run(ours)), [], 1, iter(rights * 9)
    propose = HeadDraft.propose

    def guided(self, token, count):
        nonlocal at
        found = propose(self, token, count)
        first.append((at, int(found[0].item())))
        right = next(turn)
        wrong = [(t + 1 + (i < right) * 319) % 320 for i, t in enumerate(plain[at : at + count])]
        at += right + 1
        return [tm.tensor([[t]]) for t in wrong] + found[len(wrong) :]

    monkeypatch.setattr(HeadDraft, "propose", guided)
    found = run(ours, mtp=True, num_draft_tokens=3)
    assert tokens(found) == plain
    marks = [False]
    for right in rights * 9:
        marks += [True] * right + [False]
    assert [r.from_draft for r in found] == marks[:24]
    whole = np.array([[*IDS[0, :20].tolist(), *plain]])
    expected = guesses(model, head, whole).argmax(-1)[0]
    for at, guess in first:
        if at < 24:
            assert guess == expected[20 + at - 2], at


def test_a_checkpoint_without_one(tmp_path, caplog):
    config = transformers.AutoConfig.for_model("qwen3_5_text", **COMMON)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        ours = load_model(tmp_path, read_config(tmp_path), mtp=True)
    (record,) = caplog.records
    assert record.getMessage().endswith(
        "no head for multi-token prediction here: tokens come one by one"
    )
    assert ours.mtp is None
    assert tokens(run(ours, mtp=True)) == tokens(run(ours))


def test_fp8(tmp_path):
    """As the FP8 releases have it: codes and scales in the head, too."""
    write(tmp_path, "qwen3_5_moe_text", MOE, per_expert=True)
    path = tmp_path / "model.safetensors"
    with SafetensorsFile(path) as file:
        tensors = {name: file.read(name) for name in file.tensors}
    for name in [n for n in tensors if n.startswith("mtp.layers.0.") and "proj" in n]:
        tensors[name], tensors[f"{name}_scale_inv"] = to_blocks(tensors[name])
    codes = {name: "F8_E4M3" for name, array in tensors.items() if array.dtype == mx.uint8}
    assert len(codes) == 4 + 3 + 3 * 8
    save(path, tensors, codes)
    found = []
    for dequantize in (False, True):
        config = read_config(tmp_path)
        ours = load_model(tmp_path, config, "float32", dequantize=dequantize, mtp=True)
        hidden = ours.model(tm.tensor(IDS), None, None)[:, :-1]
        head, cache = ours.mtp, ours.mtp.make_cache(ours)
        found.append(ours.logits(head(ours, tm.tensor(IDS[:, 1:]), hidden, cache)).numpy())
    assert type(ours.mtp.layers[0].mlp.experts.gate_up_proj) is tm.nn.Parameter
    assert_close(*found)


def test_a_head_is_left_out_unless_asked_for(tmp_path, caplog):
    write(tmp_path, "qwen3_5_text", {})
    with caplog.at_level(logging.WARNING):
        ours = load_model(tmp_path, read_config(tmp_path))
    assert ours.mtp is None and "left out 15 multi-token prediction" in caplog.text


def test_a_draft_and_a_head(pair):
    with pytest.raises(InputError, match="leave out one"):
        run(pair[1], mtp=True, draft_model=pair[1])
