"""`torchmlx eval`: how well a model predicts a text, to compare checkpoints of one model."""

import argparse
import math
from pathlib import Path

from ..errors import InputError
from . import generate, terminal, values


def add(commands) -> None:
    """Add the command and its flags to `commands`."""
    parser = commands.add_parser(
        "eval",
        help="negative log-likelihood of a text, for instance before and after quantising",
        description="Negative log-likelihood (nats) of a text: per token, and per byte, which\n"
        "compares models with different tokenizers. The text is cut into pieces of the context's\n"
        "length; the first token of a piece is given, not predicted.",
    )
    parser.set_defaults(run=run)
    flag = parser.add_argument
    generate.add_model_flag(flag)
    flag("--text", required=True, metavar="FILE", help="a text file in UTF-8")
    flag(
        "--context",
        type=values.max_tokens,
        default=2048,
        metavar="N",
        help="tokens of a piece, at least 2, at most the model's positions (default: 2048)",
    )
    flag("--json", action="store_true", help="one JSON object on stdout")
    generate.add_model_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Load, score, report."""
    from ..models.score import score

    text = read_text(args.text)
    model, tokenizer = generate.load_model(args)
    with terminal.bar("scoring") as progress:
        found = score(model, tokenizer, text, args.context, progress)
    if args.json:
        terminal.print_json(
            {
                "nll_per_token": found.per_token,
                "nll_per_byte": found.per_byte,
                "perplexity": math.exp(min(found.per_token, 700)),
                "tokens": found.tokens,
                "bytes": found.bytes,
            }
        )
    else:
        print(
            f"nll per token: {found.per_token:.6f} (perplexity "
            f"{math.exp(min(found.per_token, 700)):.4f}), per byte: {found.per_byte:.6f}; "
            f"{found.tokens} tokens, {found.bytes} bytes"
        )
    return 0


def read_text(name: str) -> str:
    """The file's text, as it stands."""
    try:
        return Path(name).read_bytes().decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not UTF-8 text at byte {error.start}") from None
    except OSError as error:
        raise InputError(f"{name}: cannot read it: {error.strerror}") from None
