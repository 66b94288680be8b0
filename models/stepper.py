"""The next tokens of every row of a decoding cache, compiled once a capacity and shape."""

import weakref

import mlx.core as mx

import torchmlx as torch
from torchmlx import Tensor

from ..compiling import compiled
from ..core.tensor import from_array
from .cache import Cache


class Stepper:
    """`stepper(tokens)` reads tokens [B, L] into `cache` and gives logits [B, L, vocab].

    `traces` counts how often Python built the graph: once for each B, L and capacity (steps of 256
    tokens). Nothing waits for the device.
    """

    def __init__(self, model, cache: Cache):
        self.model, self.cache = model, cache
        self.traces = 0
        # A rotation that depends on the longest position so far cannot be replayed.
        ropes = model.model.ropes.values()
        self.fixed = all(rope.config.rope_type != "dynamic" for rope in ropes)
        # Not a method of self: in a cycle the compiled graph, its caches and the weights would live
        # on until a collection, in another thread than the one whose table it is in.
        this = weakref.proxy(self)
        self._replay = compiled(lambda tokens, held: this._trace(tokens, held), cache.device)

    def _trace(self, tokens: mx.array, held: list[mx.array]) -> tuple[mx.array, list[mx.array]]:
        self.traces += 1
        self.cache.replace(held)
        logits = self.model(from_array(tokens, self.cache.device), self.cache)
        return logits.mx, self.cache.arrays()

    def __call__(self, tokens: Tensor) -> Tensor:
        cache = self.cache
        if not self.fixed:
            return self.model(tokens, cache)
        cache.settle()
        new = tokens.shape[1]
        cache.reserve(cache.length + new)
        length = cache.length
        logits, held = self._replay(tokens.mx, cache.arrays())
        # A replay moves arrays only; a trace has counted on its own.
        cache.length = length
        cache.replace(held)
        cache.count(new)
        return from_array(logits, cache.device)


def prefill(model, cache: Cache, ids: list[int], step: int, report=None) -> Tensor:
    """Read ids into `cache`, `step` tokens at a time; logits [1, vocab] after the last one.

    `report(done, total)` hears of the progress after each piece. The pieces bound the memory of a
    forward pass.
    """
    cache.unsettle()
    logits = None
    for start in range(0, len(ids), step):
        part = torch.tensor([ids[start : start + step]], device=cache.device)
        logits = model(part, cache, logits_to_keep=1)
        if report is not None or start + step < len(ids):
            mx.eval(cache.arrays())
        if report is not None:
            report(min(start + step, len(ids)), len(ids))
    assert logits is not None, "a prompt has at least one token"
    return logits[:, -1]
