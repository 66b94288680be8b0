"""Wan2.2's autoencoder at its real size with random weights, and a process's peak of memory."""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx

import torchmlx
from torchmlx import nn
from torchmlx.models.autoencoder_kl_wan import AutoencoderKLWan, Config

# models.md 3.1: TI2V-5B's.
WAN22 = {
    "base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "is_residual": True, "in_channels": 12,
    "out_channels": 12, "patch_size": 2, "scale_factor_spatial": 16,
}  # fmt: skip
DECODER = ("decoder.", "post_quant_conv.")


def wan22(dtype: mx.Dtype, parts: tuple[str, ...] = DECODER) -> AutoencoderKLWan:
    """The model, with weights in `dtype` for `parts` and none for the rest."""
    with torchmlx.device("meta"):
        model = AutoencoderKLWan(Config.from_dict(WAN22))
    mx.random.seed(0)
    for name, parameter in list(model.named_parameters()):
        if not name.startswith(parts):
            continue
        owner, _, leaf = name.rpartition(".")
        array = random_weight(leaf, tuple(parameter.shape)).astype(dtype)
        mx.eval(array)
        weight = nn.Parameter(torchmlx.from_mx(array), requires_grad=False)
        setattr(model.get_submodule(owner), leaf, weight)
    mx.clear_cache()
    return model


def random_weight(leaf: str, shape: tuple[int, ...]) -> mx.array:
    """Ones for norms, else uniform with torch's default bound."""
    if leaf == "gamma":
        return mx.ones(shape)
    bound = 0.0 if leaf == "bias" else 1 / math.sqrt(math.prod(shape[1:]))
    return mx.random.uniform(-bound, bound, shape)


def latents(frames: int, height: int, width: int) -> torchmlx.Tensor:
    """Random latents for a video of that height and width in pixels."""
    return torchmlx.from_mx(mx.random.normal((1, 48, frames, height // 16, width // 16)))


def resident() -> dict[str, int]:
    """Bytes that Linux says this process has: RssAnon, RssFile, VmHWM (the peak)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile", "VmHWM")}


@contextmanager
def peaks() -> Iterator[dict[str, int]]:
    """After the block: bytes at MLX's peak, RssAnon's (sampled 20 times a second) and VmHWM."""
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    mx.reset_peak_memory()
    found, done = {"MLX": 0, "RssAnon": 0, "VmHWM": 0}, threading.Event()

    def sample() -> None:
        while not done.wait(0.05):
            found["RssAnon"] = max(found["RssAnon"], resident()["RssAnon"])

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
        found["MLX"], found["VmHWM"] = mx.get_peak_memory(), resident()["VmHWM"]


def in_gib(found: dict[str, int]) -> str:
    """`MLX 1.95, RssAnon 2.10, VmHWM 2.20 GiB`."""
    return ", ".join(f"{name} {size / 2**30:.2f}" for name, size in found.items()) + " GiB"
