"""`convert --quantize`: what is written, how far from the original, and that it loads again."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import torchmlx as tm
from tests.models.oracle import IDS, randomise
from torchmlx.errors import InputError
from torchmlx.kernels import e4m3
from torchmlx.models.checkpoint import Checkpoint
from torchmlx.models.config import read_config
from torchmlx.models.convert import convert
from torchmlx.models.loading import load_model
from torchmlx.models.quantize import FORMATS, grouped, to_blocks
from torchmlx.models.weights import FP8Experts, QuantizedEmbedding, QuantizedExperts

torch = pytest.importorskip("torch", reason="torch is the oracle")
transformers = pytest.importorskip("transformers", reason="transformers writes the checkpoints")

COMMON = dict(
    vocab_size=320,
    hidden_size=192,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=512,
    eos_token_id=2,
)
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)
CASES = {
    "qwen3_5_moe_text": MOE
    | dict(
        shared_expert_intermediate_size=128,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        layer_types=["linear_attention", "full_attention"],
    ),
    "mixtral": dict(num_local_experts=4, intermediate_size=64),
    "llama": dict(intermediate_size=320, tie_word_embeddings=True, attention_bias=True),
}
# Mean square error of the weights over their mean square: of normal weights, a little above what
# was seen (fp8 7e-4, int8 3e-5, int4 8e-3, mxfp8 9e-4, mxfp4 2e-2).
NMSE = {"fp8": 1e-3, "int8": 1e-4, "int4": 1.2e-2, "mxfp8": 1.3e-3, "mxfp4": 2.5e-2}


@pytest.fixture(scope="module", params=CASES)
def original(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    config = transformers.AutoConfig.for_model(request.param, **COMMON, **CASES[request.param])
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomise(model.float())
    stacked = request.param.startswith("qwen3_5")
    model.bfloat16().save_pretrained(folder, save_original_format=not stacked)
    return folder


def parameters(folder: Path, **options) -> dict[str, np.ndarray]:
    model = load_model(folder, read_config(folder), "float32", **options)
    return {name: p.numpy() for name, p in model.named_parameters()}


@pytest.mark.parametrize("form", FORMATS)
def test_weights_stay_close(original, form, tmp_path):
    """Everything is there and near the original; what must not be quantised is equal."""
    out = convert(original, tmp_path / "out", quantize=form)
    before, after = parameters(original), parameters(out, dequantize=True)
    assert before.keys() == after.keys()
    changed = set()
    for name, exact in before.items():
        error = np.square(after[name] - exact).mean() / np.square(exact).mean()
        # mlx-lm's norms are stored plus one, which bfloat16 rounds.
        plain = 2.0**-14 if exact.ndim == 1 and form != "fp8" else 0
        if error > plain:
            changed.add(name)
            router = name.endswith(("mlp.gate.weight", "shared_expert_gate.weight"))
            assert error < (NMSE["int8"] if router else NMSE[form])
    kept = ("norm", "conv1d", "A_log", "dt_bias", "bias")
    assert not any(word in name for name in changed for word in kept)
    attention = "model.layers.1.self_attn.q_proj.weight"
    assert {attention} <= changed
    assert ("model.embed_tokens.weight" in changed) == (form != "fp8")


@pytest.mark.parametrize("form", ("fp8", "int4", "mxfp8"))
def test_quantised_model_is_the_dequantised_one(original, form, tmp_path):
    """The products of codes are those of the values that the codes mean, prompt and one token."""
    out = convert(original, tmp_path / "out", quantize=form)
    quantised, plain = (
        load_model(out, read_config(out), "float32", dequantize=d) for d in (False, True)
    )
    kinds = {type(m) for m in quantised.modules()}
    if any("experts" in name for name, _ in plain.named_modules()):
        assert (FP8Experts if form == "fp8" else QuantizedExperts) in kinds
    assert (QuantizedEmbedding in kinds) == (form != "fp8")
    for ids in (IDS, IDS[:1, :1]):
        a, b = (model(tm.tensor(ids)).numpy() for model in (quantised, plain))
        assert np.abs(a - b).max() <= 3e-5 * np.abs(b).max()


def test_fp8_layout(original, tmp_path):
    """Qwen's FP8 releases: names, dtypes, block scales; and every weight's nearest code."""
    out = convert(original, tmp_path / "out", quantize="fp8")
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert config["weight_block_size"] == [128, 128] and config["fmt"] == "e4m3"
    with Checkpoint(out) as new, Checkpoint(original) as old:
        for name in new.tensors:
            if not name.endswith("_scale_inv"):
                continue
            stem = name.removesuffix("_scale_inv")
            codes, scale = new.tensors[stem], new.tensors[name]
            assert (codes.dtype, scale.dtype) == ("F8_E4M3", "BF16")
            assert scale.shape == tuple(-(-n // 128) for n in codes.shape)
            assert stem.removesuffix(".weight") not in config["modules_to_not_convert"]
        names = set(new.tensors)
        read = new.read
        if "mlp.experts.gate_up_proj" in "".join(old.tensors):
            stem = "model.layers.0.mlp.experts"
            assert f"{stem}.3.up_proj.weight_scale_inv" in names
            whole = np.array(old.read(f"{stem}.gate_up_proj").astype(mx.float32))
            for kind, rows in (("gate", slice(0, 64)), ("up", slice(64, 128))):
                codes = np.array(read(f"{stem}.2.{kind}_proj.weight"))
                scale = read(f"{stem}.2.{kind}_proj.weight_scale_inv").astype(mx.float32)
                scale = np.repeat(np.array(scale), 128, 1)[:, :192]
                np.testing.assert_array_equal(codes, e4m3.narrow(whole[2, rows] / scale))
        assert {"lm_head", "model.embed_tokens"} & set(config["modules_to_not_convert"])


def test_mlx_layout(tmp_path, original):
    """Names and forms as mlx-lm's conversions have them."""
    out = convert(original, tmp_path / "out", quantize="int4")
    fields = json.loads((out / "config.json").read_text())
    assert fields["quantization"] == fields["quantization_config"]
    assert {"group_size": 64, "bits": 4, "mode": "affine"}.items() <= fields["quantization"].items()
    with Checkpoint(out) as new:
        shapes = {name: (info.dtype, tuple(info.shape)) for name, info in new.tensors.items()}
    kind = fields["model_type"]
    expected = {
        "qwen3_5_moe": {
            "language_model.model.embed_tokens.weight": ("U32", (320, 24)),
            "language_model.lm_head.scales": ("BF16", (320, 3)),
            "language_model.model.layers.0.linear_attn.conv1d.weight": ("BF16", (256, 4, 1)),
            "language_model.model.layers.0.mlp.switch_mlp.gate_proj.weight": ("U32", (4, 64, 24)),
            "language_model.model.layers.0.mlp.switch_mlp.down_proj.biases": ("BF16", (4, 192, 1)),
            "language_model.model.layers.0.mlp.gate.weight": ("U32", (4, 48)),
        },
        "mixtral": {
            "model.layers.1.block_sparse_moe.switch_mlp.up_proj.scales": ("BF16", (4, 64, 3)),
            "model.layers.1.block_sparse_moe.gate.weight": ("U32", (4, 48)),
        },
        "llama": {
            "model.embed_tokens.biases": ("BF16", (320, 3)),
            "model.layers.0.self_attn.q_proj.bias": ("BF16", (128,)),
        },
    }[kind]
    assert expected.items() <= shapes.items()
    assert ("lm_head.weight" in shapes) == (kind == "mixtral")
    if kind == "qwen3_5_moe":
        path = "language_model.model.layers.0.mlp.gate"
        assert fields["quantization"][path] == {"group_size": 64, "bits": 8, "mode": "affine"}


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "fp8"])
def test_rows_are_quantised_piece_by_piece(form):
    """The result and little more is in memory: mxfp4 of the whole took 57 MiB."""
    weight = mx.random.normal((2, 1000, 384), key=mx.random.key(0), stream=mx.cpu)
    with mx.stream(mx.cpu):
        expected = mx.quantize(weight, **FORMATS[form].options)
        mx.eval(expected)
        mx.clear_cache()
        before, _ = mx.get_active_memory(), mx.reset_peak_memory()
        found = grouped(weight, FORMATS[form])
        mx.eval(found)
    assert mx.get_peak_memory() - before < 24 << 20
    for got, wanted in zip(found, expected, strict=True):
        assert got.shape == wanted.shape and mx.array_equal(got, wanted).item()


