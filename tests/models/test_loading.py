"""Layouts of real releases around the same weights, and how much memory loading takes."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import torchmlx as tm
from torchmlx.errors import InputError
from torchmlx.models import qwen3_5_moe
from torchmlx.models.assets import tiny_model
from torchmlx.models.checkpoint import Checkpoint, copy_settings
from torchmlx.models.config import read_config
from torchmlx.models.loading import load_model
from torchmlx.serialization.safetensors import save, save_sharded

IDS = [[3, 17, 801, 5, 5, 1033, 90, 7]]


def logits(folder: Path, **options) -> np.ndarray:
    return load_model(folder, read_config(folder), "float32", **options)(tm.tensor(IDS)).numpy()


def copied(out: Path, rename=lambda name: name, extra=None, config=None) -> Path:
    """The tiny model with other tensor names, more tensors, and another configuration."""
    source = tiny_model()
    copy_settings(source, out)
    with Checkpoint(source) as checkpoint:
        tensors = {rename(info.name): (info.dtype, array) for info, array in checkpoint.items()}
    tensors |= {
        name: ("BF16", mx.zeros(shape, mx.bfloat16)) for name, shape in (extra or {}).items()
    }
    sizes = {name: array.nbytes for name, (_, array) in tensors.items()}
    save_sharded(out, sizes, tensors.__getitem__)
    if config is not None:
        fields = json.loads((source / "config.json").read_text())
        (out / "config.json").write_text(json.dumps(config(fields)))
    return out


def nested(fields: dict) -> dict:
    """As a multimodal release has it: the text model's fields one level down."""
    quantization = fields.pop("quantization_config")
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": fields,
        "vision_config": {"model_type": "qwen3_5_moe", "depth": 27},
        "tie_word_embeddings": False,
        "quantization_config": quantization,
    }


def test_vision_and_prediction_heads_are_left_out_in_one_line(tmp_path, caplog):
    extra = {
        "model.visual.patch_embed.proj.weight": (8, 3, 2, 4, 4),
        "model.visual.blocks.0.attn.qkv.bias": (24,),
        "mtp.fc.weight": (128, 256),
        "mtp.layers.0.mlp.experts.0.gate_proj.weight": (128, 128),
        "mtp.layers.0.self_attn.q_norm.weight": (32,),
    }
    folder = copied(tmp_path, extra=extra, config=nested)
    with caplog.at_level(logging.WARNING):
        ours = logits(folder)
    np.testing.assert_array_equal(ours, logits(tiny_model()))
    (record,) = caplog.records
    assert record.getMessage().endswith("left out 3 multi-token prediction and 2 vision tensors")


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name.replace("model.", "model.language_model.", 1),
        lambda name: "language_model." + name,
    ],
)
def test_prefixes(tmp_path, rename):
    np.testing.assert_array_equal(logits(copied(tmp_path, rename)), logits(tiny_model()))


def test_stacked_codes(tmp_path):
    """Experts in FP8 as transformers holds them: one tensor a projection, scales stacked alike."""
    source = tiny_model()
    copy_settings(source, tmp_path)
    with Checkpoint(source) as checkpoint:
        tensors = {info.name: (info.dtype, array) for info, array in checkpoint.items()}
    for layer in range(4):
        path = f"model.layers.{layer}.mlp.experts"
        for ending, stacked in (("weight", ""), ("weight_scale_inv", "_scale_inv")):
            parts = {
                kind: mx.stack(
                    [tensors.pop(f"{path}.{e}.{kind}_proj.{ending}")[1] for e in range(8)]
                )
                for kind in ("gate", "up", "down")
            }
            both = mx.concatenate([parts["gate"], parts["up"]], axis=1)
            dtype = "BF16" if stacked else "F8_E4M3"
            tensors[f"{path}.gate_up_proj{stacked}"] = (dtype, both)
            tensors[f"{path}.down_proj{stacked}"] = (dtype, parts["down"])
    sizes = {name: array.nbytes for name, (_, array) in tensors.items()}
    save_sharded(tmp_path, sizes, tensors.__getitem__)
    np.testing.assert_array_equal(logits(tmp_path), logits(source))
    np.testing.assert_array_equal(
        logits(tmp_path, dequantize=True), logits(source, dequantize=True)
    )


