"""gpt-oss with its experts in MXFP4, as released, against transformers with them dequantised."""

import json

import mlx.core as mx
import numpy as np
import pytest

import torchmlx as tm
from tests.models.oracle import IDS, assert_close, randomise, reference
from torchmlx.errors import InputError
from torchmlx.models.checkpoint import Checkpoint
from torchmlx.models.config import read_config
from torchmlx.models.convert import convert
from torchmlx.models.loading import load_model
from torchmlx.serialization.safetensors import save_sharded

torch = pytest.importorskip("torch", reason="torch is the oracle")
transformers = pytest.importorskip("transformers", reason="transformers is the oracle")

FIELDS = dict(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    sliding_window=11,
    num_local_experts=4,
    num_experts_per_tok=2,
    max_position_embeddings=512,
    eos_token_id=2,
)
# The values of 4 bits: sign, two of exponent, one of fraction.
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """transformers' model, and a folder with the experts' blocks and exponents."""
    folder = tmp_path_factory.mktemp("gpt_oss")
    config = transformers.AutoConfig.for_model("gpt_oss", **FIELDS)
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    randomise(theirs.float().eval())
    theirs.save_pretrained(folder)
    with Checkpoint(folder) as checkpoint:
        tensors = {info.name: (info.dtype, array) for info, array in checkpoint.items()}
    rng = np.random.default_rng(3)
    state = theirs.state_dict()
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        count, k, n = state[name].shape
        blocks = rng.integers(0, 256, (count, n, k // 32, 16), np.uint8)
        scales = rng.integers(122, 126, (count, n, k // 32), np.uint8)
        values = np.stack([FP4[blocks & 15], FP4[blocks >> 4]], -1).reshape(count, n, k // 32, 32)
        values = (values * 2.0 ** (scales[..., None].astype(np.float32) - 127)).reshape(count, n, k)
        state[name].copy_(torch.from_numpy(values.swapaxes(1, 2).astype(np.float32)))
        del tensors[name]
        tensors[f"{name}_blocks"] = ("U8", mx.array(blocks))
        tensors[f"{name}_scales"] = ("U8", mx.array(scales))
    sizes = {name: array.nbytes for name, (_, array) in tensors.items()}
    save_sharded(folder, sizes, tensors.__getitem__)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    path.write_text(json.dumps(config))
    return theirs, folder


@pytest.mark.parametrize("dequantize", (False, True))
def test_packed_experts(released, dequantize):
    theirs, folder = released
    ours = load_model(folder, read_config(folder), dequantize=dequantize)
    experts = ours.model.layers[0].mlp.experts
    if dequantize:
        assert experts.gate_up_proj.dtype is tm.float32
    else:
        assert experts.gate_up_proj.weight.dtype is tm.uint32
    expected = reference(theirs, IDS)
    assert_close(ours(tm.tensor(IDS)).numpy(), expected)
    assert_close(ours(tm.tensor(IDS[:, :1])).numpy(), expected[:, :1])


@pytest.mark.parametrize("dequantize", (False, True))
def test_stacks_of_mlx_lm(released, tmp_path, dequantize):
    """The same weights as mlx-community has them: gate and up apart, eight values a word."""
    theirs, folder = released
    with Checkpoint(folder) as checkpoint:
        tensors = {info.name: (info.dtype, array) for info, array in checkpoint.items()}
    for layer in range(2):
        path = f"model.layers.{layer}.mlp.experts"
        for old, ending in (("_blocks", "weight"), ("_scales", "scales"), ("_bias", "bias")):
            dtype, both = tensors.pop(f"{path}.gate_up_proj{old}")
            down = tensors.pop(f"{path}.down_proj{old}")[1]
            parts = {"gate_proj": both[:, ::2], "up_proj": both[:, 1::2], "down_proj": down}
            for name, part in parts.items():
                if ending == "weight":
                    dtype, part = "U32", mx.contiguous(part).view(mx.uint32).flatten(2)
                tensors[f"{path}.{name}.{ending}"] = (dtype, mx.contiguous(part))
    save_sharded(tmp_path, {n: a.nbytes for n, (_, a) in tensors.items()}, tensors.__getitem__)
    ours = load_model(tmp_path, read_config(folder), dequantize=dequantize)
    assert hasattr(ours.model.layers[0].mlp.experts, "gate_proj") != dequantize
    assert_close(ours(tm.tensor(IDS)).numpy(), reference(theirs, IDS))


def test_blocks_of_another_shape(released, tmp_path):
    _, folder = released
    config = read_config(folder)
    with Checkpoint(folder) as checkpoint:
        tensors = {info.name: (info.dtype, array) for info, array in checkpoint.items()}
    name = "model.layers.1.mlp.experts.down_proj_scales"
    tensors[name] = ("U8", mx.zeros((4, 64, 2), mx.uint8))
    save_sharded(tmp_path, {n: a.nbytes for n, (_, a) in tensors.items()}, tensors.__getitem__)
    with pytest.raises(InputError, match=rf"{name} has shape \[4, 64, 2\]"):
        load_model(tmp_path, config)


@pytest.fixture(scope="module")
def plain(released, tmp_path_factory):
    """The same model with its experts in float32."""
    theirs, _ = released
    folder = tmp_path_factory.mktemp("plain")
    theirs.save_pretrained(folder)
    return folder


def parameters(folder) -> dict[str, np.ndarray]:
    model = load_model(folder, read_config(folder), "float32", dequantize=True)
    return {name: p.numpy() for name, p in model.named_parameters()}


@pytest.mark.parametrize("form", ("int8", "mxfp4"))
def test_converted_release(released, form, tmp_path):
    """The experts' codes stay, the other maps become `form`; logits are those of the values."""
    _, folder = released
    out = convert(folder, tmp_path / "out", quantize=form)
    before, after = parameters(folder), parameters(out)
    assert before.keys() == after.keys()
    for name, exact in before.items():
        if "experts" in name or "norm" in name or name.endswith(("bias", "sinks")):
            np.testing.assert_array_equal(after[name], exact)
        else:
            error = np.square(after[name] - exact).mean() / np.square(exact).mean()
            router = name.endswith("router.weight")
            assert 0 < error < (2.5e-2 if form == "mxfp4" and not router else 1e-4)
    logits = [
        load_model(out, read_config(out), "float32", dequantize=d)(tm.tensor(IDS)).numpy()
        for d in (False, True)
    ]
    assert_close(*logits)


@pytest.mark.parametrize(("form", "bound"), [("mxfp8", 1.3e-3), ("mxfp4", 0)])
def test_converted_plain(released, plain, form, bound, tmp_path):
    """Plain experts are quantised too; values that MXFP4 had are the same there again."""
    out = convert(plain, tmp_path / "out", quantize=form)
    before, after = parameters(plain), parameters(out)
    for name in [n for n in before if "experts" in n]:
        error = np.square(after[name] - before[name]).mean() / np.square(before[name]).mean()
        assert error <= (0 if name.endswith("bias") else bound)
    ours = load_model(out, read_config(out), "float32")
    assert hasattr(ours.model.layers[0].mlp.experts, "gate_proj")


def test_what_gpt_oss_cannot_become(plain, released, tmp_path):
    for folder in (plain, released[1]):
        with pytest.raises(InputError, match="no FP8 layout has experts with biases; choose mxfp4"):
            convert(folder, tmp_path / "out", quantize="fp8")
    with pytest.raises(InputError, match="96 columns are no multiple of the groups of 64"):
        convert(plain, tmp_path / "out", quantize="int4")
    assert not (tmp_path / "out").exists()
