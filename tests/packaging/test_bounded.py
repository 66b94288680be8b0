"""Tests wait for nothing without a bound."""

import ast

import pytest

from tests import bounded

from .checkout import ROOT

WAITING = {"run", "call", "check_call", "check_output", "Popen"}


def unbounded(tree: ast.AST):
    """Lines that start a program, or wait for one or for a thread, for as long as it takes."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        starts = ast.unparse(node.func.value) == "subprocess" and node.func.attr in WAITING
        waits = node.func.attr in ("join", "communicate") and not node.args
        if (starts or waits) and not any(k.arg in ("timeout", None) for k in node.keywords):
            yield node.lineno


def test_every_wait_of_a_test_has_a_bound():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.name != "bounded.py" and "data" not in path.parts
        for line in unbounded(ast.parse(path.read_text()))
    ]
    assert not found, f"no bound, as tests/bounded.py has them: {found}"


def test_what_does_not_end_is_named():
    with pytest.raises(pytest.fail.Exception, match=r"sleep.*had not ended.*\nsaid"):
        bounded.run(["sh", "-c", "echo said; exec sleep 60"], seconds=0.5)
