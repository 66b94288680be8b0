"""`torchmlx convert`: a GGUF file or a Hugging Face folder to a Hugging Face folder."""

import json
import os
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..errors import InputError
from ..serialization.safetensors import DTYPES, TensorInfo, save_sharded, write_text
from .checkpoint import Checkpoint, copy_settings, staged_folder
from .config import read_config

_TARGETS = {"float32": ("F32", mx.float32), "float16": ("F16", mx.float16)}
_TARGETS["bfloat16"] = ("BF16", mx.bfloat16)
_FLOATS = ("F64", "F32", "F16", "BF16")
# One shard is in memory at a time, so this bounds the conversion's peak.
SHARD_BYTES = 1 << 30


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    dtype: str | None = None,
    force: bool = False,
    quantize: str | None = None,
) -> Path:
    """Write `source`, a .gguf file or a model folder, as a Hugging Face folder `out`; returns it.

    `dtype` is float32, float16 or bfloat16. Left out, a folder keeps its types and a GGUF file
    becomes bfloat16. Integers and float8 stay as they are. `out` appears complete or not at all; a
    non-empty one is refused, or replaced with `force` if it is a model folder. `quantize`, of a
    folder, is fp8, int8, int4, mxfp8 or mxfp4: see quantize.py. Raises InputError.
    """
    source, out = Path(source), Path(out)
    if quantize is not None:
        if not source.is_dir() or dtype is not None:
            raise InputError(
                "--quantize takes a model folder, and no --dtype: convert in two steps"
            )
        from .quantize import quantize as write_quantized

        return write_quantized(source, out, quantize, force)
    if dtype is not None and dtype not in _TARGETS:
        raise InputError(f"dtype {dtype!r} is not supported; choose from {', '.join(_TARGETS)}")
    if source.is_dir():
        return _recast(source, out, dtype, force)
    if not source.exists():
        raise InputError(f"{source}: no such file or folder; check the path")
    # The gguf package is only needed here, and takes a third of a second to import.
    from .gguf import convert_gguf

    return convert_gguf(source, out, dtype, force)


def _recast(source: Path, out: Path, dtype: str | None, force: bool) -> Path:
    config = read_config(source)
    if dtype is not None and config.values.get("quantization_config") is not None:
        raise InputError(f"{config.path}: a quantised model keeps its types; leave --dtype out")
    with Checkpoint(source) as checkpoint, staged_folder(out, source, force) as folder:
        names = {info.name: _target(info, dtype) for info in checkpoint.tensors.values()}
        sizes = {
            info.name: info.size * DTYPES[names[info.name]].itemsize
            for info in checkpoint.tensors.values()
        }

        def load(name: str) -> tuple[str, mx.array]:
            array = checkpoint.read(name)
            if names[name] == checkpoint.tensors[name].dtype:
                return names[name], array
            return names[name], _cast(array, dtype or "", f"{checkpoint.file_of(name)}: {name}")

        save_sharded(folder, sizes, load, SHARD_BYTES)
        copy_settings(source, folder, skip=("config.json",))
        fields = _with_dtype(dict(config.raw), dtype)
        write_text(folder / "config.json", json.dumps(fields, indent=2, ensure_ascii=False) + "\n")
    return out


def _target(info: TensorInfo, dtype: str | None) -> str:
    """The safetensors dtype that a tensor is written in."""
    return info.dtype if dtype is None or info.dtype not in _FLOATS else _TARGETS[dtype][0]


def _cast(array: mx.array, dtype: str, place: str) -> mx.array:
    with mx.stream(mx.cpu):  # float64 knows no other
        cast = array.astype(_TARGETS[dtype][1])
        before, after = mx.isfinite(array).sum().item(), mx.isfinite(cast).sum().item()
    if before != after:
        raise InputError(f"{place} holds values beyond {dtype}; use --dtype bfloat16 or float32")
    return cast


def _with_dtype(fields: dict[str, Any], dtype: str | None) -> dict[str, Any]:
    """The configuration with the new dtype under whichever names it uses, nested ones too."""
    if dtype is None:
        return fields
    present = [name for name in ("dtype", "torch_dtype") if name in fields] or ["torch_dtype"]
    fields |= dict.fromkeys(present, dtype)
    for name in ("text_config", "vision_config"):
        if isinstance(fields.get(name), dict):
            nested = fields[name]
            fields[name] = nested | {
                key: dtype for key in ("dtype", "torch_dtype") if nested.get(key) is not None
            }
    return fields
