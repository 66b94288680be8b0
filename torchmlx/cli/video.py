"""What the commands for videos have in common: flags, and a model that is set as planned."""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import InputError
from . import terminal, values


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The model, and how it goes through a video."""
    flag = parser.add_argument
    flag(
        "--vae",
        required=True,
        metavar="DIR",
        help="a diffusers folder with config.json and safetensors, or one that has it in vae/",
    )
    flag("--tile", type=values.pixels, metavar="N", help="height and width of tiles in pixels")
    flag(
        "--stride",
        type=values.pixels,
        metavar="N",
        help="pixels from tile to tile (default: three quarters of --tile)",
    )
    flag("--no-tiling", action="store_true", help="whole frames, whatever memory they take")
    flag(
        "--blend",
        choices=("linear", "cosine"),
        default="linear",
        help="how tiles are mixed: linear as diffusers, cosine without edges (default: linear)",
    )
    flag(
        "--memory-limit",
        type=values.memory,
        metavar="SIZE",
        help="choose tile and dtype so that the process takes at most this, e.g. 4GiB; without\n"
        "it, so that it fits in the memory there is",
    )
    flag(
        "--dtype",
        choices=values.DTYPES,
        help="compute in this dtype (default: the file's); float16 in float32, since these models\n"
        "go beyond it",
    )


def folder_of(args: argparse.Namespace) -> Path:
    """The autoencoder's folder that --vae names."""
    path = Path(args.vae).expanduser()
    inner = path / "vae"
    return inner if not (path / "config.json").is_file() and inner.is_dir() else path


def memory_limit(args: argparse.Namespace) -> int:
    """Bytes that may be taken: what was asked for, or what there is."""
    from ..machine import memory_available

    return args.memory_limit or memory_available() or 1 << 62


def planned(args: argparse.Namespace, job: Any, stored: Any) -> Any:
    """How the job is done within the limit, told on stderr; InputError where it cannot be."""
    import torchmlx as torch

    from ..models.autoencoders import computed_in
    from ..models.tiling import check_tile
    from ..models.video_memory import STRIDE, choose

    if args.no_tiling and (args.tile or args.stride):
        raise InputError("--no-tiling and --tile or --stride: leave one out")
    scale = job.config.scale_factor_spatial
    tiles = [None] if args.no_tiling else None
    if args.tile or args.stride:
        tile = args.tile or 256
        stride = args.stride or int(tile * STRIDE) // scale * scale
        check_tile(tile, stride, scale)
        tiles = [(tile, stride)]
    given = [getattr(torch, args.dtype)] if args.dtype else [stored, torch.bfloat16]
    plan = choose(job, memory_limit(args), list(dict.fromkeys(map(computed_in, given))), tiles)
    how = f"tiles of {plan.tile}, stride {plan.stride}" if plan.tile else "whole frames"
    dtype = str(plan.dtype).removeprefix("torch.")
    print(f"{dtype}, {how}; at most {terminal.size(plan.peak)}", file=sys.stderr)
    return plan


def open_model(folder: Path, args: argparse.Namespace, plan: Any, encode: bool) -> Any:
    """The half of a model that is needed, set as planned, on the GPU where there is one."""
    from ..models.autoencoders import load_autoencoder
    from ..models.loading import default_device

    with terminal.status(f"reading {folder}"):
        model = load_autoencoder(folder, plan.dtype)
        delattr(model, "decoder" if encode else "encoder")
        model = model.to(default_device())
    if plan.tile:
        model.enable_tiling(*(plan.tile,) * 2, *(plan.stride,) * 2, blend=args.blend)
    return model


def decoded(folder: Path, args: argparse.Namespace, latents: Any, stored: Any, config: Any) -> Any:
    """The frames [H, W, C] in uint8 of latents, one by one, with a progress bar."""
    from ..models.autoencoder_kl_wan import frames_of
    from ..models.video_memory import Job

    _, _, count, rows, columns = latents.shape
    scale = config.scale_factor_spatial
    job = Job(config, False, frames_of(count - 1).stop, rows * scale, columns * scale)
    plan = planned(args, job, stored)
    return _decoded(folder, args, latents, plan)


def _decoded(folder: Path, args: argparse.Namespace, latents: Any, plan: Any) -> Iterator[Any]:
    import numpy as np

    import torchmlx as torch

    model = open_model(folder, args, plan, encode=False)
    latents = latents.to(model.post_quant_conv.weight.device)
    with terminal.bar("decoding") as report:
        progress = _by_tiles("decoding", report, latents.shape[2])
        for part in model.decode_frames(latents, torch.uint8, plan.memory, progress):
            yield from np.asarray(part.mx)[0].transpose(1, 2, 3, 0)


def encoded(folder: Path, args: argparse.Namespace, frames: Any, stored: Any, config: Any) -> Any:
    """The mean latents [1, z, t, h, w] of frames [T, H, W, 3] in uint8, with a progress bar."""
    import numpy as np

    from ..models.frame_buffer import FrameBuffer
    from ..models.video_memory import Job

    job = Job(config, True, *frames.shape[:3], held=frames.nbytes)
    plan = planned(args, job, stored)
    if config.in_channels // (config.patch_size or 1) ** 2 == 4:
        frames = np.concatenate([frames, np.full_like(frames[..., :1], 255)], -1)  # opaque
    model = open_model(folder, args, plan, encode=True)
    with terminal.bar("encoding") as report:
        progress = _by_tiles("encoding", report, 1 + (len(frames) - 1) // 4)
        posterior = model.encode(FrameBuffer(frames[None]), progress=progress).latent_dist
    return posterior.mode().float()


def fitted(path: str, frames: Any, scale: int, images: bool) -> Any:
    """The frames that a model takes: 1 + 4 n, sides cut to multiples; what is left out is told."""
    count, height, width = frames.shape[:3]
    rows, columns = height // scale * scale, width // scale * scale
    if not rows or not columns:
        raise InputError(f"{path}: {width} x {height} is smaller than {scale} x {scale} pixels")
    kept = 1 if images else 1 + (count - 1) // 4 * 4
    if (kept, rows, columns) != (count, height, width):
        print(
            f"{path}: {count} frames of {width} x {height} cut to {kept} of {columns} x {rows}, "
            f"which the model takes",
            file=sys.stderr,
        )
    top, left = (height - rows) // 2, (width - columns) // 2
    return frames[:kept, top : top + rows, left : left + columns]


def _by_tiles(message: str, report: Callable[..., None] | None, frames: int) -> Any:
    """A progress function that names tile and latent frame."""
    if report is None:
        return None

    def progress(done: int, total: int) -> None:
        tile, frame = divmod(done - 1, frames)
        where = f"tile {tile + 1} of {total // frames}, " if total > frames else ""
        report(done, total, f"{message}: {where}frame {frame + 1} of {frames}")

    return progress
