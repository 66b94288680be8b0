"""`torchmlx roundtrip`: a picture or clip through a video autoencoder and back."""

import argparse

from . import terminal, values, video


def add(commands) -> None:
    """Add the command and its flags to `commands`."""
    parser = commands.add_parser(
        "roundtrip",
        help="encode and decode a picture or clip: PSNR, SSIM, both side by side",
        description="Encode and decode a picture or clip, and compare the two.",
    )
    parser.set_defaults(run=run)
    video.add_flags(parser)
    flag = parser.add_argument
    flag("--input", required=True, metavar="FILE", help="a picture, a clip, a folder of frames")
    flag(
        "--out",
        default="roundtrip.png",
        metavar="FILE",
        help="the picture to write: originals above, what came back below (default: %(default)s)",
    )
    flag("--frames", type=values.frames, default=17, metavar="N", help="at most (default: 17)")
    flag("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Compare, and say where the picture is."""
    import numpy as np

    from ..models.autoencoder_kl_qwenimage21 import QwenImage21Config
    from ..models.autoencoders import describe_autoencoder
    from ..models.clips import check_output, read_clip, write_clip
    from ..models.likeness import psnr, sheet, ssim

    folder = video.folder_of(args)
    check_output(args.out, 1)
    config, stored = describe_autoencoder(folder)
    images = isinstance(config, QwenImage21Config)
    clip = read_clip(args.input, args.frames, video.memory_limit(args))
    frames = video.fitted(args.input, clip.frames, config.scale_factor_spatial, images)
    latents = video.encoded(folder, args, frames, stored, config)
    back = np.stack(list(video.decoded(folder, args, latents, stored, config)))[..., :3]
    write_clip(args.out, iter([sheet([frames, back])]))
    numbers = {"frames": len(back), "psnr": psnr(frames, back), "ssim": ssim(frames, back)}
    if args.json:
        terminal.print_json(numbers | {"out": args.out})
    else:
        print(
            f"{len(back)} frames: PSNR {numbers['psnr']:.2f} dB, SSIM {numbers['ssim']:.4f}; "
            f"wrote {args.out}"
        )
    return 0
