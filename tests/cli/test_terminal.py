import pytest

from torchmlx.cli import terminal


def test_piped_table_is_aligned_and_never_wrapped(capsys):
    terminal.print_table(("name", "what"), [("a", "x" * 200), ("longer", "[b]")])
    assert capsys.readouterr().out == f"name    what\na       {'x' * 200}\nlonger  [b]\n"


def test_table_on_a_terminal_keeps_brackets(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    terminal.print_table(("name",), [("[bold]",)])
    assert "[bold]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0.0 MiB"), (5e6, "4.8 MiB"), (107e6, "102.0 MiB"), (108e6, "0.10 GiB")],
)
def test_a_size_has_the_unit_that_shows_it(count, text):
    assert terminal.size(count) == text


def test_no_spinner_in_a_pipe(capsys):
    with terminal.status("working"):
        pass
    assert capsys.readouterr() == ("", "")
