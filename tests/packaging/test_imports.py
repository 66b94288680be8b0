"""One import name: nothing is ever imported as top-level `kernels` or `models`."""

import ast
import itertools
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

from .checkout import ROOT, run_python, tracked_files

# Distributions whose module has another name.
MODULES = {"pillow": "PIL"}

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


def imported_roots(path: Path) -> set[str]:
    """First names of the absolute imports in a module."""
    roots = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            roots.add(str(node.module).partition(".")[0])
    return roots


def guilty(forbidden: set[str], *folders: str) -> list[str]:
    """Tracked modules in these folders that import one of the forbidden names."""
    modules = [path for path in tracked_files(*folders) if path.suffix == ".py"]
    assert modules
    return [str(path) for path in modules if forbidden & imported_roots(path)]


def test_no_source_names_a_top_level_room():
    assert guilty({"kernels", "models"}) == []


def test_arrows_point_down():
    assert guilty({"torchmlx", "bench", "tests"}, "kernels") == []
    assert guilty({"bench", "tests"}, "torchmlx", "models") == []


def test_torch_and_transformers_are_only_the_oracle():
    assert guilty({"torch", "transformers"}, "torchmlx", "kernels", "models") == []


def test_third_party_imports_are_declared():
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, build = configuration["project"], configuration["build-system"]["requires"]
    extras = project["optional-dependencies"].values()
    wanted = [*build, *project["dependencies"], *itertools.chain.from_iterable(extras)]
    declared = {re.match(r"[\w-]+", name)[0].lower().replace("-", "_") for name in wanted}
    declared = {MODULES.get(name, name) for name in declared}
    ours = {"torchmlx", "bench", "tests"}
    modules = [path for path in tracked_files() if path.suffix == ".py"]
    used = set().union(*map(imported_roots, modules))
    assert used - declared - ours - sys.stdlib_module_names == set()