def test_zero_and_tiny_blocks():
    """A block of zeros has scale 1; one value alone becomes the largest code that fits."""
    weight = np.zeros((130, 256), np.float32)
    weight[0, 0], weight[129, 200] = 3.0, -1e-30
    codes, scale = (np.array(x.astype(mx.float32)) for x in to_blocks(mx.array(weight)))
    meant = e4m3.widen(codes.astype(np.uint8)) * np.repeat(np.repeat(scale, 128, 0)[:130], 128, 1)
    assert scale[0, 1] == scale[1, 0] == 1
    np.testing.assert_allclose(meant, weight, rtol=2**-4)


def test_what_cannot_be_converted(original, tmp_path):
    out = tmp_path / "out"
    done = convert(original, out, quantize="fp8")
    with pytest.raises(InputError, match="quantised already"):
        convert(done, tmp_path / "again", quantize="int4")
    with pytest.raises(InputError, match="no --dtype"):
        convert(original, tmp_path / "again", dtype="float32", quantize="int4")
    with pytest.raises(InputError, match="choose from fp8, int8"):
        convert(original, tmp_path / "again", quantize="int3")
    assert not (tmp_path / "again").exists()


def test_nothing_remains_of_a_failure(tmp_path):
    """A weight that is not finite is met in the middle of writing."""
    config = transformers.AutoConfig.for_model("llama", intermediate_size=64, **COMMON)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3, 5] = float("nan")
    model.save_pretrained(tmp_path / "in")
    with pytest.raises(InputError, match="layers.1.mlp.down_proj.weight holds NaN"):
        convert(tmp_path / "in", tmp_path / "out", quantize="fp8")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
