"""Speculative decoding (arXiv:2211.17192): a small model proposes tokens, a large one checks them.

A proposal counts where it is the token that the model's own sampler draws at that place, so the
tokens are drawn as without a draft: greedily the very same.
"""

from collections.abc import Iterator

import mlx.core as mx

import torchmlx as torch
from torchmlx import Tensor

from ..errors import InputError
from .cache import SLACK, Cache
from .sampling import Sampler
from .stepper import Stepper, prefill
from .tokenizer import Tokenizer

PREFILL_STEP = 2048


def check_draft(draft, tokenizer: Tokenizer, count: int) -> None:
    """Raises InputError for a draft that does not know the tokens, or too many at a time."""
    if draft.args.vocab_size < tokenizer.vocab_size:
        raise InputError(
            f"the draft model has {draft.args.vocab_size} tokens, the tokenizer "
            f"{tokenizer.vocab_size}: use a draft of the same family"
        )
    if not 1 <= count < SLACK:
        raise InputError(f"num_draft_tokens must be from 1 to {SLACK - 1}, not {count}")


def speculate(
    model, cache: Cache, ids: list[int], token: Tensor, sampler: Sampler, draft, count: int
) -> Iterator[int]:
    """Tokens from `token` [1, 1] on, which follows ids; `cache` holds ids. Without end."""
    helper = Stepper(draft, draft.make_cache())
    prefill(draft, helper.cache, ids, PREFILL_STEP)
    checker = Stepper(model, cache)
    yield int(token.item())
    while True:
        for each in (cache, helper.cache):
            each.mark()
        proposed = [token]
        for _ in range(count):
            proposed.append(helper(proposed[-1])[:, -1].argmax(-1, keepdim=True))
        # The last one too is read, so that the draft has read it if it counts.
        helper(proposed[-1])
        tokens = torch.cat(proposed, dim=1)
        logits = checker(tokens)
        mx.async_eval(logits.mx, tokens.mx)
        drawn = _draw(logits, tokens.flatten().tolist()[1:], sampler)
        read = tokens.flatten().tolist()
        for each in (checker, helper):
            _keep(each, read, len(drawn))
        token = torch.tensor([drawn[-1:]], device=tokens.device)
        yield from drawn


def _draw(logits: Tensor, proposed: list[int], sampler: Sampler) -> list[int]:
    """The tokens that the sampler draws, up to the first that was not proposed."""
    drawn = []
    for place in range(logits.shape[1]):
        drawn.append(int(sampler(logits[:, place]).item()))
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
