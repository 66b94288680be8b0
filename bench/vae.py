"""Video autoencoders' decoders against diffusers on torch's CPU, in float32 and bfloat16.

Both have the same weights and latents, and take turns. Seconds are medians; a ratio above one says
that ours is faster. wan22-mini is trained and small, Wan2.2 has its real sizes and random weights.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's idle threads would take our cores

import diffusers  # noqa: E402
import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

import torchmlx  # noqa: E402
from torchmlx.kernels import native  # noqa: E402
from torchmlx.models.autoencoder_kl_wan import AutoencoderKLWan, Config  # noqa: E402

MINI = Path(os.environ.get("VAE_MINI","/work/shared/assets/wan22-mini"))
# models.md 3.1: TI2V-5B's.
WAN22 = {
    "base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "is_residual": True, "in_channels": 12,
    "out_channels": 12, "patch_size": 2, "scale_factor_spatial": 16,
}  # fmt: skip
SIZE = 256  # pixels
# Latent frames, turns; a tile of the real one takes seconds.
RUNS = {"wan22-mini": (3, 5), "Wan2.2": (1, 3)}


def main() -> None:
    """Decode 256 x 256 pixels with either model in either type, and print a line for each."""
    threads = native.cores()
    torch.set_num_threads(threads)
    print(f"{threads} threads, {SIZE} x {SIZE} pixels, decoding\n")
    print(f"{'':24}{'frames':>8}{'ours':>10}{'diffusers':>12}{'ratio':>8}{'PSNR':>10}")
    for name, theirs in (("wan22-mini", mini), ("Wan2.2", wan22)):
        for dtype in ("float32", "bfloat16"):
            measure(name, dtype, theirs().to(getattr(torch, dtype)).eval())


def measure(name: str, dtype: str, theirs: torch.nn.Module) -> None:
    """Time both by turns, and how alike they are on -1..1."""
    ours = like(theirs)
    frames, turns = RUNS[name]
    scale, channels = theirs.config["scale_factor_spatial"], theirs.config["z_dim"]
    shape = (1, channels, frames, SIZE // scale, SIZE // scale)
    z = np.random.default_rng(0).standard_normal(shape, np.float32)
    a = torchmlx.tensor(z).to(getattr(torchmlx, dtype))
    b = torch.tensor(z).to(getattr(torch, dtype))

    def decode_ours() -> np.ndarray:
        sample = ours.decode(a).sample
        mx.eval(sample.mx)
        return sample.float().numpy()

    @torch.inference_mode()
    def decode_theirs() -> np.ndarray:
        return theirs.decode(b).sample.float().numpy()

    sides = {"ours": decode_ours, "diffusers": decode_theirs}
    times: dict[str, list[float]] = {side: [] for side in sides}
    found = {}
    for _ in range(turns + (name == "wan22-mini")):
        for side, decode in sides.items():
            start = time.perf_counter()
            found[side] = decode()
            times[side].append(time.perf_counter() - start)
    ours_s, theirs_s = (median(times[side][-turns:]) for side in sides)
    noise = float(((found["ours"] - found["diffusers"]) ** 2).mean())
    print(
        f"{name + ', ' + dtype:24}{found['ours'].shape[2]:8}{ours_s:8.2f} s{theirs_s:10.2f} s"
        f"{theirs_s / ours_s:7.2f}x{10 * np.log10(4 / noise):7.1f} dB",
        flush=True,
    )


def mini() -> torch.nn.Module:
    """The trained one, of the folder shared/."""
    return diffusers.AutoencoderKLWan.from_pretrained(MINI)


def wan22() -> torch.nn.Module:
    """Wan2.2's decoder; its encoder stays without numbers."""
    with torch.device("meta"):
        model = diffusers.AutoencoderKLWan(**WAN22)
    model.encoder = model.quant_conv = torch.nn.Identity()
    model = model.to_empty(device="cpu")
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        fan_in = parameter[0].numel()
        with torch.no_grad():
            parameter.uniform_(-1, 1).mul_(0.2 if name.endswith("bias") else fan_in**-0.5)
            if "gamma" in name:
                parameter.fill_(1)
    return model


def like(theirs: torch.nn.Module) -> AutoencoderKLWan:
    """Ours with the same weights; an encoder that it lacks stays without numbers."""
    config = Config.from_dict(dict(theirs.config))
    with torchmlx.device("meta"):
        ours = AutoencoderKLWan(config)
    state = dict(theirs.named_parameters())
    for name, _ in list(ours.named_parameters()):
        if name not in state:
            continue
        owner, _, leaf = name.rpartition(".")
        module = ours.get_submodule(owner)
        weight = state[name].detach()
        tensor = torchmlx.tensor(weight.float().numpy()).to(getattr(torchmlx, str(weight.dtype)[6:]))
        pack = getattr(module, "packed", None)
        tensor = pack(tensor) if pack and tensor.ndim > 1 else tensor
        setattr(module, leaf, torchmlx.nn.Parameter(tensor, requires_grad=False))
        mx.eval(tensor.mx)
    return ours


if __name__ == "__main__":
    main()
