"""Operations that torch lacks and models need, on Tensors: from the op table (torchmlx/aten).

Other names are namespaces of operators that libraries define, as in torch.ops: see library.py.
"""

from __future__ import annotations

from typing import Any, NoReturn


def load_library(path: Any) -> NoReturn:
    """OSError: a shared library of operators is compiled for PyTorch. torch.ops.load_library."""
    raise OSError(f"{path} is compiled for PyTorch: torchmlx cannot load it")


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    from . import library

    return library.Namespace(name)
