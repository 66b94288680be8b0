"""FP8 checkpoints in the forms that releases have, against transformers with the same weights
dequantised, in float32; sizes are no multiples of 128.
"""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import torchmlx as tm
from tests.models.oracle import IDS, assert_close, randomise, reference
from torchmlx.errors import InputError
from torchmlx.kernels import e4m3
from torchmlx.models.checkpoint import Checkpoint
from torchmlx.models.config import read_config
from torchmlx.models.loading import load_model
from torchmlx.models.weights import FP8Experts, FP8Linear, QuantizedLinear
from torchmlx.serialization.safetensors import SafetensorsFile, save_sharded

torch = pytest.importorskip("torch", reason="torch is the oracle")
transformers = pytest.importorskip("transformers", reason="transformers is the oracle")

FIELDS = dict(
    vocab_size=320,
    hidden_size=192,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=40,
    max_position_embeddings=512,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=96,
    mlp_only_layers=[1],
)
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}

MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}


def compressed(strategy: str) -> dict:
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True}
    if strategy == "block":
        weights["block_structure"] = [128, 128]
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


# name: (quantization_config, scale's ending, block of rows and columns (0: all), dtype, shape)
FORMS = {
    "block-f32": (FP8, "weight_scale_inv", (128, 128), "F32", None),
    "block-bf16": (FP8, "weight_scale_inv", (128, 128), "BF16", None),
    "block-ue8m0": (FP8 | {"scale_fmt": "ue8m0"}, "weight_scale_inv", (128, 128), "F8_E8M0", None),
    "block-exponent-bytes": (FP8 | {"scale_fmt": "ue8m0"}, "scale", (128, 128), "U8", None),
    "block-32": (FP8 | {"weight_block_size": [32, 32]}, "weight_scale_inv", (32, 32), "F32", None),
    "static": (FP8 | {"weight_block_size": None}, "weight_scale_inv", (0, 0), "F32", ()),
    "channel": (compressed("channel"), "weight_scale", (1, 0), "BF16", None),
    "tensor": (compressed("tensor"), "weight_scale", (0, 0), "BF16", (1,)),
    "block": (compressed("block"), "weight_scale", (128, 128), "BF16", None),
    "modelopt": (MODELOPT, "weight_scale", (0, 0), "F32", ()),
    "modelopt-block": (MODELOPT, "weight_scale", (128, 128), "F32", 4),
}  # fmt: skip


