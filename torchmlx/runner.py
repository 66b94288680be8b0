"""Runs scripts that say `import torch` on torchmlx: both names are the same module objects.

The aliases are for the whole process and are set before the script starts, so that everything it
imports, third-party libraries too, meets torchmlx. `missing_names` tells what a source uses of
torch that is not here.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import multiprocessing
import multiprocessing.spawn
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

import torchmlx

TORCH = "torch"


class _Distribution(importlib.metadata.Distribution):
    """What importlib.metadata.version("torch") finds; libraries ask it before they import torch."""

    def read_text(self, filename: str) -> str | None:
        text = f"Metadata-Version: 2.1\nName: torch\nVersion: {torchmlx.__version__}\n"
        return text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        return Path(path)


class _Aliases(importlib.metadata.DistributionFinder, importlib.abc.Loader):
    """Imports torch.X as the module object that torchmlx.X is."""

    def find_spec(self, name, path=None, target=None):
        if name == _SAFETENSORS:
            return _bytes_mended(path)
        if name != TORCH and not name.startswith(f"{TORCH}."):
            return None
        try:
            found = importlib.util.find_spec(_ours(name))
        except ModuleNotFoundError:  # a parent is none of ours
            return None
        if found is None:
            return None
        package = found.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(name, self, is_package=package)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(_ours(spec.name))
        self._own = module, module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        known, spec = self._own
        if known is module:  # Python has just set the alias's: relative imports want the real one
            module.__spec__ = spec

    def find_distributions(self, context: Any = None) -> Iterator[importlib.metadata.Distribution]:
        if context is None or context.name in (None, TORCH):
            yield _Distribution()


_SAFETENSORS = "safetensors.torch"
# The dtypes that MLX's arrays hold as bytes.
_FLOAT8 = {"F8_E4M3": torchmlx.float8_e4m3fn, "F8_E5M2": torchmlx.float8_e5m2}


def _bytes_mended(path: Any) -> importlib.machinery.ModuleSpec | None:
    """The spec of safetensors.torch, whose saving reads memory at `data_ptr()`, here an invented
    number, and whose load_file makes torch's storages: it gets our bytes and our reader.
    """
    spec = importlib.machinery.PathFinder.find_spec(_SAFETENSORS, path)
    if spec is None or spec.loader is None:
        return spec
    run = spec.loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        module._to_ndarray = _bytes_of  # type: ignore[attr-defined]
        module.load_file = _load_file  # type: ignore[attr-defined]

    spec.loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


def _bytes_of(tensor: Any) -> tuple[np.ndarray, Any]:
    """A tensor's bytes, and what has to live as long: what safetensors' function gives."""
    array = tensor.detach().cpu().contiguous().mx
    return np.array(array.reshape(-1).view(mx.uint8)), tensor


def _load_file(filename: Any, device: Any = "cpu", **_: Any) -> dict[str, Any]:
    """The tensors of a safetensors file. safetensors.torch.load_file."""
    from .core.tensor import from_array
    from .serialization.safetensors import SafetensorsFile

    with SafetensorsFile(filename) as file:
        return {
            info.name: from_array(array, dtype=_FLOAT8.get(info.dtype)).to(device)
            for info, array in file.items()
        }


def _ours(name: str) -> str:
    return torchmlx.__name__ + name.removeprefix(TORCH)


def install() -> None:
    """From now on `import torch`, and any `torch.X`, gives torchmlx; real torch is out of reach."""
    loaded = sys.modules.get(TORCH)
    if loaded is torchmlx:
        return
    if loaded is not None:
        raise RuntimeError("torch has been imported already: run the script in a new process")
    sys.meta_path.insert(0, _Aliases())
    for name, module in list(sys.modules.items()):
        if name == torchmlx.__name__ or name.startswith(f"{torchmlx.__name__}."):
            sys.modules[TORCH + name.removeprefix(torchmlx.__name__)] = module
    _install_in_children()


def _install_in_children() -> None:
    """Let processes that multiprocessing starts anew, by "spawn" or "forkserver", begin alike."""
    root = str(Path(torchmlx.__path__[0]).parent)
    begin = (
        f"import sys; sys.path.append({root!r}); from torchmlx import runner; runner.install(); "
    )
    plain = multiprocessing.spawn.get_command_line

    def get_command_line(**settings: Any) -> list[str]:
        command = plain(**settings)
        if "-c" in command:  # not in a frozen program
            code = command.index("-c") + 1
            command[code] = begin + command[code]
        return command

    multiprocessing.spawn.get_command_line = get_command_line
    multiprocessing.set_forkserver_preload(["torchmlx.preload"])


# ---- what of torch a source uses


class Missing(NamedTuple):
    """A name of torch that is not here, and where a source says it."""

    file: str
    line: int
    name: str


def missing_names(files: Iterable[str | Path]) -> list[Missing]:
    """Names of torch in these Python files that torchmlx lacks, once a line, in order.

    Names are found by what the files import (`import torch.nn.functional as F` makes F.relu a name
    of torch); methods of tensors have no such mark and are not found.
    """
    found = set()
    for file in files:
        uses = _Uses()
        uses.visit(ast.parse(Path(file).read_bytes()))
        for line, name in uses.found:
            if (missing := _first_missing(name)) is not None:
                found.add(Missing(str(file), line, missing))
    return sorted(found)


class _Uses(ast.NodeVisitor):
    """Every dotted name of torch with its line."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []
        self._bound: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.partition(".")[0] == TORCH:
                self.found.append((node.lineno, alias.name))
                self._bound[alias.asname or TORCH] = alias.name if alias.asname else TORCH

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level or module.partition(".")[0] != TORCH:
            return
        for alias in node.names:
            name = module if alias.name == "*" else f"{module}.{alias.name}"
            self.found.append((node.lineno, name))
            self._bound[alias.asname or alias.name] = name

    def visit_Attribute(self, node: ast.Attribute) -> None:
        parts, value = [node.attr], node.value
        while isinstance(value, ast.Attribute):
            parts.append(value.attr)
            value = value.value
        if isinstance(value, ast.Name) and value.id in self._bound:
            name = ".".join([self._bound[value.id], *reversed(parts)])
            self.found.append((node.lineno, name))
        else:
            self.generic_visit(node)


def _first_missing(name: str) -> str | None:
    """The first part of a dotted name that torchmlx lacks, dotted; None when all is there."""
    parts = name.split(".")
    found: Any = torchmlx
    for n, part in enumerate(parts[1:], 2):
        here = ".".join(parts[:n])
        try:
            found = getattr(found, part)
        except AttributeError:
            if not isinstance(found, ModuleType):
                # An attribute of an object: of a class we know all, of an instance we do not.
                return here if isinstance(found, type) else None
            try:
                found = importlib.import_module(_ours(here))
            except ImportError:
                return here
    return None
