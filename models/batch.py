"""Several prompts at once: read together, padded at the left, then a token a step for each."""

from collections.abc import Sequence

import mlx.core as mx

import torchmlx as torch

from ..errors import InputError
from .generation import check_prompt
from .sampling import Sampler, Sampling, checked
from .stepper import Stepper
from .tokenizer import StopMatcher, Tokenizer


def batch_generate(
    model,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Sequence[int]],
    *,
    max_tokens: int = 512,
    stop: Sequence[str] = (),
    seed: int | None = None,
    prefill_step_size: int = 2048,
    **sampling,
) -> list[str]:
    """The texts that follow `prompts`, each as `generate` would give it alone (greedily; drawn
    tokens come from one generator). Options and errors are stream_generate's.
    """
    rows = [tokenizer.encode(p) if isinstance(p, str) else [int(i) for i in p] for p in prompts]
    if not rows:
        raise InputError("no prompts: give at least one")
    for ids in rows:
        check_prompt(ids, model, max_tokens)
    rules = Sampling(**{**model.generation_defaults, **sampling})
    with torch.inference_mode():
        tokens = _Batch(model, rows, rules, seed, prefill_step_size)
        texts = [_Text(tokenizer, model.eos_token_ids, stop) for _ in rows]
        limit = model.args.max_position_embeddings
        room = [min(max_tokens, limit - len(ids) + 1) for ids in rows]
        for step in range(max(room)):
            for text, token, most in zip(texts, tokens.next(), room, strict=True):
                text.push(token, last=step + 1 >= most)
            if all(text.done for text in texts):
                break
    return [text.text for text in texts]


class _Batch:
    """The rows' next tokens; one step is always ahead."""

    def __init__(self, model, rows: list[list[int]], rules: Sampling, seed, step: int):
        cache = model.make_cache()
        longest = max(map(len, rows))
        # A row's own first token is its padding: no other token may count as seen.
        padded = [ids[:1] * (longest - len(ids)) + ids for ids in rows]
        mask = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in rows]
        ids, seen = (torch.tensor(x, device=cache.device) for x in (padded, mask))
        self.sampler = Sampler(rules, seed, cache.device)
        self.sampler.observe(ids, model.args.vocab_size)
        same = all(len(row) == longest for row in rows)
        logits = None
        for start in range(0, longest, step):
            end = min(start + step, longest)
            part = None if same else seen[:, :end]
            logits = model(ids[:, start:end], cache, part, logits_to_keep=1)
            mx.eval(cache.arrays())
        assert logits is not None
        cache.settle(None if same else seen)
        # The longest row counts from its first token, so the length is right for all.
        self.step = Stepper(model, cache)
        self.tokens = self.sampler(logits[:, -1])

    def next(self) -> list[int]:
        following = self.sampler(self.step(self.tokens)[:, -1])
        mx.async_eval(following.mx)
        values, self.tokens = self.tokens.flatten().tolist(), following
        return values


class _Text:
    """One row's text, up to an end-of-text token, a stop string or its last token."""

    def __init__(self, tokenizer: Tokenizer, ends: frozenset[int], stop: Sequence[str]):
        self.pieces, self.matcher, self.ends = tokenizer.stream(), StopMatcher(stop), ends
        self.text, self.done = "", False

    def push(self, token: int, last: bool) -> None:
        if self.done:
            return
        ended = checked(token) in self.ends
        self.text += self.matcher.push("" if ended else self.pieces.push(token))
        self.done = ended or last or self.matcher.matched is not None
        if self.done:
            self.text += self.matcher.push(self.pieces.finish()) + self.matcher.finish()
