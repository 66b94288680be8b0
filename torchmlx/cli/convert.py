"""`torchmlx convert`: a GGUF file, or a folder in other types, to a Hugging Face folder."""

import argparse

from . import terminal, values

EXAMPLES = """\
examples:
  torchmlx convert SmolLM2-135M-Instruct.Q4_1.gguf ./SmolLM2-135M
  torchmlx convert model.gguf ./model --dtype float16 --force
  torchmlx convert ./Qwen3.6-35B-A3B ./Qwen3.6-35B-A3B-FP8 --quantize fp8
"""


def add(commands) -> None:
    """Add the command and its flags to `commands`."""
    parser = commands.add_parser(
        "convert",
        help="turn a GGUF file into a Hugging Face folder; change or quantise weights",
        description="Write a Hugging Face folder (config, tokenizer, safetensors) that\n"
        "`torchmlx generate` and transformers read.",
        epilog=EXAMPLES,
    )
    parser.set_defaults(run=run)
    parser.add_argument("src", metavar="SRC", help="a GGUF file or a Hugging Face folder")
    parser.add_argument("out", metavar="OUT", help="the folder to write")
    parser.add_argument(
        "--dtype",
        choices=values.DTYPES,
        help="dtype of the written weights (default: bfloat16 from GGUF, else as they are)",
    )
    parser.add_argument(
        "--quantize",
        choices=("fp8", "int8", "int4", "mxfp8", "mxfp4"),
        help="write a folder's weights in fewer bits. fp8: e4m3 with 128 x 128 scales in Hugging\n"
        "Face's layout; the others: groups of 64 (int) or 32 (mx) in mlx-community's layout",
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")


def run(args: argparse.Namespace) -> int:
    """Convert and say where the result is."""
    from ..models.convert import convert

    with terminal.status(f"converting {args.src}"):
        convert(args.src, args.out, args.dtype, args.force, args.quantize)
    print(f"wrote {args.out}")
    return 0
