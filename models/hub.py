"""A model's name to a local folder: a path stays a path, a hub name is downloaded."""

import os
import re
import sys
from pathlib import Path

from ..errors import InputError

# Text and weights; never pickles, which can run code, and no second copy in another format.
ALLOWED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
# Duplicates that some repositories carry beside the Hugging Face layout.
IGNORED = ["original/*", "onnx/*", "openvino/*", "consolidated*.safetensors", "*/.*"]
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def resolve(model: str | os.PathLike[str], revision: str | None = None) -> Path:
    """The local path of `model`: an existing path as it is, else a hub repository's snapshot.

    An existing path never touches the network. A download shows progress on a terminal only. Raises
    InputError for a path that does not exist and for anything that goes wrong on the way.
    """
    name = os.fspath(model)
    path = Path(name).expanduser()
    if path.exists():
        if revision is not None:
            raise InputError(f"{name}: a revision is for hub names, and this is a local path")
        return path
    if _looks_like_path(name):
        raise InputError(f"{name}: no such folder; check the path")
    return _download(name, revision)


def _looks_like_path(name: str) -> bool:
    suffixes = (".gguf", ".safetensors", ".json")
    return not _HUB_NAME.fullmatch(name) or name.endswith(suffixes) or ".." in name


def _download(name: str, revision: str | None) -> Path:
    # Importing huggingface_hub takes a while, and local paths do without it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    (enable_progress_bars if sys.stderr.isatty() else disable_progress_bars)()
    try:
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=ALLOWED, ignore_patterns=IGNORED
            )
        )
    except Exception as error:  # the hub's client raises many kinds: HTTP, DNS, disk, validation
        raise InputError(f"{name}: {_explain(error, revision)}") from None


def _explain(error: Exception, revision: str | None) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "the repository is gated; accept its terms on huggingface.co, then `hf auth login`"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the repository has no revision {revision!r}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            "no such folder here and no such repository on the hub (a private one: hf auth login)"
        )
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        return "no such folder here, and the hub cannot be reached; check the network"
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        return f"the download failed: {error.strerror}"
    reason = " ".join(str(error).split())[:200]
    return f"no such folder here, and the download failed ({type(error).__name__}: {reason})"
