"""`torchmlx decode-video`: latents to a clip."""

import argparse
import time

from . import values, video

EXAMPLES = """\
examples:
  torchmlx decode-video --vae ./Wan2.2 --latents z.pt --normalized --out clip.mp4 --fps 24
  torchmlx decode-video --vae ./vae --latents latents.safetensors --out frames --memory-limit 4GiB
"""


def add(commands) -> None:
    """Add the command and its flags to `commands`."""
    parser = commands.add_parser(
        "decode-video",
        help="latents of a video autoencoder to a clip",
        description="Decode latents of Wan's or Qwen-Image's autoencoders.",
        epilog=EXAMPLES,
    )
    parser.set_defaults(run=run)
    video.add_flags(parser)
    flag = parser.add_argument
    flag(
        "--latents",
        required=True,
        metavar="FILE",
        help="[1, z, t, h, w] in .safetensors, .npy or .pt",
    )
    flag(
        "--out",
        required=True,
        metavar="FILE",
        help=".mp4, .gif, .webp, .png, or a folder for png files; appears when complete",
    )
    flag("--fps", type=values.fps, metavar="N", help="frames a second (default: file's, or 16)")
    flag("--codec", default="h264", help="ffmpeg's name of a video codec (default: h264)")
    flag(
        "--normalized",
        action="store_true",
        help='latents are (z - mean) / std, as pipelines return them with output_type="latent"',
    )


def run(args: argparse.Namespace) -> int:
    """Decode, and say what was written."""
    from ..errors import InputError
    from ..models.autoencoder_kl_wan import frames_of
    from ..models.autoencoders import describe_autoencoder
    from ..models.clips import FPS, check_output, write_clip
    from ..models.latents import denormalised, read_latents

    start, folder = time.perf_counter(), video.folder_of(args)
    config, stored = describe_autoencoder(folder)
    latents, notes = read_latents(args.latents, config.z_dim)
    check_output(args.out, frames_of(latents.shape[2] - 1).stop, args.codec)
    if args.normalized and notes.get("normalized") == "false":
        raise InputError(f"{args.latents}: says that it is not normalised; leave --normalized out")
    if args.normalized or notes.get("normalized") == "true":
        latents = denormalised(latents, config)
    count = 0

    def counted(frames):
        nonlocal count
        for frame in frames:
            count += 1
            yield frame

    frames = counted(video.decoded(folder, args, latents, stored, config))
    write_clip(args.out, frames, args.fps or _rate(notes) or FPS, args.codec)
    print(f"wrote {args.out}: {count} frames in {time.perf_counter() - start:.1f} s")
    return 0


def _rate(notes: dict[str, str]) -> float | None:
    """What `encode-video` noted."""
    try:
        return values.fps(notes["fps"])
    except (KeyError, argparse.ArgumentTypeError):
        return None
