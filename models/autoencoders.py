"""The autoencoder in a folder, of whichever class its config.json names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import InputError
from .autoencoder_kl_qwenimage import AutoencoderKLQwenImage
from .autoencoder_kl_qwenimage21 import AutoencoderKLQwenImage21
from .autoencoder_kl_wan import AutoencoderKLWan, read_config

CLASSES = {
    kind.__name__: kind
    for kind in (AutoencoderKLWan, AutoencoderKLQwenImage, AutoencoderKLQwenImage21)
}


def load_autoencoder(path: str | Path, torch_dtype: Any = None) -> AutoencoderKLWan:
    """The model of a diffusers folder, in `torch_dtype` or the file's.

    Raises InputError for a folder that is none, for a class that is not here, and for weights that
    do not fit.
    """
    name = read_config(Path(path)).get("_class_name", AutoencoderKLWan.__name__)
    if (kind := CLASSES.get(str(name))) is None:
        raise InputError(f"{path}: {name!r} is not supported; {', '.join(CLASSES)} are")
    return kind.from_pretrained(path, torch_dtype)
