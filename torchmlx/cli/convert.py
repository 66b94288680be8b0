"""`torchmlx convert`: other checkpoint formats to a Hugging Face folder."""

import argparse

from . import terminal, values

EXAMPLES = """\
examples:
  torchmlx convert SmolLM2-135M-Instruct.Q4_1.gguf ./SmolLM2-135M
  torchmlx convert model.gguf ./model --dtype float16 --force
"""


def add(commands) -> None:
    """Add the command and its flags to `commands`."""
    parser = commands.add_parser(
        "convert",
        help="turn a GGUF file into a Hugging Face folder",
        description="Write a Hugging Face folder (config, tokenizer, safetensors) that\n"
        "`torchmlx generate` and transformers read.",
        epilog=EXAMPLES,
    )
    parser.set_defaults(run=run)
    parser.add_argument("src", metavar="SRC", help="a GGUF file")
    parser.add_argument("out", metavar="OUT", help="the folder to write")
    parser.add_argument(
        "--dtype", choices=values.DTYPES, help="dtype of the written weights (default: bfloat16)"
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")


def run(args: argparse.Namespace) -> int:
    """Convert and say where the result is."""
    from ..models.convert import convert

    with terminal.status(f"converting {args.src}"):
        convert(args.src, args.out, dtype=args.dtype, force=args.force)
    print(f"wrote {args.out}")
    return 0
