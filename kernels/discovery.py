"""Which kernels there are: every file in this folder that ends in `KERNEL = Kernel(...)`."""

from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .kernel import Kernel

FOLDER = Path(__file__).parent


@lru_cache
def names() -> tuple[str, ...]:
    """Names of all kernels, sorted, found without importing them."""
    files = (path for path in FOLDER.glob("*.py") if "\nKERNEL = Kernel(" in path.read_text())
    return tuple(sorted(path.stem for path in files))


def get(name: str) -> "Kernel":
    """The kernel of that name; KeyError names the ones there are."""
    if name not in names():
        raise KeyError(f"no kernel {name!r}; there are: {', '.join(names())}")
    kernel = import_module(f".{name}", __package__).KERNEL
    if kernel.name != name:
        raise ImportError(f"{name}.py calls its kernel {kernel.name!r}; name it after the file")
    return kernel
