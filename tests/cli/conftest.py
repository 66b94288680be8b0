"""`torchmlx ...` in this process: exit code, stdout and stderr of one command."""

from typing import NamedTuple

import pytest

from torchmlx.cli import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def torchmlx(capsys):
    """Runs `torchmlx ARGUMENTS...` and returns its Outcome."""

    def run(*arguments: str) -> Outcome:
        try:
            code = main(list(arguments))
        except SystemExit as exit:  # argparse leaves this way after --help and --version
            code = exit.code
        return Outcome(code, *capsys.readouterr())

    return run
