"""Caches of prompts read before: kept in memory by their tokens, or saved in a file."""

import json
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np

import torchmlx as torch
from torchmlx import Tensor

from ..errors import InputError
from ..serialization.safetensors import SafetensorsFile, save
from .cache import SLACK, Cache, KVState, State
from .stepper import pieces

# What a chat template puts behind the last message so that an answer begins: Qwen3.5's is
# "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", 9 tokens.
TAIL = 16


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


class PromptCache:
    """The caches of the last prompts, at most `entries` of them and `most_bytes` in all."""

    def __init__(self, entries: int = 10, most_bytes: int = 4 << 30):
        self.entries, self.most_bytes = entries, most_bytes
        self._caches: OrderedDict[tuple[int, ...], Cache] = OrderedDict()

    def __len__(self) -> int:
        return len(self._caches)

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self._caches.values())

    @property
    def newest(self) -> tuple[int, ...]:
        """The prompt that was kept or used last; () without any."""
        return next(reversed(self._caches), ())

    def get(self, ids: Sequence[int]) -> Cache | None:
        """The cache of exactly these tokens."""
        return self._caches.get(tuple(ids))

    def fetch(self, ids: Sequence[int]) -> tuple[Cache | None, int]:
        """A cache of the longest known beginning of ids, and its length: less than all of ids.

        Of a prompt that goes on otherwise the beginning is used where its layers can be trimmed;
        where they cannot, `snapshots` has seen to it that its beginnings are known too.
        """
        found = sorted(
            ((min(common_prefix(key, ids), len(ids) - 1), key) for key in self._caches),
            key=lambda pair: pair[0],
            reverse=True,
        )
        for kept, key in found:
            if kept == 0:
                break
            cache = self._caches[key].copy()
            if cache.trim(cache.length - kept):
                self._caches.move_to_end(key)
                return cache, kept
        return None, 0

    def snapshots(self, ids: Sequence[int], kept: int, cache: Cache) -> list[int]:
        """After how many of ids, `kept` being known, another prompt will probably go on otherwise.

        Where an earlier one did, as behind one system message; and before a chat's last tokens,
        which the history of the next turn has otherwise. None for a cache that can be trimmed.
        """
        if cache.trims:
            return []
        shared = max((common_prefix(key, ids) for key in self._caches), default=0)
        return sorted({n for n in (shared, len(ids) - TAIL) if kept < n < len(ids)})

    def store(self, ids: Sequence[int], cache: Cache) -> None:
        """Keep `cache`, a snapshot that nobody else writes to, as what ids lead to."""
        self._caches[tuple(ids)] = cache
        self._caches.move_to_end(tuple(ids))
        while self._caches and (len(self) > self.entries or self.nbytes > self.most_bytes):
            self._caches.popitem(last=False)


def open_prompt_cache(path: str | os.PathLike[str], model) -> PromptCache:
    """What the file of an earlier run knows; nothing where there is no file yet.

    Raises InputError as load_prompt_cache.
    """
    prompts = PromptCache()
    if Path(path).exists():
        cache, ids = load_prompt_cache(path, model)
        prompts.store(ids, cache)
    return prompts


def keep_prompt_cache(path: str | os.PathLike[str], prompts: PromptCache, model) -> None:
    """Write the newest prompt of `prompts` for open_prompt_cache: of one that cannot be trimmed the
    part before its last tokens, which serves prompts that end otherwise, too."""
    ids = prompts.newest
    earlier = ids[: len(ids) - TAIL]
    cache = prompts.get(earlier)
    if cache is None:
        earlier, cache = ids, prompts.get(ids)
    if cache is not None:
        save_prompt_cache(path, cache, earlier, model)


class PromptReader:
    """Reads a prompt piece by piece, from where `prompts` knows it on, and lets it learn.

    `cache` holds `done` tokens of ids, of which `kept` were known.
    """

    def __init__(
        self, model, ids: list[int], step: int, prompts: PromptCache | None, bits: int | None = None
    ):
        known, self.kept = prompts.fetch(ids) if prompts is not None else (None, 0)
        self.cache = known or model.make_cache(bits=bits)
        self.ids, self.done = ids, self.kept
        self._model, self._prompts = model, prompts
        self._stops: list[int] = []
        if prompts is not None:
            self._stops = prompts.snapshots(ids, self.kept, self.cache)
        self._pieces = pieces(model, self.cache, ids, self.kept, step, self._stops)

    def read(self, watch: Callable[[Tensor, Tensor], None] | None = None) -> Tensor | None:
        """Read a piece; the logits [1, vocab] after the last one, None before.

        `watch(piece, hidden)` gets its tokens [1, L] and the model's hidden states of them.
        """
        self.done, part, hidden = next(self._pieces)
        if watch is not None:
            watch(part, hidden)
        last = self.done == len(self.ids)
        if not last:
            mx.eval(self.cache.arrays())
        if self._prompts is not None and (last or self.done in self._stops):
            self._prompts.store(self.ids[: self.done], self.cache.copy())
        return self._model.logits(hidden[:, -1:])[:, -1] if last else None


