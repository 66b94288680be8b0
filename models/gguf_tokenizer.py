"""The tokenizer inside a GGUF file as tokenizer.json and tokenizer_config.json.

A GGUF file has the vocabulary and the merges; how text is cut before merging it only names, and
that, with what else a family's own tokenizer.json says, is in the table at the end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InputError
from .gguf_file import GGUFFile


def token_ids(file: GGUFFile) -> dict[str, int]:
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


def tokenizer_files(file: GGUFFile) -> tuple[dict[str, Any], dict[str, Any]]:
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
