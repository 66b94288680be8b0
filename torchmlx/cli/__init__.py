"""The command `torchmlx`: one module a command, which imports what it needs when it runs."""

import argparse
import contextlib
import importlib.metadata
import os
import sys

from ..errors import InputError
from . import (
    chat,
    convert,
    decode_video,
    demo,
    doctor,
    encode_video,
    evaluate,
    generate,
    kernels,
    roundtrip,
    run,
    serve,
    terminal,
)

COMMANDS = (
    generate,
    chat,
    serve,
    evaluate,
    convert,
    decode_video,
    encode_video,
    roundtrip,
    run,
    demo,
    kernels,
    doctor,
)

LONGEST = 1000
BAD_INPUT, FAILED, INTERRUPTED, BROKEN_PIPE = 2, 1, 130, 141


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; bad input is one line on stderr and code 2."""
    try:
        args = build_parser().parse_args(argv)
        if args.command != "run":  # whose stdout is the script's
            terminal.print_anything()
        code = args.run(args)
        sys.stdout.flush()
        return code
    except InputError as error:
        return _complain(error, BAD_INPUT)
    except BrokenPipeError:
        _discard_stdout()
        return BROKEN_PIPE
    except OSError as error:
        return _complain(error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are InputErrors, so that they too take one line."""

    def __init__(self, **options):
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str):
        raise InputError(f"{message}; see `{self.prog} --help`")


def build_parser() -> argparse.ArgumentParser:
    """The parser of `torchmlx` with every command in it."""
    parser = Parser(
        prog="torchmlx",
        description="Hugging Face checkpoints on Apple's MLX: generate text, code videos,\n"
        "convert files, and see what runs on this machine.",
        epilog="`torchmlx COMMAND --help` tells a command's flags, units and defaults.\n"
        "Exit codes: 0 done, 2 bad input (one line on stderr says what to do).",
    )
    parser.add_argument("--version", action="version", version=f"torchmlx {version()}")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for command in COMMANDS:
        command.add(commands)
    return parser


def version() -> str:
    """The installed version of torchmlx; a bare checkout has none."""
    try:
        return importlib.metadata.version("torchmlx")
    except importlib.metadata.PackageNotFoundError:
        return "(checkout, not installed)"


def _complain(error: Exception, code: int) -> int:
    text = " ".join(str(error).split())
    # A file's longest names and values are not told whole.
    text = text if len(text) <= LONGEST else text[: LONGEST - 4] + " ..."
    print("torchmlx: error:", text, file=sys.stderr)
    return code


def _discard_stdout() -> None:
    """Point stdout at nothing: at exit Python flushes it again, into the pipe nobody reads."""
    with contextlib.suppress(OSError, ValueError):  # stdout without a descriptor has no pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
