"""Latents of a video in files: .safetensors, .npy, .pt; and normalised, as pipelines have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError

import torchmlx as torch
from torchmlx import Tensor

from ..errors import InputError
from ..serialization.safetensors import SafetensorsFile, save
from .autoencoder_kl_wan import Config

NAME = "latents"
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class Latents(NamedTuple):
    """Latents [1, z, t, h, w] in float32, and what a file of ours says beside them."""

    values: Tensor
    notes: dict[str, str]


def read_latents(path: str | Path, channels: int) -> Latents:
    """Of one video, with `channels` of its own, as they are stored.

    A file's only tensor, or the one called latents; [z, t, h, w] or with a batch of one before it.
    Raises InputError for another rank, number of channels or dtype, and for NaN and infinity.
    """
    path = Path(path)
    if not path.is_file():
        what = "a folder or a device, not a file of latents" if path.exists() else "no such file"
        raise InputError(f"{path}: {what}; check the path")
    kinds = {".safetensors": _of_safetensors, ".npy": _of_numpy, ".pt": _of_torch}
    if path.suffix.lower() not in (*kinds, ".pth"):
        raise InputError(f"{path}: latents are read from {', '.join(kinds)}")
    found, notes = kinds.get(path.suffix.lower(), _of_torch)(path)
    if found.dtype not in FLOATS:
        raise InputError(f"{path}: latents are floating-point numbers, not {found.dtype}")
    shape = list(found.shape)
    found = found[None] if found.ndim == 4 else found
    if found.ndim != 5 or found.shape[0] != 1 or found.shape[1] != channels or 0 in shape:
        raise InputError(
            f"{path}: latents of one video for this model are [1, {channels}, t, h, w], not {shape}"
        )
    values = found.to(torch.float32)
    wrong = int((~values.isfinite()).sum())
    if wrong:
        raise InputError(f"{path}: {wrong} of the latents are NaN or infinite; make them anew")
    return Latents(values, notes)


def write_latents(path: str | Path, latents: Tensor, notes: dict[str, str]) -> None:
    """A .safetensors file with `latents` in float32; complete or not at all.

    Raises InputError where it cannot be written, and for NaN and infinity.
    """
    if not bool(latents.isfinite().all()):
        raise InputError(f"{path}: not written: latents would be NaN or infinite; try float32")
    try:
        save(path, {NAME: latents.float().mx}, metadata=notes)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be written ({error})") from None


def normalised(latents: Tensor, config: Config) -> Tensor:
    """(latents - mean) / std by the model's statistics, as pipelines have them."""
    mean, std = _statistics(config, latents)
    return (latents - mean) / std


def denormalised(latents: Tensor, config: Config) -> Tensor:
    """What `normalised` undoes."""
    mean, std = _statistics(config, latents)
    return latents * std + mean


def _statistics(config: Config, latents: Tensor) -> tuple[Tensor, Tensor]:
    lists = (config.latents_mean, config.latents_std)
    if not all(len(values) == config.z_dim for values in lists):
        raise InputError(
            f"--normalized: config.json has no {config.z_dim} latents_mean and latents_std; "
            "take those of the checkpoint's release"
        )
    mean, std = (
        torch.tensor(values).to(latents.device).reshape(1, -1, 1, 1, 1) for values in lists
    )
    return mean, std


def _of_safetensors(path: Path) -> tuple[Tensor, dict[str, str]]:
    with SafetensorsFile(path) as file:
        names = list(file.tensors)
        name = NAME if NAME in names else names[0] if len(names) == 1 else None
        if name is None:
            raise InputError(f"{path}: {len(names)} tensors, none of which is called {NAME}")
        return torch.from_mx(file.read(name)), dict(file.metadata)


def _of_numpy(path: Path) -> tuple[Tensor, dict[str, str]]:
    try:
        # Mapped, so that a header that promises too much is an error and not an allocation.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: not a readable .npy file ({error})") from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path}: an .npz archive; save its array by numpy.save")
    if array.dtype.kind != "f" or array.itemsize > 8:
        raise InputError(f"{path}: latents are floating-point numbers, not {array.dtype}")
    return torch.tensor(array.astype(array.dtype.newbyteorder("="))), {}


def _of_torch(path: Path) -> tuple[Tensor, dict[str, str]]:
    found: Any = torch.load(path, map_location="cpu")
    if isinstance(found, dict):
        found = found.get(NAME) if NAME in found or len(found) != 1 else next(iter(found.values()))
    if not isinstance(found, Tensor):
        raise InputError(f"{path}: neither a tensor nor a dictionary with {NAME}")
    return found, {}
