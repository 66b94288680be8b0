"""GGUF (llama.cpp's file format) to a Hugging Face folder, for text models.

The file's own table is read and checked here: `gguf.GGUFReader` follows a damaged length until
memory is full (a 64-bit count of zero-length items). Dequantisation is the gguf package's.
Results equal transformers' GGUF loading bit for bit in float32 (a test compares).

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import json
import math
import mmap
import os
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize

from ..errors import InputError
from ..serialization.safetensors import release_pages, save_sharded, write_text
from .checkpoint import staged_folder
from .config import RopeConfig

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_STORAGE = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
# One shard is in memory at a time, so this bounds the conversion's peak.
SHARD_BYTES = 1 << 30
# Rows are dequantised in pieces of about this many float32 bytes.
PIECE_BYTES = 64 << 20
MAX_ITEMS = 1 << 28

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BASE = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm")
_BASE = tuple(f"{part}.weight" for part in (*_BASE, "ffn_gate", "ffn_up", "ffn_down"))
# What each architecture's layer must have, and may have.
_REQUIRED = {
    "llama": _BASE,
    "qwen2": (*_BASE, "attn_q.bias", "attn_k.bias", "attn_v.bias"),
    "qwen3": (*_BASE, "attn_q_norm.weight", "attn_k_norm.weight"),
}
_ATTENTION_BIAS = tuple(f"{part}.bias" for part in ("attn_q", "attn_k", "attn_v", "attn_output"))
_MLP_BIAS = tuple(f"{part}.bias" for part in ("ffn_gate", "ffn_up", "ffn_down"))
_OPTIONAL = {"llama": (_ATTENTION_BIAS, _MLP_BIAS), "qwen2": (), "qwen3": (_ATTENTION_BIAS,)}


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One entry of the tensor table. `shape` is row-major, as in Hugging Face; offsets in bytes."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    begin: int
    nbytes: int


class GGUFFile:
    """An open GGUF file: `metadata` (plain Python values) and `tensors`, both checked."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < 24:
                    raise self._error(f"only {size} bytes, not a GGUF file")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise InputError(f"{self.path}: cannot open it: {error.strerror}") from None
        try:
            self._read_table()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._map.close()

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """Metadata `key`, checked to be of type `kind`; `...` as the default makes it required."""
        value = self.metadata.get(key)
        if value is None:
            if default is ...:
                raise self._error(f"metadata {key!r} is missing")
            return default
        # bool counts as int in Python, but not here.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self._error(f"metadata {key!r} has the wrong type")
        return value

    def rows(self, tensor: GGUFTensor) -> np.ndarray:
        """The stored rows, as bytes [rows, bytes a row]; a view of the file."""
        rows = math.prod(tensor.shape[:-1])
        shape = (rows, tensor.nbytes // rows)
        return np.ndarray(shape, np.uint8, buffer=self._map, offset=tensor.begin)

    def release(self, tensor: GGUFTensor) -> None:
        """Let the tensor's file pages go; no view of them may be in use."""
        release_pages(self._map, tensor.begin, tensor.begin + tensor.nbytes)

    def _error(self, what: str) -> InputError:
        return InputError(f"{self.path}: {what}; download it again")

    def _read_table(self) -> None:
        cursor = _Cursor(self._map, self._error)
        if cursor.take(4) != b"GGUF":
            raise self._error("not a GGUF file")
        version = cursor.number("<I")
        if version not in (2, 3):
            raise InputError(f"{self.path}: GGUF version {version} is not supported (2 and 3 are)")
        count, entries = cursor.number("<Q"), cursor.number("<Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = cursor.text()
            if key in self.metadata:
                raise self._error(f"metadata {ascii(key)} appears twice")
            self.metadata[key] = cursor.value(cursor.number("<I"))
        table = [cursor.tensor() for _ in range(count)]
        alignment = self.get("general.alignment", int, 32)
        if alignment <= 0 or alignment & (alignment - 1):
            raise self._error(f"alignment {alignment} is not a power of two")
        start = -(-cursor.position // alignment) * alignment
        self.tensors: dict[str, GGUFTensor] = {}
        for name, kind, shape, offset in table:
            if name in self.tensors:
                raise self._error(f"tensor {ascii(name)} appears twice")
            self.tensors[name] = self._check_tensor(name, kind, shape, start + offset)

    def _check_tensor(self, name: str, kind: int, shape: tuple[int, ...], begin: int) -> GGUFTensor:
        try:
            quantization = GGMLQuantizationType(kind)
            block, block_bytes = GGML_QUANT_SIZES[quantization]
        except (ValueError, KeyError):
            raise self._error(f"tensor {ascii(name)} has the unknown type {kind}") from None
        if 0 in shape or shape[-1] % block:
            raise self._error(f"tensor {ascii(name)}: shape {list(shape)} is not whole blocks")
        nbytes = math.prod(shape) // block * block_bytes
        if begin + nbytes > len(self._map):
            raise self._error(
                f"truncated: tensor {ascii(name)} ends at byte {begin + nbytes}, "
                f"the file at {len(self._map)}"
            )
        return GGUFTensor(name, quantization, shape, begin, nbytes)


class _Cursor:
    """Reads the table front to back; running off the end of the file is an InputError."""

    _FORMATS = {
        GGUFValueType.UINT8: "<B",
        GGUFValueType.INT8: "<b",
        GGUFValueType.UINT16: "<H",
        GGUFValueType.INT16: "<h",
        GGUFValueType.UINT32: "<I",
        GGUFValueType.INT32: "<i",
        GGUFValueType.FLOAT32: "<f",
        GGUFValueType.BOOL: "<?",
        GGUFValueType.UINT64: "<Q",
        GGUFValueType.INT64: "<q",
        GGUFValueType.FLOAT64: "<d",
    }

    def __init__(self, data: mmap.mmap, error: Callable[[str], InputError]) -> None:
        self._data = data
        self._error = error
        self.position = 0

    def take(self, length: int) -> bytes:
        end = self.position + length
        if end > len(self._data):
            raise self._error("truncated inside its table")
        piece = self._data[self.position : end]
        self.position = end
        return piece

    def number(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def text(self) -> str:
        try:
            return self.take(self.number("<Q")).decode("utf-8")
        except UnicodeDecodeError:
            raise self._error("a text of its table is not UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind == GGUFValueType.STRING:
            return self.text()
        if kind == GGUFValueType.ARRAY:
            inner, count = self.number("<I"), self.number("<Q")
            # Each item takes a byte or more, so a lying count cannot cost more than the file.
            if count > MAX_ITEMS or count > len(self._data) - self.position:
                raise self._error(f"truncated: a list of {count} items does not fit")
            if inner == GGUFValueType.ARRAY:
                raise self._error("lists of lists are not supported")
            if inner == GGUFValueType.STRING:
                return [self.text() for _ in range(count)]
            code = self._format(inner)
            raw = self.take(count * struct.calcsize(code))
            return list(struct.unpack(f"<{count}{code[1]}", raw))
        return self.number(self._format(kind))

    def _format(self, kind: int) -> str:
        if kind not in self._FORMATS:
            raise self._error(f"metadata of the unknown type {kind}")
        return self._FORMATS[GGUFValueType(kind)]

    def tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        """Name, type, shape (row-major) and offset in the data."""
        name, axes = self.text(), self.number("<I")
        if not 1 <= axes <= 4:
            raise self._error(f"tensor {ascii(name)} has {axes} axes")
        shape = tuple(self.number("<Q") for _ in range(axes))
        return name, self.number("<I"), shape[::-1], self.number("<Q")


def convert_gguf(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    dtype: str | None = None,
    force: bool = False,
) -> Path:
    """Write GGUF file `source` as a Hugging Face folder `out` and return its path.

    `dtype` is float32, float16 or bfloat16 (the default: quantised files carry none, and bfloat16
    cannot overflow). The folder appears when it is complete, or not at all. Raises InputError for a
    damaged file, an architecture, tokenizer or tensor that is not known, and an occupied `out`.
    """
    source, out = Path(source), Path(out)
    dtype = dtype or "bfloat16"
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is not supported; choose from {', '.join(DTYPES)}")
    file = GGUFFile(source)
    try:
        model = _Model(file)
        names = model.names()
        config = model.config(dtype)
        tokenizer, tokenizer_config = _tokenizer(file)
        with staged_folder(out, source, force) as folder:
            _write_weights(folder, model, names, DTYPES[dtype])
            for name, content in (
                ("config.json", config),
                ("generation_config.json", model.generation_config()),
                ("tokenizer_config.json", tokenizer_config),
            ):
                write_text(folder / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
            write_text(folder / "tokenizer.json", json.dumps(tokenizer, ensure_ascii=False))
    finally:
        file.close()
    return out


class _Model:
    """What the metadata says about the model, in Hugging Face terms."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.architecture = file.get("general.architecture", str, ...)
        if self.architecture not in ARCHITECTURES:
            raise InputError(
                f"{file.path}: GGUF architecture {ascii(self.architecture)} is not supported; "
                f"supported: {', '.join(ARCHITECTURES)}"
            )
        if file.get("split.count", int, 1) > 1:
            raise InputError(
                f"{file.path}: one part of a split file; join the parts first "
                "(llama-gguf-split --merge)"
            )
        self.heads = self._size("attention.head_count", ...)
        self.groups = self._size("attention.head_count_kv", self.heads)
        self.hidden = self._size("embedding_length", ...)
        self.layers = self._size("block_count", ...)
        rotary = self._size("rope.dimension_count", self.hidden // self.heads)
        self.head_dim = self._size("attention.key_length", rotary)
        if rotary != self.head_dim:
            raise InputError(f"{file.path}: partial rotary embedding is not supported")

    def _size(self, key: str, default: Any) -> int:
        value = self.file.get(f"{self.architecture}.{key}", int, default)
        if not 0 < value < 2**31:
            raise InputError(f"{self.file.path}: metadata {key!r} is {value}; download it again")
        return value

    def _number(self, key: str, default: Any) -> float:
        value = float(self.file.get(f"{self.architecture}.{key}", (int, float), default))
        if not math.isfinite(value):
            raise InputError(f"{self.file.path}: metadata {key!r} is {value}; download it again")
        return value

    def names(self) -> dict[str, GGUFTensor]:
        """Hugging Face names to tensors, in layer order. Raises for a missing or unknown tensor."""
        left = dict(self.file.tensors)
        left.pop("rope_freqs.weight", None)
        found: dict[str, GGUFTensor] = {}

        def move(old: str, new: str) -> None:
            if old not in left:
                raise InputError(f"{self.file.path}: tensor {old} is missing; download it again")
            found[new] = left.pop(old)

        for old, new in _TOP_NAMES.items():
            if old in left or old != "output.weight":
                move(old, new)
        optional = [group for group in _OPTIONAL[self.architecture] if f"blk.0.{group[0]}" in left]
        parts = [*_REQUIRED[self.architecture], *(part for group in optional for part in group)]
        for layer in range(self.layers):
            for part in parts:
                stem, kind = part.rsplit(".", 1)
                move(f"blk.{layer}.{part}", f"model.layers.{layer}.{_LAYER_NAMES[stem]}.{kind}")
        if left:
            raise InputError(
                f"{self.file.path}: tensor {ascii(next(iter(left)))} is not known for architecture "
                f"{self.architecture} (and {len(left) - 1} more)"
            )
        self.attention_bias = _ATTENTION_BIAS in optional
        self.mlp_bias = _MLP_BIAS in optional
        return found

    def row_order(self, name: str) -> np.ndarray | None:
        """How to reorder a tensor's rows: llama.cpp stores q and k of `llama` with the two halves
        of each head interleaved, for its own rotary embedding."""
        found = re.search(r"self_attn\.([qk])_proj\.", name)
        if self.architecture != "llama" or found is None:
            return None
        heads = self.heads if found[1] == "q" else self.groups
        order = np.arange(heads * self.head_dim).reshape(heads, self.head_dim // 2, 2)
        return order.swapaxes(1, 2).reshape(-1)

    def config(self, dtype: str) -> dict[str, Any]:
        """config.json, in the field names that old and new readers know."""
        size, ids = self._size, _token_ids(self.file)
        embedding = self.file.tensors["token_embd.weight"]
        config = {
            "architectures": [ARCHITECTURES[self.architecture]],
            "model_type": self.architecture,
            "vocab_size": embedding.shape[0],
            "hidden_size": self.hidden,
            "intermediate_size": size("feed_forward_length", ...),
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.groups,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": size("context_length", ...),
            # Stored as float32; six digits give back the number that was written.
            "rms_norm_eps": float(f"{self._number('attention.layer_norm_rms_epsilon', ...):.6g}"),
            "rope_theta": self._number("rope.freq_base", 10_000.0),
            "rope_scaling": self._rope_scaling(),
            "tie_word_embeddings": "output.weight" not in self.file.tensors,
            "attention_bias": self.attention_bias,
            **ids,
            "torch_dtype": dtype,
        }
        if self.architecture == "llama":
            config["mlp_bias"] = self.mlp_bias
        else:
            config["use_sliding_window"] = False
        return config

    def generation_config(self) -> dict[str, Any]:
        """All tokens that end an answer: chat models have an end of turn beside the end of text."""
        ids: dict[str, Any] = dict(_token_ids(self.file))
        ends = [ids.get("eos_token_id"), self.file.get("tokenizer.ggml.eot_token_id", int)]
        ends = list(dict.fromkeys(index for index in ends if index is not None))
        if ends:
            ids["eos_token_id"] = ends if len(ends) > 1 else ends[0]
        return ids

    def _rope_scaling(self) -> dict[str, Any] | None:
        kind = self.file.get(f"{self.architecture}.rope.scaling.type", str, "none")
        factor = self._number("rope.scaling.factor", 1.0)
        if "rope_freqs.weight" in self.file.tensors:
            return self._llama3_scaling(self.file.tensors["rope_freqs.weight"])
        if kind == "none" or (kind == "linear" and factor == 1.0):
            return None
        if kind == "linear":
            return {"rope_type": "linear", "factor": factor}
        if kind == "yarn":
            original = self._size("rope.scaling.original_context_length", ...)
            return {
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": original,
            }
        raise InputError(f"{self.file.path}: rope scaling {ascii(kind)} is not supported")

    def _llama3_scaling(self, tensor: GGUFTensor) -> dict[str, Any]:
        """The parameters of llama3 scaling out of its result.

        The file only has what each frequency is divided by, from 1 to `factor`. Every published
        model uses 1, 4 and 8192 for the others; whether this one does is checked by recomputing.
        """
        divisors = _dequantize(self.file.rows(tensor), tensor, self).reshape(-1)
        scaling = {
            "rope_type": "llama3",
            "factor": float(divisors.max()),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        theta = self._number("rope.freq_base", 10_000.0)
        plain, _ = RopeConfig(theta=theta).inverse_frequencies(self.head_dim)
        scaled, _ = RopeConfig(theta=theta, **scaling).inverse_frequencies(self.head_dim)
        if divisors.shape != plain.shape or not np.allclose(plain / scaled, divisors, rtol=1e-4):
            raise InputError(f"{self.file.path}: rope_freqs.weight is no llama3 scaling we know")
        return scaling


def _write_weights(
    folder: Path, model: _Model, names: Mapping[str, GGUFTensor], dtype: str
) -> None:
    itemsize = 4 if dtype == "F32" else 2
    sizes = {name: math.prod(tensor.shape) * itemsize for name, tensor in names.items()}

    def load(name: str) -> tuple[str, np.ndarray]:
        return dtype, _weights(model, name, names[name], dtype)

    save_sharded(folder, sizes, load, SHARD_BYTES)


def _weights(model: _Model, name: str, tensor: GGUFTensor, dtype: str) -> np.ndarray:
    """The tensor dequantised and cast, a piece of rows at a time; bfloat16 as its uint16 bits."""
    stored, order = model.file.rows(tensor), model.row_order(name)
    if order is not None and len(order) != tensor.shape[0]:
        raise InputError(
            f"{model.file.path}: tensor {tensor.name} has {tensor.shape[0]} rows where heads and "
            f"head size give {len(order)}; download it again"
        )
    if len(tensor.shape) == 1:
        values = _dequantize(stored, tensor, model)[0]
        return _cast(values if order is None else values[order], tensor, dtype, model)
    rows = stored
    result = np.empty((len(stored), tensor.shape[-1]), _STORAGE[dtype])
    step = max(1, PIECE_BYTES // (4 * tensor.shape[-1]))
    for begin in range(0, len(stored), step):
        piece = slice(begin, begin + step)
        # Quantisation blocks lie along a row, so whole rows can be reordered as they are stored.
        rows = stored[piece] if order is None else stored[order[piece]]
        result[piece] = _cast(_dequantize(rows, tensor, model), tensor, dtype, model)
    del stored, rows
    model.file.release(tensor)
    return result.reshape(tensor.shape)


def _dequantize(rows: np.ndarray, tensor: GGUFTensor, model: _Model) -> np.ndarray:
    try:
        return dequantize(rows, tensor.kind)
    except NotImplementedError:
        raise InputError(
            f"{model.file.path}: tensor {tensor.name} is of type {tensor.kind.name}, which the "
            "gguf package cannot dequantise; use another quantisation of the model"
        ) from None


def _cast(values: np.ndarray, tensor: GGUFTensor, dtype: str, model: _Model) -> np.ndarray:
    """float32 to `dtype`, rounded to nearest even."""
    if dtype == "BF16":
        with mx.stream(mx.cpu):
            return np.asarray(mx.array(values).astype(mx.bfloat16).view(mx.uint16))
    if dtype == "F32":
        return values
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if not np.array_equal(np.isfinite(half), np.isfinite(values)):
        raise InputError(
            f"{model.file.path}: tensor {tensor.name} holds values beyond float16; "
            "use --dtype bfloat16"
        )
    return half


def _token_ids(file: GGUFFile) -> dict[str, int]:
    """The special ids that the file gives, under Hugging Face's names."""
    names = {"bos": "bos", "eos": "eos", "pad": "padding"}
    known = {f"{new}_token_id": _token_id(file, old) for new, old in names.items()}
    return {name: index for name, index in known.items() if index is not None}


def _token_id(file: GGUFFile, name: str) -> int | None:
    index = file.get(f"tokenizer.ggml.{name}_token_id", int)
    if index is not None and not 0 <= index < len(_texts(file, "tokens")):
        raise InputError(f"{file.path}: {name}_token_id {index} is outside the vocabulary")
    return index


def _texts(file: GGUFFile, name: str) -> list[str]:
    values = file.get(f"tokenizer.ggml.{name}", list, ...)
    if not all(isinstance(value, str) for value in values):
        raise InputError(f"{file.path}: tokenizer {name} must be texts; download it again")
    return values


def _tokenizer(file: GGUFFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json for a byte-level BPE tokenizer."""
    kind = file.get("tokenizer.ggml.model", str, ...)
    if kind != "gpt2":
        raise InputError(
            f"{file.path}: tokenizer model {ascii(kind)} is not supported (only gpt2, byte-level "
            "BPE, is); use the model's safetensors version"
        )
    style = file.get("tokenizer.ggml.pre", str, "default")
    if style not in _STYLES:
        raise InputError(
            f"{file.path}: pre-tokenizer {ascii(style)} is not supported; "
            f"supported: {', '.join(_STYLES)}"
        )
    tokens = _texts(file, "tokens")
    bos = _token_id(file, "bos")
    add_bos = file.get("tokenizer.ggml.add_bos_token", bool, _STYLES[style].add_bos)
    first = tokens[bos] if add_bos and bos is not None else None
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": file.get(
            f"{file.metadata['general.architecture']}.context_length", int
        ),
        "clean_up_tokenization_spaces": False,
    }
    for name in ("bos", "eos", "pad", "unk"):
        full = {"pad": "padding", "unk": "unknown"}.get(name, name)
        index = _token_id(file, full)
        config[f"{name}_token"] = None if index is None else tokens[index]
    template = file.get("tokenizer.chat_template", str)
    if template is not None:
        config["chat_template"] = template
    return _STYLES[style].tokenizer(file, tokens, first, bos), config


_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
# How the families cut text before merging; they differ in how many digits stay together.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(digits: str) -> dict[str, Any]:
    pattern = {"Regex": _SPLIT.format(digits=digits)}
    return {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False},
            {**_BYTE_LEVEL, "use_regex": False},
        ],
    }


@dataclass(frozen=True)
class _Style:
    """A family's tokenizer beyond vocabulary and merges, as in its own tokenizer.json."""

    pre_tokenizer: Mapping[str, Any]
    normalizer: Mapping[str, Any] | None = None
    ignore_merges: bool = False
    add_bos: bool = False

    def tokenizer(
        self, file: GGUFFile, tokens: list[str], first: str | None, first_id: int | None
    ) -> dict[str, Any]:
        kinds = file.get("tokenizer.ggml.token_type", list, [_NORMAL] * len(tokens))
        if len(kinds) != len(tokens):
            raise InputError(f"{file.path}: tokens and token types differ in number")
        added = [
            {
                "id": index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind == _CONTROL,
            }
            for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind in (_CONTROL, _USER_DEFINED)
        ]
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": self.normalizer,
            "pre_tokenizer": self.pre_tokenizer,
            "post_processor": _begin(first, first_id),
            "decoder": _BYTE_LEVEL,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": self.ignore_merges,
                # Unused rows only pad the embedding: they stand for no text.
                "vocab": {t: i for i, t in enumerate(tokens) if kinds[i] != _UNUSED},
                "merges": _merges(file, tokens),
            },
        }


def _merges(file: GGUFFile, tokens: list[str]) -> list[list[str]]:
    """Pairs of the vocabulary; the tokenizers package would only say that a token is out of it."""
    known = set(tokens)
    pairs = [merge.split(" ") for merge in _texts(file, "merges")]
    for pair in pairs:
        if len(pair) != 2 or not {*pair, "".join(pair)} <= known:
            raise InputError(f"{file.path}: merge {ascii(pair)} is broken; download it again")
    return pairs


def _begin(token: str | None, index: int | None) -> dict[str, Any]:
    """The post-processor: the begin token in front, where the model wants one."""
    byte_level = {**_BYTE_LEVEL, "trim_offsets": False}
    if token is None:
        return byte_level
    special = {"SpecialToken": {"id": token, "type_id": 0}}
    single = [special, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, special, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {token: {"id": token, "ids": [index], "tokens": [token]}},
    }
    return {"type": "Sequence", "processors": [byte_level, template]}


# llama.cpp's token types.
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
_QWEN2 = _Style(_split(""), normalizer={"type": "NFC"})
_LLAMA3 = _Style(_split("{1,3}"), ignore_merges=True, add_bos=True)
_GPT2 = _Style(_BYTE_LEVEL)
_DIGITS = {"type": "Digits", "individual_digits": True}
_SMOLLM = _Style({"type": "Sequence", "pretokenizers": [_DIGITS, _BYTE_LEVEL]})
_STYLES = {
    "smollm": _SMOLLM,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA3,
    "gpt-2": _GPT2,
    "default": _GPT2,
}