def _kinds(cache: Cache) -> list:
    return [
        ["kv", state.window, state.codec.name] if isinstance(state, KVState) else ["recurrent"]
        for state in cache.states
    ]


def _fingerprint(model) -> str:
    """Tells checkpoints of one shape apart, by weights that training changes."""
    rows = (model.model.norm.weight.mx, model.model.embed_tokens.weight.mx[:16])
    with mx.stream(mx.cpu):
        values = [np.array(row.view(mx.uint8)) for row in rows]
    return f"{zlib.crc32(b''.join(value.tobytes() for value in values)):08x}"


def save_prompt_cache(
    path: str | os.PathLike[str], cache: Cache, ids: Sequence[int], model
) -> None:
    """Write what `cache` holds of ids, one row, as a safetensors file. Raises InputError."""
    cache = cache.copy()
    cache.unsettle()
    if cache.length != len(ids):
        raise InputError(f"the cache holds {cache.length} tokens, not the {len(ids)} given")
    arrays = {}
    for layer, state in enumerate(cache.states):
        for part, array in enumerate(state.arrays):
            whole = isinstance(state, KVState) and state.window is None
            arrays[f"{layer}.{part}"] = array[:, :, : cache.length] if whole else array
    about = {
        "torchmlx_prompt_cache": "2",
        "tokens": json.dumps(list(map(int, ids))),
        "layers": json.dumps(_kinds(cache)),
        "model": _fingerprint(model),
    }
    try:
        save(path, arrays, metadata=about)
    except OSError as error:
        raise InputError(f"{path}: cannot write it: {error.strerror}") from None


def load_prompt_cache(path: str | os.PathLike[str], model) -> tuple[Cache, list[int]]:
    """The cache in a file of save_prompt_cache, and its tokens.

    Raises InputError for a file that is damaged or was made by another kind of model.
    """
    path = Path(path)
    with SafetensorsFile(path) as file:
        about = file.metadata
        try:
            ids = [int(i) for i in json.loads(about["tokens"])]
            kinds = json.loads(about["layers"])
            bits = next((int(k[2][1:]) for k in kinds if k[0] == "kv" and k[2] != "plain"), None)
        except (LookupError, TypeError, ValueError, OverflowError, RecursionError):
            raise InputError(f"{path}: not a prompt cache of torchmlx") from None
        if about.get("model") != _fingerprint(model):
            raise InputError(f"{path}: a cache of another model; use another file, or remove it")
        cache = model.make_cache(bits=bits)
        reference = model.make_cache(bits=bits)
        if _kinds(cache) != kinds:
            raise InputError(f"{path}: a cache of another model: its layers are of other kinds")
        _probe(model, reference)
        for layer, state in enumerate(cache.states):
            state.arrays = [
                _checked(file, f"{layer}.{part}", like, _slots(state, len(ids)))
                for part, like in enumerate(reference.states[layer].arrays)
            ]
    cache.count(len(ids))
    return cache, ids


def _probe(model, cache: Cache) -> None:
    """Fill `cache` with one token, to know the shapes that this model's layers hold."""
    with torch.inference_mode():
        model(torch.tensor([[0]], device=cache.device), cache, logits_to_keep=1)


def _slots(state: State, tokens: int) -> int | None:
    """Tokens that a layer keeps of so many; None where its size does not depend on them."""
    if not isinstance(state, KVState):
        return None
    return tokens if state.window is None else min(tokens, state.window + SLACK)


def _checked(file: SafetensorsFile, name: str, like: mx.array, slots: int | None) -> mx.array:
    array = file.read(name)
    shape = list(like.shape)
    if slots is not None:
        shape[2] = slots
    if list(array.shape) != shape or array.dtype != like.dtype:
        raise InputError(
            f"{file.path}: array {name} is {array.dtype} {list(array.shape)}, but this model has "
            f"{like.dtype} {shape}: save the cache again with it"
        )
    return array
