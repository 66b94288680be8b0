"""Qwen3.6-35B-A3B's shapes with random FP8 weights: loading's peak, decoding, bytes against time.

TORCHMLX_BENCH_LAYERS says how many of its 40 layers (default 4: 5.4 GiB with embedding and head; 12
are 11.3 GiB). TORCHMLX_BENCH_FOLDER keeps the checkpoint there, and takes it from there next time.
"""

import dataclasses
import json
import os
import re
import tempfile
import threading
import time
from pathlib import Path

import mlx.core as mx
import numpy as np

import torchmlx as torch
from torchmlx.models.config import read_config
from torchmlx.models.loading import load_model
from torchmlx.models.qwen3_5_moe import Model, ModelArgs
from torchmlx.models.stepper import Stepper, prefill
from torchmlx.serialization.safetensors import save_sharded

CONFIG = {
    "model_type": "qwen3_5_moe_text",
    "dtype": "bfloat16",
    "vocab_size": 248320,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "max_position_embeddings": 262144,
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25},
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
FP8 = ("q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkv", "in_proj_z", "out_proj")
FP8 = tuple(f"{name}.weight" for name in (*FP8, "gate_proj", "up_proj", "down_proj"))
PROMPT, TOKENS = 32, 24


def main() -> None:
    """Write, load, decode; print what it took."""
    layers = int(os.environ.get("TORCHMLX_BENCH_LAYERS", "4"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(os.environ.get("TORCHMLX_BENCH_FOLDER", name))
        if not (folder / "config.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers}))
            write(folder)
        before = anonymous()
        mx.reset_peak_memory()
        watch = Watch()
        began = time.perf_counter()
        model = load_model(folder, read_config(folder))
        seconds = time.perf_counter() - began
        resident = watch.stop() - before
    kept = sum(p.mx.nbytes for p in model.parameters())
    peak = max(mx.get_peak_memory(), resident)
    print(
        f"{len(model.model.layers)} layers, {kept / 2**30:.2f} GiB kept; loaded in {seconds:.1f} s"
    )
    print(f"peak while loading: {peak / 2**30:.2f} GiB, {peak / kept:.3f} of what is kept")
    decode(model)
    graph(model)


def write(folder: Path) -> None:
    """Random codes; 61,440 experts' tensors in the whole model, so names are Qwen's."""
    args = read_config(folder).fill(ModelArgs)
    with torch.device("meta"):
        model = Model(args)
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        stem = name.rpartition(".")[0]
        if name.endswith("gate_up_proj"):
            inner, hidden = shape[1] // 2, shape[2]
            for e, kind in ((e, kind) for e in range(shape[0]) for kind in ("gate", "up")):
                shapes[f"{stem}.{e}.{kind}_proj.weight"] = ("F8_E4M3", (inner, hidden))
        elif name.endswith("experts.down_proj"):
            for e in range(shape[0]):
                shapes[f"{stem}.{e}.down_proj.weight"] = ("F8_E4M3", shape[1:])
        else:
            shapes[name] = ("F8_E4M3" if name.endswith(FP8) else "BF16", shape)
    scales = {
        f"{name}_scale_inv": ("BF16", tuple(-(-n // 128) for n in shape))
        for name, (dtype, shape) in shapes.items()
        if dtype == "F8_E4M3"
    }
    shapes |= scales
    small = (np.float32(2e-4).view(np.uint32) >> 16).astype(np.uint16)  # in bfloat16

    noise = rng.integers(0x20, 0x70, 9_999_991, np.uint8)

    def load(name: str) -> tuple[str, np.ndarray]:
        dtype, shape = shapes[name]
        if dtype == "F8_E4M3":  # another piece of the noise for each
            return dtype, np.resize(np.roll(noise, -int(rng.integers(noise.size))), shape)
        if name in scales:
            return dtype, np.full(shape, small)
        values = rng.standard_normal(shape, np.float32) * (0.02 if len(shape) > 1 else 0.1)
        return dtype, (values.view(np.uint32) >> 16).astype(np.uint16)

    sizes = {n: int(np.prod(s)) * (1 if d == "F8_E4M3" else 2) for n, (d, s) in shapes.items()}
    save_sharded(folder, sizes, load, 1 << 30)


def decode(model) -> None:
    """Tokens a second, and the bytes of weights that a token cannot do without."""
    ids = np.random.default_rng(1).integers(0, 248320, PROMPT).tolist()
    with torch.inference_mode():
        cache = model.make_cache()
        began = time.perf_counter()
        token = prefill(model, cache, ids, 2048).argmax(-1, keepdim=True)
        token.item()
        print(f"prompt of {PROMPT}: {PROMPT / (time.perf_counter() - began):.1f} tokens/s")
        step, times = Stepper(model, cache), []
        for _ in range(TOKENS):
            began = time.perf_counter()
            token = step(token)[:, -1].argmax(-1, keepdim=True)
            token.item()
            times.append(time.perf_counter() - began)
    seconds, needed = float(np.median(times[2:])), minimum(model)
    print(f"decode: {1 / seconds:.2f} tokens/s, {1e3 * seconds:.0f} ms a token")
    print(
        f"weights a token needs: {needed / 2**30:.3f} GiB (8 of 256 experts), so "
        f"{needed / seconds / 1e9:.1f} GB/s; all weights are "
        f"{sum(p.mx.nbytes for p in model.parameters()) / 2**30:.2f} GiB"
    )


def graph(model) -> None:
    """What building a token's graph costs the processor with 40 layers, against 1,000 additions.

    Layers of a kind share their weights here, which graphs do not see.
    """
    kinds = dict(zip(model.args.kinds(), model.model.layers, strict=True))
    args = dataclasses.replace(model.args, num_hidden_layers=40)
    model.model.layers = torch.nn.ModuleList(kinds[kind] for kind in args.kinds())
    steps, sums = [], []
    with torch.inference_mode():
        step = Stepper(model, model.make_cache())
        token = prefill(model, step.cache, [1, 2, 3], 2048).argmax(-1, keepdim=True)
        for _ in range(12):
            mx.eval(token.mx)
            began = time.thread_time()
            token = step(token)[:, -1].argmax(-1, keepdim=True)
            steps.append(time.thread_time() - began)
            began = time.thread_time()
            total = one = mx.ones(())
            for _ in range(1000):
                total = mx.add(total, one)
            sums.append(time.thread_time() - began)
    built, added = np.median(steps[2:]), np.median(sums[2:])
    print(
        f"a graph of 40 layers: {1e3 * built:.2f} ms, 1,000 additions {1e3 * added:.2f} ms: "
        f"{built / added:.1f} times (the bar: 8); the first, traced, {1e3 * steps[0]:.0f} ms"
    )


def minimum(model) -> int:
    """Bytes of all weights but the experts that a token does not choose and unused embeddings."""
    total = 0
    for name, parameter in model.named_parameters():
        if "experts." in name and "shared" not in name:
            total += parameter.mx.nbytes * 8 // 256
        elif "embed_tokens" not in name:
            total += parameter.mx.nbytes
    return total


def anonymous() -> int:
    """Bytes of this process's own pages; those of mapped files do not count."""
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    return 1024 * int(found[1]) if found else 0


class Watch:
    """The highest `anonymous` until `stop`."""

    def __init__(self) -> None:
        self._peak, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.wait(0.002):
            self._peak = max(self._peak, anonymous())

    def stop(self) -> int:
        self._done.set()
        self._thread.join()
        return max(self._peak, anonymous())


if __name__ == "__main__":
    main()