def quantise(weight: np.ndarray, block: tuple[int, int], dtype: str):
    """Codes [N, K], scales [N / rows, K / columns] as stored, and the values that they mean."""
    rows, columns = (b or n for b, n in zip(block, weight.shape, strict=True))
    padded = np.pad(
        weight, [(0, -n % b) for n, b in zip(weight.shape, (rows, columns), strict=True)]
    )
    cells = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    scale = np.abs(cells).max((1, 3)) / 448
    if dtype in ("F8_E8M0", "U8"):
        exponents = np.ceil(np.log2(scale))
        stored, scale = (exponents + 127).astype(np.uint8), 2.0**exponents
    elif dtype == "BF16":
        stored = (scale.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        scale = (stored.astype(np.uint32) << 16).view(np.float32)
    else:
        stored = scale = scale.astype(np.float32)
    wide = np.repeat(np.repeat(scale, rows, 0), columns, 1)[: weight.shape[0], : weight.shape[1]]
    codes = e4m3.narrow(weight / wide)
    return codes, stored, (e4m3.widen(codes) * wide).astype(np.float32)


def is_quantised(name: str) -> bool:
    return name.endswith("_proj.weight")


def write(folder: Path, theirs, form: str) -> None:
    """The model in `form`, in several files; `theirs` gets the dequantised weights."""
    config, ending, block, dtype, shape = FORMS[form]
    theirs.save_pretrained(folder)
    with SafetensorsFile(folder / "model.safetensors") as file:
        plain = {name: np.array(file.read(name)) for name in file.tensors}
    (folder / "model.safetensors").unlink()
    tensors, meant = {}, {}
    for name, weight in plain.items():
        if not is_quantised(name):
            tensors[name] = ("F32", weight)
            continue
        codes, scale, meant[name] = quantise(weight, block, dtype)
        scale = (
            scale[:, None, :, None]
            if shape == 4
            else scale
            if shape is None
            else scale.reshape(shape)
        )
        tensors[name] = ("F8_E4M3", codes)
        tensors[name.replace("weight", ending)] = (dtype, scale)
        if form in ("static", "modelopt"):
            tensors[name.replace("weight", "input_scale")] = ("F32", np.array(0.1, np.float32))
    # Scales in other files than their weights.
    order = sorted(tensors, key=lambda name: (not name.endswith("weight"), name))
    save_sharded(folder, {n: tensors[n][1].nbytes for n in order}, tensors.__getitem__, 200_000)
    assert (folder / "model.safetensors.index.json").exists()
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": config}))
    give(theirs, meant)


def give(theirs, meant: dict[str, np.ndarray]) -> None:
    """Put weights under their names in the file into transformers' model, experts stacked."""
    state = theirs.state_dict()
    for name, value in meant.items():
        value = torch.from_numpy(value)
        if name in state:
            state[name].copy_(value)
            continue
        path, number, kind = name.removesuffix("_proj.weight").rsplit(".", 2)
        if kind == "down":
            state[f"{path}.down_proj"][int(number)].copy_(value)
        else:
            half = slice(0, len(value)) if kind == "gate" else slice(len(value), None)
            state[f"{path}.gate_up_proj"][int(number), half].copy_(value)


def build() -> "transformers.PreTrainedModel":
    config = transformers.AutoConfig.for_model("qwen3_moe", **FIELDS)
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    theirs = theirs.float().eval()
    randomise(theirs)
    return theirs


# Others differ from these in a name, or in how many scales there are.
DAILY = ("block-bf16", "block-ue8m0", "channel", "modelopt-block", "static")


@pytest.mark.parametrize(
    "form", [f if f in DAILY else pytest.param(f, marks=pytest.mark.slow) for f in FORMS]
)
def test_forms(form, tmp_path):
    theirs = build()
    write(tmp_path, theirs, form)
    expected = reference(theirs, IDS)
    if form != "block-32":
        ours = load_model(tmp_path, read_config(tmp_path), "float32")
        kinds = {type(m) for m in ours.modules()}
        assert {FP8Linear, FP8Experts} <= kinds
        assert ours.model.layers[0].mlp.experts.down_proj.dtype is tm.float8_e4m3fn
        assert_close(ours(tm.tensor(IDS)).numpy(), expected)
        assert_close(ours(tm.tensor(IDS[:, :7])).numpy(), expected[:, :7])
    plain = load_model(tmp_path, read_config(tmp_path), "float32", dequantize=True)
    assert all(p.dtype is tm.float32 for p in plain.parameters())
    assert_close(plain(tm.tensor(IDS)).numpy(), expected)


def test_experts_in_other_blocks_need_dequantize(tmp_path):
    write(tmp_path, build(), "block-32")
    with pytest.raises(InputError, match="blocks of 32 .* use --dequantize"):
        load_model(tmp_path, read_config(tmp_path))


def rewrite(folder: Path, change) -> None:
    """Store the folder's tensors again, name -> (dtype, array), as `change` leaves them."""
    tensors = {}
    with Checkpoint(folder) as checkpoint:
        for info in checkpoint.tensors.values():
            tensors[info.name] = (info.dtype, checkpoint.read(info.name))
        files = checkpoint.files
    for path in (*files, folder / "model.safetensors.index.json"):
        path.unlink(missing_ok=True)
    change(tensors)
    sizes = {name: array.nbytes for name, (_, array) in tensors.items()}
    save_sharded(folder, sizes, tensors.__getitem__)


Q = "model.layers.1.self_attn.q_proj.weight"
Q_SCALE = f"{Q}_scale"
DOWN_SCALE = "model.layers.0.mlp.experts.3.down_proj.weight_scale"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(Q_SCALE), rf"{Q} is F8_E4M3, but has no scale"),
        (lambda t: t.pop(DOWN_SCALE), r"experts.3.down_proj.weight is F8_E4M3, but has no scale"),
        (lambda t: t.update({Q: ("F32", mx.zeros((160, 192)))}), "has a scale, but is F32"),
        (lambda t: t.update(stray_scale=("F32", mx.zeros(1))), "'stray_scale' does not belong"),
        (lambda t: t.update({Q_SCALE: ("F32", mx.zeros((3, 2)))}), r"\[3, 2\]: it scales neither"),
        (lambda t: t.update({Q_SCALE: ("I32", mx.zeros(1, mx.int32))}), "is I32, which is no"),
    ],
)
def test_scales_that_do_not_fit(change, message, tmp_path):
    write(tmp_path, build(), "channel")
    rewrite(tmp_path, change)
    with pytest.raises(InputError, match=message):
        load_model(tmp_path, read_config(tmp_path))


def test_exponents_for_groups_of_32_are_mxfp8(tmp_path):
    """OCP MXFP8 as such checkpoints have it, byte for byte MLX's, on one linear map."""
    theirs = build()
    theirs.save_pretrained(tmp_path)
    weight = theirs.model.layers[1].self_attn.q_proj.weight
    codes, scale, meant = quantise(weight.detach().numpy(), (1, 32), "U8")
    new = {Q: ("F8_E4M3", mx.array(codes)), f"{Q}_scale_inv": ("F8_E8M0", mx.array(scale))}
    rewrite(tmp_path, lambda tensors: tensors.update(new))
    with torch.no_grad():
        weight.copy_(torch.from_numpy(meant))
    ours = load_model(tmp_path, read_config(tmp_path))
    assert isinstance(ours.model.layers[1].self_attn.q_proj, QuantizedLinear)
    assert_close(ours(tm.tensor(IDS)).numpy(), reference(theirs, IDS))


def test_all_codes_survive():
    """Subnormals and the extremes, as NumPy's reference reads them; NaN makes its output NaN."""
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128)
    weight = tm.from_mx(mx.array(codes)).view(tm.float8_e4m3fn)
    linear = FP8Linear(weight, tm.tensor([[0.5]]), 128)
    np.testing.assert_array_equal(linear(tm.ones(128)).numpy(), [np.nan, np.nan])
    weight = tm.from_mx(mx.array(codes[:, :127].copy())).view(tm.float8_e4m3fn)
    linear = FP8Linear(weight, tm.tensor([[0.5]]), 128)
    np.testing.assert_array_equal(linear(tm.eye(127)).numpy(), e4m3.widen(codes[:, :127]).T / 2)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"quant_method": "awq"}, "awq"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "pack-quantized"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4"),
    ],
)
def test_unknown_quantisations_are_named(config, name, tmp_path):
    write(tmp_path, build(), "channel")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": config}))
    with pytest.raises(InputError, match=f"'{name}'"):
        load_model(tmp_path, read_config(tmp_path))
