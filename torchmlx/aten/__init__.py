"""The operations, by kind (ATen is torch's own name for them).

Importing this package fills the op table.
"""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every file of operations, then attach Python's operators."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    importlib.import_module(f"{__name__}.operators").install()
