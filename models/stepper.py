"""The next tokens of every row of a decoding cache, compiled once a capacity and shape."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence

import mlx.core as mx

import torchmlx as torch
from torchmlx import Tensor

from ..compiling import compiled
from ..core.tensor import from_array
from .cache import Cache


class Stepper:
    """`stepper(tokens)` reads tokens [B, L] into `cache` and gives logits [B, L, vocab].

    `run(*tensors, cache)` takes the model's place where more goes in or comes out; its tensors are
    what `step` takes and gives. `traces` counts how often Python built the graph: once for each B,
    L and capacity (steps of 256 tokens). Nothing waits for the device.
    """

    def __init__(self, model, cache: Cache, run: Callable[..., Sequence[Tensor]] | None = None):
        self.model, self.cache = model, cache
        self._run: Callable[..., Sequence[Tensor]]
        self._run = run or (lambda tokens, cache: (model(tokens, cache),))
        self.traces = 0
        # A rotation that depends on the longest position so far cannot be replayed.
        ropes = model.model.ropes.values()
        self.fixed = all(rope.config.rope_type != "dynamic" for rope in ropes)
        # Not a method of self: in a cycle the compiled graph, its caches and the weights would live
        # on until a collection, in another thread than the one whose table it is in.
        this = weakref.proxy(self)
        self._replay = compiled(lambda given, held: this._trace(given, held), cache.device)

    def _trace(self, given: list[mx.array], held: list[mx.array]) -> tuple[list, list]:
        self.traces += 1
        self.cache.replace(held)
        tensors = (from_array(array, self.cache.device) for array in given)
        found = self._run(*tensors, self.cache)
        return [tensor.mx for tensor in found], self.cache.arrays()

    def __call__(self, tokens: Tensor) -> Tensor:
        return self.step(tokens)[0]

    def step(self, tokens: Tensor, *more: Tensor) -> Sequence[Tensor]:
        """What `run` makes of tokens [B, L] and more; the cache has read them then."""
        cache = self.cache
        if not self.fixed or not cache.length:  # there are no buffers yet
            return self._run(tokens, *more, cache)
        cache.settle()
        new = tokens.shape[1]
        cache.reserve(cache.length + new)
        length = cache.length
        given = [tensor.mx for tensor in (tokens, *more)]
        found, held = self._replay(given, cache.arrays())
        # A replay moves arrays only; a trace has counted on its own.
        cache.length = length
        cache.replace(held)
        cache.count(new)
        return [from_array(array, cache.device) for array in found]


def pieces(
    model, cache: Cache, ids: list[int], start: int, step: int, stops: Iterable[int] = ()
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Read ids[start:] into `cache`, `step` tokens at a time, which bounds a pass's memory.

    A piece ends at each of `stops`, too. Yields after each how many of ids are read, the piece
    [1, L] and its hidden states [1, L, hidden].
    """
    cache.unsettle()
    while start < len(ids):
        end = min([start + step, len(ids), *(stop for stop in stops if stop > start)])
        part = torch.tensor([ids[start:end]], device=cache.device)
        yield end, part, model.model(part, cache, None)
        start = end


def prefill(model, cache: Cache, ids: list[int], step: int) -> Tensor:
    """Read ids into `cache`, `step` tokens at a time; logits [1, vocab] after the last one."""
    logits = None
    for done, _, hidden in pieces(model, cache, ids, 0, step):
        logits = model.logits(hidden[:, -1:])[:, -1]
        if done < len(ids):
            mx.eval(cache.arrays())
    assert logits is not None, "a prompt has at least one token"
    return logits
