"""torch.hub: weights from the network, kept in torch's own cache folder.

Repositories with a hubconf.py (torch.hub.load) are not fetched: they would run code.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from .serialization import load

# The start of a digest in a file's name, as timm reads it too.
HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")

_folder: str | None = None


def _get_torch_home() -> str:
    home = os.getenv("TORCH_HOME")
    if home is None:
        home = os.path.join(os.getenv("XDG_CACHE_HOME", "~/.cache"), "torch")
    return os.path.expanduser(home)


def get_dir() -> str:
    """The cache folder: $TORCH_HOME/hub, by default ~/.cache/torch/hub."""
    return _folder if _folder is not None else os.path.join(_get_torch_home(), "hub")


def set_dir(d: str | os.PathLike) -> None:
    """Keep what is fetched in another folder."""
    global _folder
    _folder = os.path.expanduser(d)


def download_url_to_file(
    url: str, dst: str, hash_prefix: str | None = None, progress: bool = True
) -> None:
    """Fetch `url` to the file `dst`; RuntimeError unless its SHA-256 begins with hash_prefix."""
    target, sha = Path(dst).expanduser(), hashlib.sha256()
    with (
        urllib.request.urlopen(url) as source,
        tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as part,
    ):
        try:
            while block := source.read(1 << 20):
                sha.update(block)
                part.write(block)
            digest = sha.hexdigest()
            if hash_prefix and not digest.startswith(hash_prefix):
                raise RuntimeError(f'invalid hash value (expected "{hash_prefix}", got "{digest}")')
        except BaseException:
            os.unlink(part.name)
            raise
    os.replace(part.name, target)


def load_state_dict_from_url(
    url: str, model_dir: str | None = None, map_location: Any = None, progress: bool = True,
    check_hash: bool = False, file_name: str | None = None, weights_only: bool = True,
) -> Any:  # fmt: skip
    """torch.load of a file on the network, fetched once into model_dir (get_dir()/checkpoints).

    check_hash: the file's name ends in -XXXX, the first digits of its SHA-256.
    """
    folder = Path(model_dir) if model_dir is not None else Path(get_dir(), "checkpoints")
    name = file_name or os.path.basename(urlparse(url).path)
    file = folder / name
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        sys.stderr.write(f'Downloading: "{url}" to {file}\n')
        prefix = Path(name).stem.rpartition("-")[2] if check_hash else None
        download_url_to_file(url, str(file), prefix, progress)
    return load(file, map_location=map_location, weights_only=weights_only)
