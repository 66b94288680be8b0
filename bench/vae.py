"""Video autoencoders' decoders against diffusers on torch's CPU, in float32 and bfloat16.

Both have the same weights and latents, and take turns. Seconds are medians; a ratio above one says
that ours is faster. wan22-mini is trained and small, Wan2.2 has its real sizes and random weights.
"""

import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from diffusers.models.autoencoders import autoencoder_kl_wan as diffusers_wan

import torchmlx
from torchmlx.kernels import native
from torchmlx.models.autoencoder_kl_wan import AutoencoderKLWan, Config

from .vae_model import WAN22

ROOT = Path(__file__).parent.parent
SHARED = Path(os.environ.get("TORCHMLX_SHARED", ROOT / "shared"))
SIZE = 256  # pixels: one tile
# Latent frames and turns: a frame of the real one takes seconds.
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


def measure(name: str, dtype: str, theirs: Any) -> None:
    """Time both by turns, and say how alike they are on -1..1."""
    ours = like(theirs)
    frames, turns = RUNS[name]
    side = SIZE // theirs.config["scale_factor_spatial"]
    shape = (1, theirs.config["z_dim"], frames, side, side)
    z = np.random.default_rng(0).standard_normal(shape, np.float32)
    z_ours = torchmlx.tensor(z).to(getattr(torchmlx, dtype))
    z_theirs = torch.tensor(z).to(getattr(torch, dtype))

    def decode_ours() -> np.ndarray:
        return ours.decode(z_ours).sample.float().numpy()

    @torch.inference_mode()
    def decode_theirs() -> np.ndarray:
        return theirs.decode(z_theirs).sample.float().numpy()

    seconds: tuple[list[float], ...] = ([], [])
    videos: list[Any] = [None, None]
    for _ in range(turns):
        for i, decode in enumerate((decode_ours, decode_theirs)):
            start = time.perf_counter()
            videos[i] = decode()
            seconds[i].append(time.perf_counter() - start)
    mine, other = (median(each) for each in seconds)
    psnr = 10 * np.log10(4 / float(((videos[0] - videos[1]) ** 2).mean()))
    print(
        f"{name + ', ' + dtype:24}{videos[0].shape[2]:8}{mine:8.2f} s{other:10.2f} s"
        f"{other / mine:7.2f}x{psnr:7.1f} dB",
        flush=True,
    )


def mini() -> Any:
    """The trained one, of the folder shared/."""
    return diffusers_wan.AutoencoderKLWan.from_pretrained(SHARED / "assets/wan22-mini")


def wan22() -> Any:
    """Wan2.2's decoder; there is no encoder."""
    with torch.device("meta"):
        model: Any = diffusers_wan.AutoencoderKLWan(**WAN22)
    model.encoder = model.quant_conv = torch.nn.Identity()
    model = model.to_empty(device="cpu").requires_grad_(False)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "gamma" in name:
            parameter.fill_(1)
        else:
            parameter.uniform_(-1, 1).mul_(parameter[0].numel() ** -0.5)
    return model


def like(theirs: Any) -> AutoencoderKLWan:
    """Ours with the same weights; what they lack stays without numbers."""
    with torchmlx.device("meta"):
        ours = AutoencoderKLWan(Config.from_dict(dict(theirs.config)))
    dtype = getattr(torchmlx, str(theirs.dtype).removeprefix("torch."))
    for name, weight in theirs.named_parameters():
        owner, _, leaf = name.rpartition(".")
        module: Any = ours.get_submodule(owner)
        tensor = torchmlx.tensor(weight.detach().float().numpy()).to(dtype)
        tensor = module.packed(tensor) if tensor.ndim > 1 else tensor
        mx.eval(tensor.mx)
        setattr(module, leaf, torchmlx.nn.Parameter(tensor, requires_grad=False))
    mx.clear_cache()
    return ours


if __name__ == "__main__":
    main()
