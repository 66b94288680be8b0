"""Text to token ids and back: tokenizer.json, special tokens, chat prompts, streaming output."""

import codecs
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from ..errors import InputError
from .chat_template import ChatTemplate, load_chat_template
from .config import read_json

# Several times the largest published ones.
MAX_BYTES = 256 << 20
MAX_GROWTH = 10_000
_SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer:
    """A checkpoint's tokenizer; ids and text equal transformers' AutoTokenizer.

    Make it with `from_folder`. `special` maps bos_token, eos_token, pad_token, unk_token to their
    text, as far as the model has them.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special: Mapping[str, str],
        chat_template: ChatTemplate | None = None,
        clean_up: bool = False,
        tool_template: ChatTemplate | None = None,
    ) -> None:
        self.backend = backend
        self.special = dict(special)
        self.chat_template = chat_template
        # Some models have a template of its own for conversations with tools.
        self.tool_template = tool_template or chat_template
        self.clean_up = clean_up

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> "Tokenizer":
        """Read tokenizer.json, tokenizer_config.json and the chat template of a model folder.

        Which tokens a text begins and ends with is tokenizer.json's matter alone; add_bos_token
        and its like in the configuration are ignored, as in transformers 5.

        Raises InputError, naming the file, for one that is missing or broken.
        """
        folder = Path(folder)
        backend = _read_backend(folder)
        config = _read_optional(folder / "tokenizer_config.json")
        special = _special_tokens(folder, config)
        _add_missing_tokens(backend, config, folder)
        # transformers 5 cleans up for WordPiece and Unigram only: with BPE it eats real spaces.
        is_bpe = type(backend.model).__name__ == "BPE"
        clean_up = bool(config.get("clean_up_tokenization_spaces")) and not is_bpe
        plain = load_chat_template(folder, config)
        several = isinstance(config.get("chat_template"), list)
        tools = load_chat_template(folder, config, "tool_use") if several else plain
        return cls(backend, special, plain, clean_up, tools)

    @property
    def vocab_size(self) -> int:
        """Number of known tokens, the added ones included; a model's may be padded beyond it."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def bos_token_id(self) -> int | None:
        return self._special_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._special_id("eos_token")

    @property
    def pad_token_id(self) -> int | None:
        return self._special_id("pad_token")

    def _special_id(self, name: str) -> int | None:
        text = self.special.get(name)
        return None if text is None else self.backend.token_to_id(text)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Raises InputError if it is not valid Unicode (a lone surrogate), or
        has what the model's tokenizer knows no token for."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(f"the text is not valid Unicode at character {error.start}") from None
        with _backend_errors("the tokenizer cannot read this text"):
            return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD, unknown ids nothing."""
        text = self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return _clean_up(text) if self.clean_up else text

    def stream(self, skip_special_tokens: bool = True) -> "StreamingDetokenizer":
        """A detokenizer for ids that arrive one by one."""
        return StreamingDetokenizer(self, skip_special_tokens)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt text for a conversation. Encode it with add_special_tokens=False.

        `variables` go to the template, e.g. enable_thinking=False; any name but `messages` will do.
        Raises InputError if the model has no template or the template refuses.
        """
        template = self.chat_template if tools is None else self.tool_template
        if template is None:
            raise InputError("the model has no chat template; give it a plain prompt (--raw)")
        return template.render(
            messages, tools, add_generation_prompt, **{**self.special, **variables}
        )

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> list[int]:
        """Token ids of a conversation; the options are those of apply_chat_template."""
        return self.encode(self.apply_chat_template(messages, **options), add_special_tokens=False)


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _read_backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; check the path")
    if not path.is_file():
        slow = next((n for n in ("tokenizer.model", "vocab.json") if (folder / n).is_file()), None)
        hint = (
            f"there is only {slow}, which is not read; get" if slow else "download it again, with"
        )
        raise InputError(f"{path}: no such file; {hint} a tokenizer.json")
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{path}: more than {MAX_BYTES >> 20} MiB, too much for a tokenizer")
    # Before the package has it, which normalises the added tokens at once.
    with _backend_errors(f"{path}: broken tokenizer; download it again"):
        raw = path.read_bytes()
        fields = _around_model(raw)
        growth = max(_growth(fields.get(part)) for part in ("normalizer", "decoder"))
    if growth > MAX_GROWTH:
        raise InputError(f"{path}: it makes a text more than {MAX_GROWTH} times as long; refused")
    with _backend_errors(f"{path}: broken tokenizer; download it again"):
        backend = tokenizers.Tokenizer.from_buffer(raw)
    # Some files carry the padding and truncation of their training; a prompt wants neither.
    backend.no_padding()
    backend.no_truncation()
    return backend


# A normaliser or decoder behind the model, be it spelled with escapes.
_LATER = re.compile(rb'"(?:normalizer|decoder)"\s*:\s*{|\\u00[4-7]')