def test_the_same_weight_under_two_names(tmp_path):
    folder = copied(tmp_path, extra={"language_model.model.norm.weight": (128,)})
    with pytest.raises(InputError, match="are the same weight; remove one"):
        load_model(folder, read_config(folder))


def test_stored_float32_decay_stays_float32(tmp_path):
    """Qwen3.5 stores A_log in float32, Qwen3.6 in bfloat16; it is computed with in float32."""
    folder = copied(tmp_path)
    with Checkpoint(folder) as checkpoint:
        tensors = {info.name: (info.dtype, array) for info, array in checkpoint.items()}
        name = next(name for name in tensors if name.endswith("A_log"))
    exact = mx.array([0.1, 0.2, 0.3, -1.1])
    tensors[name] = ("F32", exact)
    save(
        folder / "model.safetensors",
        {n: array for n, (_, array) in tensors.items()},
        {n: dtype for n, (dtype, _) in tensors.items()},
    )
    model = load_model(folder, read_config(folder))
    np.testing.assert_array_equal(model.model.layers[0].linear_attn.A_log.numpy(), exact)
    assert model.model.layers[1].linear_attn.A_log.dtype is tm.bfloat16


MEASURE = """
import gc, re, sys, threading
import mlx.core as mx
from pathlib import Path
from torchmlx.models.config import read_config
from torchmlx.models.loading import load_model

def anonymous():
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

folder, options = Path(sys.argv[1]), eval(sys.argv[2])
load_model(Path(sys.argv[3]), read_config(sys.argv[3]))  # imports, kernels, threads
gc.collect(); mx.clear_cache(); mx.reset_peak_memory()
before, peak, done = anonymous(), 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.001):
        peak = max(peak, anonymous())

watcher = threading.Thread(target=watch); watcher.start()
model = load_model(folder, read_config(folder), **options)
done.set(); watcher.join()
kept = sum(p.mx.nbytes for p in model.parameters())
print(kept, mx.get_peak_memory(), max(peak, anonymous()) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="platform: reads /proc")
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"dtype": "float32"}, marks=pytest.mark.slow),
        pytest.param({"dequantize": True}, marks=pytest.mark.slow),
    ],
)
def test_loading_takes_little_more_than_it_keeps(tmp_path, options):
    """At most 1.15 times the bytes kept, by MLX's count and by the process's own pages."""
    fields = json.loads((tiny_model() / "config.json").read_text())
    sizes = dict(num_experts=24, moe_intermediate_size=256, num_hidden_layers=12, hidden_size=512)
    fields |= sizes | {"layer_types": ["linear_attention"] * 11 + ["full_attention"]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    write_random(tmp_path, read_config(tmp_path))
    command = [sys.executable, "-c", MEASURE, str(tmp_path), repr(options), str(tiny_model())]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    kept, counted, resident = map(int, done.stdout.split())
    assert kept > 100e6
    assert counted <= 1.15 * kept
    assert resident <= 1.15 * kept


def write_random(folder: Path, config) -> None:
    """A checkpoint of the configuration's shapes: random FP8 experts, everything else plain."""
    args = config.fill(qwen3_5_moe.ModelArgs)
    with tm.device("meta"):
        model = qwen3_5_moe.Model(args)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    rng = np.random.default_rng(0)
    tensors: dict[str, tuple[str, np.ndarray]] = {}
    for name, shape in shapes.items():
        if ".experts." not in name:
            tensors[name] = ("BF16", np.full(shape, 0x3C00, np.uint16))
            continue
        stem, hidden = name.rpartition(".")[0], args.hidden_size
        parts = {"gate_proj": (args.moe_intermediate_size, hidden)}
        parts["up_proj"] = parts["gate_proj"]
        if name.endswith("down_proj"):
            parts = {"down_proj": (hidden, args.moe_intermediate_size)}
        for expert in range(args.num_experts):
            for part, size in parts.items():
                grid = tuple(-(-n // 128) for n in size)
                path = f"{stem}.{expert}.{part}.weight"
                tensors[path] = ("F8_E4M3", rng.integers(0, 0x78, size, np.uint8))
                tensors[f"{path}_scale_inv"] = ("BF16", np.full(grid, 0x3C00, np.uint16))
    sizes = {name: array.nbytes for name, (_, array) in tensors.items()}
    save_sharded(folder, sizes, tensors.__getitem__, 50_000_000)
