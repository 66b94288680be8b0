"""The autoencoder in a folder, of whichever class its config.json names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torchmlx as torch

from ..errors import InputError
from ..serialization.safetensors import SafetensorsFile
from .autoencoder_kl_qwenimage import AutoencoderKLQwenImage
from .autoencoder_kl_qwenimage21 import AutoencoderKLQwenImage21
from .autoencoder_kl_wan import AutoencoderKLWan, Config, read_config, weights_file

CLASSES = {
    kind.__name__: kind
    for kind in (AutoencoderKLWan, AutoencoderKLQwenImage, AutoencoderKLQwenImage21)
}

STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def load_autoencoder(path: str | Path, torch_dtype: Any = None) -> AutoencoderKLWan:
    """The model of a diffusers folder, in `torch_dtype` or the file's.

    Raises InputError for a folder that is none, for a class that is not here, and for weights that
    do not fit.
    """
    return _class_of(path).from_pretrained(path, torch_dtype)


def describe_autoencoder(path: str | Path) -> tuple[Config, Any]:
    """The configuration of a diffusers folder and its first weight's dtype, without the weights."""
    config = _class_of(path).config_class.from_dict(read_config(Path(path)), f"{path}/config.json")
    with SafetensorsFile(weights_file(Path(path))) as file:
        first = next(iter(file.tensors.values()), None)
    return config, STORED.get(first.dtype, torch.float32) if first else torch.float32


def computed_in(dtype: Any) -> Any:
    """What weights in `dtype` are computed in: float16 in float32.

    Pixels of real clips pass 65504 inside of a decoder: wan22-mini gave NaN, diffusers' too
    (2026-12-02).
    """
    return torch.float32 if dtype is torch.float16 else dtype


def empty_autoencoder(config: Config) -> AutoencoderKLWan:
    """The model of a configuration, with shapes for weights."""
    kind = next(kind for kind in CLASSES.values() if kind.config_class is type(config))
    with torch.device("meta"):
        return kind(config)


def _class_of(path: str | Path) -> type[AutoencoderKLWan]:
    name = read_config(Path(path)).get("_class_name", AutoencoderKLWan.__name__)
    if (kind := CLASSES.get(str(name))) is None:
        raise InputError(f"{path}: {name!r} is not supported; {', '.join(CLASSES)} are")
    return kind