def _around_model(raw: bytes) -> dict[str, Any]:
    """A tokenizer.json, without its model where that comes last: a vocabulary takes as long to
    parse as the package takes for it, half a second for 250,000 tokens."""
    begin = raw.find(b'"model"')
    if not _LATER.search(raw, max(begin, 0)):
        with suppress(ValueError):  # "model" was something within
            return json.loads(raw[:begin].rstrip().removesuffix(b",") + b"}")
    return json.loads(raw)


def _growth(step: Mapping[str, Any] | None) -> float:
    """At most how many times as long a normaliser or decoder makes a text of some length.

    Each of thirty replacements of "a" by "aa" looks harmless.
    """
    if step is None:
        return 1.0
    within = step.get("normalizers") or step.get("decoders") or ()
    growth = min(math.prod(map(_growth, within)), 1e9)
    if step["type"] == "Replace":
        pattern = step["pattern"].get("String")
        # A regular expression may match a character, or the nothing between two.
        longer = len(step["content"]) / len(pattern) if pattern else 1 + len(step["content"])
        growth *= max(longer, 1)
    elif step["type"] == "Prepend":
        growth *= 1 + len(step["prepend"])
    return growth


@contextmanager
def _backend_errors(what: str) -> Iterator[None]:
    """Errors of tokenizers as bad input; a panic in its Rust code is no Exception."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise InputError(f"{what} ({' '.join(str(error).split())[:200]})") from None


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Text of the named special tokens; tokenizer_config.json wins over special_tokens_map.json."""
    path = folder / "special_tokens_map.json"
    special = {}
    for source, fields in ((path, _read_optional(path)), ("tokenizer_config.json", config)):
        for name in _SPECIAL_NAMES:
            value = fields.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if text is None:
                continue
            if not isinstance(text, str):
                raise InputError(f"{folder / source}: field {name!r} must be a token's text")
            special[name] = text
    return special


def _add_missing_tokens(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], folder: Path
) -> None:
    """Add tokens that only tokenizer_config.json knows, at the ids it gives them."""
    listed = config.get("added_tokens_decoder") or {}
    try:
        wanted = sorted((int(key), entry) for key, entry in listed.items())
        for index, entry in wanted:
            if backend.token_to_id(entry["content"]) is not None:
                continue
            flags = {k: bool(entry.get(k)) for k in ("single_word", "lstrip", "rstrip", "special")}
            normalized = bool(entry.get("normalized", not flags["special"]))
            token = tokenizers.AddedToken(entry["content"], normalized=normalized, **flags)
            backend.add_tokens([token])
            if backend.token_to_id(entry["content"]) != index:
                raise KeyError(f"id {index} does not follow those of tokenizer.json")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        path = folder / "tokenizer_config.json"
        raise InputError(f"{path}: field 'added_tokens_decoder' is broken ({error})") from None


# What transformers' clean_up_tokenization replaces, in its order.
_CLEAN_UPS = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def _clean_up(text: str) -> str:
    for old, new in _CLEAN_UPS:
        text = text.replace(old, new)
    return text


class _Pieces(Protocol):
    """Text of ids that arrive one by one: `push` gives what is certain, `finish` the rest."""

    def push(self, index: int) -> str: ...
    def finish(self) -> str: ...


class StreamingDetokenizer:
    """Text of a growing sequence of ids, in pieces whose concatenation is `Tokenizer.decode`'s.

    A piece is only given once no later token can change it, so half a character is held back. Each
    `push` costs the same however long the text is.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._skipped = _special_ids(tokenizer.backend) if skip_special_tokens else frozenset()
        self._pieces: _Pieces = _pieces_for(tokenizer)
        self._clean_up = _CleanUp() if tokenizer.clean_up else None

    def push(self, index: int) -> str:
        """The text that token `index` makes certain; often empty."""
        if index in self._skipped:
            return ""
        piece = self._pieces.push(index)
        return self._clean_up.push(piece) if self._clean_up else piece

    def finish(self) -> str:
        """The text still held back; call once, at the end."""
        piece = self._pieces.finish()
        return self._clean_up.push(piece) + self._clean_up.finish() if self._clean_up else piece


def _special_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    added = backend.get_added_tokens_decoder()
    return frozenset(index for index, token in added.items() if token.special)


def _pieces_for(tokenizer: Tokenizer) -> _Pieces:
    """The streaming strategy for the tokenizer's decoder."""
    decoder = tokenizer.backend.decoder
    # Only the decoder's state: the whole tokenizer's takes a fifth of a second for 150,000 tokens.
    spec = json.loads(decoder.__getstate__()) if decoder is not None else {}
    steps = spec.get("decoders", [spec]) if spec else []
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _ByteLevelPieces(tokenizer.backend)
    local = {"Replace", "ByteFallback", "Fuse", "Metaspace", "WordPiece"}
    strips_end = any(step.get("stop") for step in steps if step["type"] == "Strip")
    if set(kinds) - {"Strip"} <= local and not strips_end:
        return _WindowPieces(tokenizer.backend)
    return _WholePiece(tokenizer.backend)


