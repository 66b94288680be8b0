"""Caches of prompts read before: kept in memory by their tokens, or saved in a file."""

import json
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

import torchmlx as torch

from ..errors import InputError
from ..serialization.safetensors import SafetensorsFile, save
from .cache import SLACK, Cache, KVState, State


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

    def fetch(self, ids: Sequence[int]) -> tuple[Cache | None, int]:
        """A cache of the longest known beginning of ids, and its length: less than all of ids.

        Of a prompt that goes on otherwise the beginning is used where its layers can be trimmed:
        recurrent ones cannot.
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

    def store(self, ids: Sequence[int], cache: Cache) -> None:
        """Keep `cache`, a snapshot that nobody else writes to, as what ids lead to."""
        self._caches[tuple(ids)] = cache
        self._caches.move_to_end(tuple(ids))
        while self._caches and (len(self) > self.entries or self.nbytes > self.most_bytes):
            self._caches.popitem(last=False)


def _kinds(cache: Cache) -> list:
    return [
        ["kv", state.window, state.codec.name] if isinstance(state, KVState) else ["recurrent"]
        for state in cache.states
    ]


def save_prompt_cache(path: str | os.PathLike[str], cache: Cache, ids: Sequence[int]) -> None:
    """Write what `cache` holds of ids, one row, as a safetensors file."""
    cache = cache.copy()
    cache.unsettle()
    if cache.length != len(ids):
        raise InputError(f"the cache holds {cache.length} tokens, not the {len(ids)} given")
    arrays = {}
    for layer, state in enumerate(cache.states):
        for part, array in enumerate(state.arrays):
            whole = isinstance(state, KVState) and state.window is None
            arrays[f"{layer}.{part}"] = array[:, :, : cache.length] if whole else array
    about = {"torchmlx_prompt_cache": "1", "tokens": json.dumps(list(map(int, ids)))}
    save(path, arrays, metadata={**about, "layers": json.dumps(_kinds(cache))})


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
        except (KeyError, TypeError, ValueError, IndexError):
            raise InputError(f"{path}: not a prompt cache of torchmlx") from None
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
