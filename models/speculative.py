"""Speculative decoding (arXiv:2211.17192): what is cheap proposes tokens, the model checks them.

A proposal counts where it is the token that the model's own sampler draws at that place, so the
tokens are drawn as without a draft: greedily the very same.
"""

from collections.abc import Iterator
from typing import Protocol

import mlx.core as mx

import torchmlx as torch
from torchmlx import Tensor

from ..errors import InputError
from .cache import SLACK, Cache
from .sampling import Sampler, checked
from .stepper import Stepper, prefill
from .tokenizer import Tokenizer

PREFILL_STEP = 2048


def check_draft(draft, tokenizer: Tokenizer) -> None:
    """Raises InputError for a draft that does not know the tokens."""
    if draft.args.vocab_size < tokenizer.vocab_size:
        raise InputError(
            f"the draft model has {draft.args.vocab_size} tokens, the tokenizer "
            f"{tokenizer.vocab_size}: use a draft of the same family"
        )


def check_draft_tokens(count: int) -> None:
    """Raises InputError for more tokens at a time than caches can take back, or none."""
    if not 1 <= count < SLACK:
        raise InputError(f"num_draft_tokens must be from 1 to {SLACK - 1}, not {count}")


class Draft(Protocol):
    """What proposes tokens of a sequence of one row, as the model reads it."""

    def read(self, ids: Tensor, hidden: Tensor) -> None:
        """A piece [1, L] of the prompt, and the model's hidden states [1, L, hidden] of it."""

    def propose(self, token: Tensor, count: int) -> list[Tensor]:
        """`count` tokens [1, 1] to follow `token`, which follows everything read or kept."""
        ...

    def keep(self, read: list[int], count: int, hidden: Tensor) -> None:
        """The first `count` of the tokens `read` (the last one and the proposals) hold."""


class ModelDraft:
    """A smaller model with the same tokens as the draft; `known` is what the model knows before."""

    def __init__(self, model, known: list[int]):
        self._stepper = Stepper(model, model.make_cache())
        if known:
            prefill(model, self._stepper.cache, known, PREFILL_STEP)

    def read(self, ids: Tensor, hidden: Tensor) -> None:
        self._stepper.model(ids, self._stepper.cache, logits_to_keep=1)

    def propose(self, token: Tensor, count: int) -> list[Tensor]:
        self._stepper.cache.mark()
        proposed = [token]
        for _ in range(count):
            proposed.append(self._stepper(proposed[-1])[:, -1].argmax(-1, keepdim=True))
        # The last one too is read, so that it is there if it counts.
        self._stepper(proposed[-1])
        return proposed[1:]

    def keep(self, read: list[int], count: int, hidden: Tensor) -> None:
        _keep(self._stepper, read, count)


def speculate(
    model, cache: Cache, token: Tensor, sampler: Sampler, draft: Draft, count: int
) -> Iterator[tuple[int, bool]]:
    """Tokens from `token` [1, 1] on, which follows what `cache` holds, and whether the draft had
    proposed them. Without end."""

    def run(tokens: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        hidden = model.model(tokens, cache, None)
        return hidden, model.logits(hidden)

    checker = Stepper(model, cache, run)
    yield checked(int(token.item())), False
    while True:
        cache.mark()
        tokens = torch.cat((token, *draft.propose(token, count)), dim=1)
        hidden, logits = checker.step(tokens)
        mx.async_eval(logits.mx, tokens.mx)
        read = tokens.flatten().tolist()
        drawn = _draw(logits, read[1:], sampler)
        _keep(checker, read, len(drawn))
        draft.keep(read, len(drawn), hidden)
        token = torch.tensor([drawn[-1:]], device=tokens.device)
        yield from ((t, i + 1 < len(drawn)) for i, t in enumerate(drawn))


def _draw(logits: Tensor, proposed: list[int], sampler: Sampler) -> list[int]:
    """The tokens that the sampler draws, up to the first that was not proposed."""
    drawn = []
    for place in range(logits.shape[1]):
        drawn.append(checked(int(sampler(logits[:, place]).item())))
        if place < len(proposed) and drawn[-1] != proposed[place]:
            break
    return drawn


def _keep(stepper: Stepper, read: list[int], count: int) -> None:
    """Of the tokens just read keep the first `count`; recurrent layers read those once more."""
    cache = stepper.cache
    if cache.trim(len(read) - count):
        return
    if not cache.trim(len(read)):
        raise AssertionError("a cache returns to its mark")
    again = torch.tensor([read[:count]], device=cache.device)
    stepper.model(again, cache, logits_to_keep=1)
