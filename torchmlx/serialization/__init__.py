"""Reading and writing of weights: torch.save's formats, and safetensors."""

from .loading import load
from .pickles import (
    LoadError,
    add_safe_globals,
    clear_safe_globals,
    get_safe_globals,
    safe_globals,
)
from .saving import save

__all__ = [
    "LoadError",
    "add_safe_globals",
    "clear_safe_globals",
    "get_safe_globals",
    "load",
    "safe_globals",
    "save",
]
