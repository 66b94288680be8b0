"""The command `torchmlx`: one module a command, which imports what it needs when it runs."""

import argparse
import contextlib
import importlib.metadata
import os
import signal
import sys
import threading
from collections.abc import Iterator

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
        if args.command == "run":  # its stdout and signals are the script's
            return finished(args)
        terminal.print_anything()
        with unwound_by_signals():
            return finished(args)
    except InputError as error:
        return _complain(error, BAD_INPUT)
    except BrokenPipeError:
        _discard_stdout()
        return BROKEN_PIPE
    except OSError as error:
        return _complain(error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED


def finished(args: argparse.Namespace) -> int:
    """The command's exit code, once what it printed is out."""
    code = args.run(args)
    sys.stdout.flush()
    return code


@contextlib.contextmanager
def unwound_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit in the block (128 + number): no partial file stays.

    Signals that somebody handles or ignores already, as nohup does, are left alone.
    """

    def unwind(number: int, _) -> None:
        raise SystemExit(128 + number)

    found = []
    if threading.current_thread() is threading.main_thread():
        numbers = (signal.SIGTERM, signal.SIGHUP)
        found = [n for n in numbers if signal.getsignal(n) is signal.SIG_DFL]
    for number in found:
        signal.signal(number, unwind)
    try:
        yield
    finally:
        for number in found:
            signal.signal(number, signal.SIG_DFL)


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
