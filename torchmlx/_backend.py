"""The first import of MLX, with advice where it cannot work."""

import importlib
import platform


def require_mlx() -> None:
    """Import mlx.core; where that fails, raise an ImportError that says what to install.

    The `mlx` wheel for Linux has the bindings and no backend: without mlx-cpu or mlx-cuda,
    importing it fails with "libmlx.so: cannot open shared object file".
    """
    try:
        importlib.import_module("mlx.core")
    except ImportError as error:
        raise ImportError(f"torchmlx needs {_advice()} ({error})") from error


def _advice() -> str:
    if platform.system() == "Linux":
        return (
            "an MLX backend: pip install 'torchmlx[cpu]', "
            "or 'torchmlx[cuda13]' with an NVIDIA GPU and CUDA 13"
        )
    return "MLX, which runs on macOS 15 or later with Apple silicon: pip install torchmlx"
