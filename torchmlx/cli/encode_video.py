"""`torchmlx encode-video`: a clip to latents."""

import argparse

from . import values, video

EXAMPLES = """\
examples:
  torchmlx encode-video --vae ./vae --input clip.mp4 --out latents.safetensors
  torchmlx encode-video --vae ./vae --input frames/ --frames 33 --out latents.safetensors
"""


def add(commands) -> None:
    """Add the command and its flags to `commands`."""
    parser = commands.add_parser(
        "encode-video",
        help="a clip or frames to latents of a video autoencoder",
        description="Encode a clip with Wan's or Qwen-Image's autoencoders.",
        epilog=EXAMPLES,
    )
    parser.set_defaults(run=run)
    video.add_flags(parser)
    flag = parser.add_argument
    flag("--input", required=True, metavar="FILE", help="a video, a picture, or a folder of frames")
    flag("--out", required=True, metavar="FILE", help="the .safetensors file to write")
    flag("--frames", type=values.frames, metavar="N", help="stop after N frames (default: all)")
    flag(
        "--normalized",
        action="store_true",
        help="write (z - mean) / std by config.json's statistics, as pipelines have latents",
    )


def run(args: argparse.Namespace) -> int:
    """Encode, and say what was written."""
    from pathlib import Path

    from ..errors import InputError
    from ..models.autoencoder_kl_qwenimage21 import QwenImage21Config
    from ..models.autoencoders import describe_autoencoder
    from ..models.clips import read_clip
    from ..models.latents import normalised, write_latents

    folder = video.folder_of(args)
    if Path(args.out).suffix != ".safetensors" or not Path(args.out).parent.is_dir():
        raise InputError(f"{args.out}: give a .safetensors file in a folder that is there")
    config, stored = describe_autoencoder(folder)
    clip = read_clip(args.input, args.frames, video.memory_limit(args))
    images = isinstance(config, QwenImage21Config)
    frames = video.fitted(args.input, clip.frames, config.scale_factor_spatial, images)
    latents = video.encoded(folder, args, frames, stored, config)
    latents = normalised(latents, config) if args.normalized else latents
    notes = {"normalized": "true" if args.normalized else "false"}
    notes |= {"fps": f"{clip.fps:g}"} if clip.fps else {}
    write_latents(args.out, latents, notes)
    print(f"wrote {args.out}: latents {list(latents.shape)} of {len(frames)} frames")
    return 0
