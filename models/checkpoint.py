"""A Hugging Face folder's weights: found, checked, and read one layer at a time; and written."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import mlx.core as mx
import numpy as np

from ..errors import InputError
from ..serialization.safetensors import SafetensorsFile, TensorInfo
from .config import read_json

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors$")
# int() refuses thousands of digits.
_NUMBER = re.compile(r"(\d{1,9})")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,9})\.")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class Checkpoint:
    """The weights of one folder, open and lazily read.

    `tensors` maps every name to its `TensorInfo`, in layer order, from the headers alone: shapes
    and dtypes cost no weight bytes. `read` and `items` load one tensor at a time.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise InputError(f"{self.folder}: no such folder; check the path")
        paths, weight_map = _find_files(self.folder)
        self._files: dict[str, SafetensorsFile] = {}
        try:
            for path in paths:
                self._files[path.name] = SafetensorsFile(path)
            self._home = _assign(self.folder, self._files, weight_map)
        except BaseException:
            self.close()
            raise
        names = sorted(self._home, key=_layer_order)
        self.tensors: Mapping[str, TensorInfo] = {
            name: self._files[self._home[name]].tensors[name] for name in names
        }

    @property
    def files(self) -> list[Path]:
        """The weight files, in name order."""
        return [file.path for file in self._files.values()]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(info.nbytes for info in self.tensors.values())

    def file_of(self, name: str) -> Path:
        """The file that holds tensor `name`, for messages."""
        return self._files[self._home[name]].path

    def read(self, name: str) -> mx.array:
        """The tensor `name`; float8 comes as uint8, its dtype is in `tensors[name].dtype`."""
        if name not in self._home:
            raise InputError(f"{self.folder}: tensor {ascii(name)} is missing; download it again")
        return self._files[self._home[name]].read(name)

    def read_into(self, name: str, out: np.ndarray) -> None:
        """Copy the tensor `name` into `out`; see SafetensorsFile.read_into."""
        self._files[self._home[name]].read_into(name, out)

    def items(self) -> Iterator[tuple[TensorInfo, mx.array]]:
        """Every tensor with its array, layer by layer, one array at a time."""
        for name, info in self.tensors.items():
            yield info, self.read(name)

    def layers(self) -> Iterator[tuple[int | None, list[TensorInfo]]]:
        """The tensors grouped by layer number; None for those outside the layers."""
        for layer, infos in groupby(self.tensors.values(), key=lambda info: layer_of(info.name)):
            yield layer, list(infos)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def layer_of(name: str) -> int | None:
    """The layer number in a tensor's name: 3 for model.layers.3.mlp.up_proj.weight."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def _layer_order(name: str) -> tuple[bool, int, list[tuple[int, str]]]:
    """Tensors outside the layers first, then layer 2 before layer 10."""
    layer = layer_of(name)
    parts = [(int(p), "") if p.isdecimal() else (-1, p) for p in _NUMBER.split(name) if p]
    return layer is not None, layer or 0, parts


def _find_files(folder: Path) -> tuple[list[Path], Mapping[str, str] | None]:
    """The weight files of a folder, and the index's map where there is one.

    In transformers' order: model.safetensors, an index, and at last whatever *.safetensors lies
    there.
    """
    single = folder / "model.safetensors"
    if single.is_file():
        return [single], None
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    chosen = [path for path in indexes if path.name == "model.safetensors.index.json"] or indexes
    if len(chosen) > 1:
        names = ", ".join(path.name for path in chosen)
        raise InputError(f"{folder}: more than one index ({names}); keep one")
    if chosen:
        weight_map = _read_index(chosen[0])
        return [folder / name for name in sorted(set(weight_map.values()))], weight_map
    # Opening a pipe of that name would wait for ever.
    paths = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if not paths:
        raise InputError(f"{folder}: {_why_no_weights(folder)}")
    _check_parts(folder, paths)
    return paths, None


def _why_no_weights(folder: Path) -> str:
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        return (
            f"only pickled weights ({pickles[0]}), which can run code and are not read; "
            "get the safetensors version of the model"
        )
    if any(folder.glob("*.gguf")):
        return "only a GGUF file; run `torchmlx convert FILE.gguf OUT` first"
    return "no *.safetensors file in it; download it again"


def _read_index(path: Path) -> dict[str, str]:
    """The index's weight_map, its file names checked: they come from outside and are opened."""
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{path}: field 'weight_map' is missing or empty; download it again")
    for name, file in weight_map.items():
        if not _is_file_name(file):
            raise InputError(
                f"{path}: tensor {ascii(name)[:120]} names the file {ascii(file)[:120]}, "
                "which is not a plain file name; download it again"
            )
        if not file.endswith(".safetensors"):
            raise InputError(f"{path}: {ascii(file)} is not a safetensors file; it is not read")
    missing = [
        name for name in sorted(set(weight_map.values())) if not path.with_name(name).is_file()
    ]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(f"{path}: {missing[0]}{more} is missing; download it again")
    return weight_map


