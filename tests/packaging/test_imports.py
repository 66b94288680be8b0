"""One import name: nothing is ever imported as top-level `kernels` or `models`."""

import ast
import os

import pytest

from .checkout import ROOT, run_python, tracked_files

STRAYS = """
import sys
strays = sorted(n for n in sys.modules if n.partition(".")[0] in ("kernels", "models"))
assert not strays, strays
"""

IMPORT_EVERYTHING = """
import importlib, pkgutil, torchmlx
for module in pkgutil.walk_packages(torchmlx.__path__, "torchmlx."):
    importlib.import_module(module.name)
"""


@pytest.mark.parametrize("name", ["kernels", "models"])
def test_rooms_are_relative_symlinks(name):
    assert os.readlink(ROOT / "torchmlx" / name) == f"../{name}"


def test_import_from_the_repository_root():
    run_python("-c", IMPORT_EVERYTHING + STRAYS, cwd=ROOT)


@pytest.mark.parametrize("command", ["kernels list", "doctor"])
def test_commands_from_the_repository_root(command):
    run = f"from torchmlx.cli import main; assert main({command.split()!r}) == 0"
    run_python("-c", run + STRAYS, cwd=ROOT)


def test_python_m_torchmlx_and_bench_from_the_repository_root():
    assert run_python("-m", "torchmlx", "--version", cwd=ROOT).startswith("torchmlx ")
    assert run_python("-m", "bench", cwd=ROOT)


def test_import_stays_light():
    heavy = ("torch", "transformers", "huggingface_hub", "tokenizers", "gguf", "rich", "jinja2")
    ask = f"import sys, torchmlx; print([n for n in {heavy!r} if n in sys.modules])"
    assert run_python("-c", ask, cwd=ROOT).strip() == "[]"


def imported_roots(source: str) -> set[str]:
    """First names of the absolute imports in a module."""
    roots = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            roots.add(node.module.partition(".")[0])
    return roots


def test_no_source_names_a_top_level_room():
    sources = [path for path in tracked_files() if path.suffix == ".py"]
    assert sources
    guilty = [
        str(path)
        for path in sources
        if {"kernels", "models"} & imported_roots((ROOT / path).read_text())
    ]
    assert guilty == []


@pytest.mark.parametrize(
    ("room", "forbidden"), [("kernels", {"torchmlx", "torch"}), ("models", {"torch"})]
)
def test_arrows_point_down(room, forbidden):
    guilty = [
        str(path)
        for path in tracked_files(room)
        if path.suffix == ".py" and forbidden & imported_roots((ROOT / path).read_text())
    ]
    assert guilty == []
