"""Bad input: exit code 2, nothing on stdout, exactly one line on stderr that names the fault."""

import io
import socket
import sys

import pytest

from torchmlx.cli import generate
from torchmlx.errors import InputError

GENERATE = ("generate", "--model", "m", "--prompt", "p")

BAD_FLAGS = [
    (("--temperature", "-1"), "--temperature"),
    (("--temperature", "nan"), "--temperature"),
    (("--temperature", "inf"), "--temperature"),
    (("--temperature", "warm"), "--temperature"),
    (("--temperature", "1e7"), "--temperature"),
    (("--top-p", "-0.01"), "--top-p"),
    (("--top-p", "1.01"), "--top-p"),
    (("--top-k", "-1"), "--top-k"),
    (("--top-k", "1.5"), "--top-k"),
    (("--min-p", "-0.1"), "--min-p"),
    (("--min-p", "1.1"), "--min-p"),
    (("--repetition-penalty", "0"), "--repetition-penalty"),
    (("--repetition-penalty", "1e-300"), "--repetition-penalty"),
    (("--max-tokens", "0"), "--max-tokens"),
    (("--seed", "-1"), "--seed"),
    (("--seed", str(2**64)), "--seed"),
    (("--stop", ""), "--stop"),
    (("--dtype", "int8"), "--dtype"),
    (("--device", "tpu"), "--device"),
    (("--temp", "1"), "--temp"),
    (("--raw", "--system", "s"), "--system"),
    (("--prompt", ""), "prompt is empty"),
    (("--prompt", " \n"), "prompt is empty"),
    (("--prompt", "\udcff"), "not valid UTF-8"),
]


def assert_one_line(outcome, text):
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("torchmlx: error: ")
    assert outcome.err.count("\n") == 1 and outcome.err.endswith("\n")
    assert text in outcome.err


@pytest.mark.parametrize(("flags", "text"), BAD_FLAGS, ids=lambda value: repr(value))
def test_bad_flag(torchmlx, flags, text):
    assert_one_line(torchmlx(*GENERATE, *flags), text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "COMMAND"),
        (("paint",), "'paint'"),
        (("generate", "--prompt", "p"), "--model"),
        (("generate", "--model", "m"), "--prompt"),
        (("convert", "only-one"), "OUT"),
        (("kernels",), "ACTION"),
        (("demo", "smell"), "'smell'"),
    ],
    ids=repr,
)
def test_bad_command(torchmlx, arguments, text):
    assert_one_line(torchmlx(*arguments), text)


def test_empty_stdin(torchmlx, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert_one_line(torchmlx(*GENERATE, "--prompt", "-"), "prompt is empty")


@pytest.fixture
def failing(torchmlx, monkeypatch):
    """Runs a `torchmlx generate` whose work raises the given exception."""

    def run(error):
        def fail(args):
            raise error

        monkeypatch.setattr(generate, "run", fail)
        return torchmlx(*GENERATE)

    return run


def test_input_error_of_several_lines_takes_one(failing):
    assert_one_line(failing(InputError("no such folder:\n  m")), "no such folder: m")


def test_an_endless_input_error_is_cut(failing):
    outcome = failing(InputError("x: " + "y" * 100_000))
    assert_one_line(outcome, "x: yyy")
    assert len(outcome.err) < 1100


def test_interrupt_is_130_and_quiet(failing):
    assert failing(KeyboardInterrupt()) == (130, "", "")


def test_broken_pipe_is_quiet(failing, monkeypatch):
    monkeypatch.setattr("torchmlx.cli._discard_stdout", lambda: None)
    assert failing(BrokenPipeError()) == (141, "", "")


def test_system_error_is_one_line(failing):
    outcome = failing(PermissionError(13, "Permission denied", "/out"))
    assert outcome.code == 1
    assert outcome.err == "torchmlx: error: [Errno 13] Permission denied: '/out'\n"


def test_a_fault_of_ours_is_not_hidden(failing):
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError())


def test_a_port_that_is_taken_is_refused_before_the_model_is_read(torchmlx):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        outcome = torchmlx("serve", "--model", "absent", "--port", port)
    assert_one_line(outcome, "cannot listen at 127.0.0.1")