def _byte_of_char() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    Printable Latin-1 stands for itself, the other bytes for the characters from U+0100 on (GPT-2).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }


class _ByteLevelPieces:
    """Byte-level BPE: each token is bytes, and an incremental UTF-8 decoder joins them."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._bytes = _byte_of_char()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, index: int) -> str:
        token = self._backend.id_to_token(index)
        return "" if token is None else self._decoder.decode(self._spell(token))

    def _spell(self, token: str) -> bytes:
        try:
            return bytes(self._bytes[char] for char in token)
        except KeyError:  # an added token in plain text
            return token.encode("utf-8")

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowPieces:
    """SentencePiece and WordPiece: decode the new tokens behind the last ones that gave text.

    What comes before those changes nothing more: the leading space is stripped once, at the start,
    and a run of byte tokens <0x..> is decoded whole, so it is held until another token ends it.
    """

    _BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []

    def push(self, index: int) -> str:
        if self._backend.id_to_token(index) is None:
            return ""
        if self._is_byte(index):
            self._pending.append(index)
            return ""
        return self._flush([index])

    def _flush(self, last: list[int]) -> str:
        run, self._pending = self._pending, []
        return self._decode(run) + self._decode(last)

    def _decode(self, ids: list[int]) -> str:
        if not ids:
            return ""
        text = self._backend.decode(self._context + ids, skip_special_tokens=False)
        piece = text[len(self._context_text) :]
        # Tokens without text are forgotten, except where they matter: at the start, where a strip
        # may reach over them, and behind a run of bytes, which they end.
        if not piece and self._context_text and not self._is_byte(self._context[-1]):
            return ""
        self._context = ids if piece and self._context_text else self._context + ids
        self._context_text = self._backend.decode(self._context, skip_special_tokens=False)
        return piece

    def _is_byte(self, index: int) -> bool:
        return self._BYTE.fullmatch(self._backend.id_to_token(index) or "") is not None

    def finish(self) -> str:
        return self._flush([])


class _WholePiece:
    """Any other decoder: nothing is certain before the end."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._ids: list[int] = []

    def push(self, index: int) -> str:
        self._ids.append(index)
        return ""

    def finish(self) -> str:
        return self._backend.decode(self._ids, skip_special_tokens=False)


class _CleanUp:
    """`_clean_up` over pieces.

    The clean-ups only delete spaces, so none reaches across two letters that stand together, except
    inside 've and 're. Text up to such a place is final.
    """

    _CUT = re.compile(r"(?s).*[^\W_](?=[^\W_])(?<!v(?=e))(?<!r(?=e))")

    def __init__(self) -> None:
        self._held = ""

    def push(self, piece: str) -> str:
        self._held += piece
        cut = self._CUT.match(self._held)
        if cut is None:
            return ""
        self._held = self._held[cut.end() :]
        return _clean_up(cut.group())

    def finish(self) -> str:
        held, self._held = self._held, ""
        return _clean_up(held)


class StopMatcher:
    """Cuts streamed text at the first stop string.

    Text that may be the beginning of a stop string is held back, so no part of one is ever given
    out. The stop string that ends first counts, of several that end together the longest; how the
    text was cut into pieces makes no difference. Linear in the text (Knuth, Morris, Pratt).
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = [(stop, _borders(stop)) for stop in dict.fromkeys(stops)]
        if any(not stop for stop, _ in self._stops):
            raise InputError("a stop string is empty; give it at least one character")
        self._lengths = [0] * len(self._stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The part of the text so far that is certain to precede any stop string; empty once
        `matched` is set."""
        if self.matched is not None:
            return ""
        buffer = self._held + text
        for position in range(len(self._held), len(buffer)):
            found = self._advance(buffer[position])
            if found is not None:
                self.matched, self._held = found, ""
                return buffer[: position + 1 - len(found)]
        keep = max(self._lengths, default=0)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def _advance(self, char: str) -> str | None:
        """Follow every stop string by one character; the longest that is now complete."""
        complete = None
        for which, (stop, borders) in enumerate(self._stops):
            length = self._lengths[which]
            while length and stop[length] != char:
                length = borders[length - 1]
            length += stop[length] == char
            self._lengths[which] = length
            if length == len(stop) and (complete is None or length > len(complete)):
                complete = stop
        return complete

    def finish(self) -> str:
        """The text held back that turned out to be no stop string."""
        held, self._held = self._held, ""
        return held


def _borders(text: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(text)
    length = 0
    for position in range(1, len(text)):
        while length and text[position] != text[length]:
            length = borders[length - 1]
        length += text[position] == text[length]
        borders[position] = length
    return borders