def _is_file_name(name: object) -> bool:
    """Whether it names a file of the same folder, on every system: with no path, no NUL, no half
    of a surrogate, and not longer than file systems have it."""
    if not isinstance(name, str) or name in ("", ".", "..") or re.search(r"[/\\\x00]", name):
        return False
    return len(name.encode(errors="replace")) <= 255 and not re.search("[\ud800-\udfff]", name)


def _check_parts(folder: Path, paths: list[Path]) -> None:
    """Numbered parts without an index must be complete."""
    parts = [found for path in paths if (found := _PART.search(path.name))]
    if parts and {int(part[1]) for part in parts} != set(range(1, int(parts[0][2]) + 1)):
        raise InputError(
            f"{folder}: only {len(parts)} of {int(parts[0][2])} parts are there; download it again"
        )


def _assign(
    folder: Path, files: Mapping[str, SafetensorsFile], weight_map: Mapping[str, str] | None
) -> dict[str, str]:
    """Which file holds which tensor. The index decides where a name is in two files; tensors that
    it does not name are kept too, so that a strict load reports instead of losing them."""
    home: dict[str, str] = {}
    for file_name, file in files.items():
        for name in file.tensors:
            owner = (weight_map or {}).get(name)
            if owner is None and name in home:
                raise InputError(
                    f"{folder}: tensor {ascii(name)} is both in {home[name]} and in {file_name}; "
                    "remove the file that does not belong to the model"
                )
            if owner in (None, file_name):
                home[name] = file_name
    for name, owner in (weight_map or {}).items():
        if name not in home:
            raise InputError(
                f"{folder / owner}: tensor {ascii(name)} is missing, which the index places here; "
                "download it again"
            )
    return home


@contextmanager
def staged_folder(out: str | os.PathLike[str], source: Path, force: bool = False) -> Iterator[Path]:
    """A fresh folder beside `out` that becomes `out` when the block ends without an error.

    A non-empty `out` is refused, or with `force` replaced, but only if it is a model folder itself
    (has a config.json) and does not hold `source`. On an error nothing of the attempt remains.
    """
    out = Path(os.path.abspath(out))
    _check_target(out, source, force)
    staging = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    retired = out.with_name(f".{out.name}.{os.getpid()}.old")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
    except OSError as error:
        raise InputError(f"{out}: cannot write there: {error.strerror}") from None
    try:
        yield staging
        _exchange(staging, out, retired)
    except OSError as error:
        reason = error.strerror or error
        if retired.exists() and not out.exists():
            reason = f"{reason}; what was there is in {retired}"
        raise InputError(f"{out}: cannot write there: {reason}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if out.exists():  # else the retired folder is all there is
            shutil.rmtree(retired, ignore_errors=True)


def _exchange(staging: Path, out: Path, retired: Path) -> None:
    """`staging` becomes `out`, which comes back where that fails or is interrupted."""
    try:
        if out.exists():
            out.rename(retired)
        staging.rename(out)
    except BaseException:
        if retired.exists() and not out.exists():
            retired.rename(out)
        raise


def _check_target(out: Path, source: Path, force: bool) -> None:
    if not os.path.lexists(out):
        return
    if out.is_symlink() or not out.is_dir():
        raise InputError(f"{out}: it exists and is not a folder; choose another name")
    if not any(out.iterdir()):
        return
    if not force:
        raise InputError(f"{out}: the folder is not empty; choose another, or add --force")
    if not (out / "config.json").is_file():
        raise InputError(f"{out}: no model folder (no config.json), so --force does not replace it")
    if source.resolve().is_relative_to(out.resolve()):
        raise InputError(f"{out}: it holds the source {source}; choose another folder")


def copy_settings(source: Path, out: Path, skip: tuple[str, ...] = ()) -> None:
    """Copy tokenizer, template and configuration files (small, never weights) to `out`."""
    patterns = ("*.json", "*.jinja", "*.txt", "*.model", "LICENSE*", "README.md")
    for path in sorted({path for pattern in patterns for path in source.glob(pattern)}):
        index = path.name.endswith(".safetensors.index.json")
        if path.is_file() and not index and path.name not in skip:
            shutil.copyfile(path, out / path.name)


def describe(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Name, dtype, shape, bytes and file of every tensor, for reports; reads no data."""
    return [
        {
            "name": info.name,
            "dtype": info.dtype,
            "shape": list(info.shape),
            "nbytes": info.nbytes,
            "file": checkpoint.file_of(info.name).name,
        }
        for info in checkpoint.tensors.values()
    ]
