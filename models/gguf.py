"""GGUF (llama.cpp's file format) to a Hugging Face folder, for text models.

Dequantisation is the gguf package's. Weights equal transformers' GGUF loading bit for bit in
float32 (a test compares).
"""

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from gguf.quants import dequantize

from ..errors import InputError
from ..serialization.safetensors import save_sharded, write_text
from .checkpoint import staged_folder
from .config import RopeConfig
from .gguf_file import GGUFFile, GGUFTensor
from .gguf_tokenizer import token_ids, tokenizer_files

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
        tokenizer, tokenizer_config = tokenizer_files(file)
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
        size, ids = self._size, token_ids(self.file)
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
        ids: dict[str, Any] = dict(token_ids(self.file))
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
