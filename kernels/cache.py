"""Where torchmlx keeps on disk what it compiled and fetched."""

import os
from pathlib import Path


def cache_root() -> Path:
    """$TORCHMLX_CACHE, else `torchmlx` in the user's cache ($XDG_CACHE_HOME or ~/.cache)."""
    if named := os.environ.get("TORCHMLX_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchmlx"
