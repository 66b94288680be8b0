"""torch.backends.mps."""

import sys as _sys

from ..mps import is_available as is_available


def is_built() -> bool:
    """Whether this system's MLX has Metal: a Mac."""
    return _sys.platform == "darwin"


def is_macos13_or_newer() -> bool:
    """Whether there is a Metal GPU: MLX needs macOS 15 or newer."""
    return is_available()
