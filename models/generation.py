"""The generation loop: prompt in, text out, one token at a time."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

import torchmlx as torch

from ..errors import InputError
from .mtp import HeadDraft
from .prompt_cache import PromptCache, PromptReader
from .sampling import Sampler, Sampling, checked
from .speculative import Draft, ModelDraft, check_draft, check_draft_tokens, speculate
from .stepper import Stepper
from .tokenizer import StopMatcher, Tokenizer

# Prompts are read in pieces of this many tokens, which bounds the memory of one forward pass.
PREFILL_STEP = 2048


@dataclass(frozen=True)
class Response:
    """One step of `stream_generate`.

    `text` is what this step adds (empty while a character or a stop string may be incomplete);
    `finish_reason` is None until the last step, then "stop" or "length"; `from_draft` is whether
    speculative decoding had proposed the token. Speeds are tokens per second, `peak_memory` is
    bytes.
    """

    text: str
    token: int
    finish_reason: str | None
    prompt_tokens: int
    prompt_tps: float
    generation_tokens: int
    generation_tps: float
    peak_memory: int
    from_draft: bool = False


@dataclass(frozen=True)
class Reading:
    """How a prompt is read; see stream_generate."""

    prompts: PromptCache | None
    kv_bits: int | None
    step: int
    report: Callable[[int, int], None] | None
    draft: Any
    draft_tokens: int


def generate(model, tokenizer: Tokenizer, prompt: str | Sequence[int], **options) -> str:
    """The text that follows `prompt`; options are stream_generate's."""
    return "".join(r.text for r in stream_generate(model, tokenizer, prompt, **options))


def stream_generate(
    model,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    *,
    max_tokens: int = 512,
    stop: Sequence[str] = (),
    seed: int | None = None,
    kv_bits: int | None = None,
    prefill_step_size: int = PREFILL_STEP,
    prompt_cache: PromptCache | None = None,
    progress: Callable[[int, int], None] | None = None,
    draft_model=None,
    mtp: bool = False,
    num_draft_tokens: int = 3,
    **sampling,
) -> Iterator[Response]:
    """Generate from `prompt` (text, or token ids) and yield a Response for every token.

    `sampling` takes temperature, top_k, top_p, min_p and repetition_penalty; what is left out comes
    from the checkpoint's generation_config.json, and else is greedy. Ends at any end-of-text token
    of the model, before any of the `stop` strings, after `max_tokens`, or at the model's last
    position. Raises InputError for an empty prompt or one longer than the model's positions.

    The prompt is read `prefill_step_size` tokens at a time, after each of which `progress(done,
    total)` is called. `kv_bits`, 4 or 8, keeps keys and values quantised. What `prompt_cache` knows
    of the prompt is not read again, and it learns this prompt. A `draft_model` with the same
    tokens proposes `num_draft_tokens` at a time, which the model checks in one pass: the text is
    the same, and comes faster where the draft is cheap and often right. With `mtp` the checkpoint's
    own head proposes, where load(.., mtp=True) found one; else tokens come one by one.
    """
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else [int(i) for i in prompt]
    check_prompt(ids, model, max_tokens)
    rules = Sampling(**{**model.generation_defaults, **sampling})
    check_draft_tokens(num_draft_tokens)
    if draft_model is not None:
        if mtp:
            raise InputError("a draft model and mtp exclude each other: leave out one")
        check_draft(draft_model, tokenizer)
    draft = model.mtp if mtp else draft_model
    given = (prompt_cache, kv_bits, prefill_step_size, progress, draft, num_draft_tokens)
    options = Reading(*given)
    return _run(model, tokenizer, ids, max_tokens, tuple(stop), seed, rules, options)


def check_prompt(ids: list[int], model, max_tokens: int) -> None:
    """Raises InputError for what cannot be generated from."""
    limit, vocab = model.args.max_position_embeddings, model.args.vocab_size
    if not ids:
        raise InputError("the prompt is empty: give it some text")
    if len(ids) > limit:
        raise InputError(
            f"the prompt has {len(ids)} tokens, but the model has {limit} positions: shorten it"
        )
    if not all(0 <= i < vocab for i in ids):
        raise InputError(f"the prompt has token ids outside the model's vocabulary of {vocab}")
    if max_tokens < 1:
        raise InputError(f"max_tokens must be at least 1, not {max_tokens}")


@torch.inference_mode()
def _run(
    model, tokenizer, ids: list[int], max_tokens: int, stop: tuple[str, ...], seed, rules, options
) -> Iterator[Response]:
    room = model.args.max_position_embeddings - len(ids) + 1
    steps = min(max_tokens, room)
    sampler = Sampler(rules, seed, model.device)
    started = time.perf_counter()
    tokens = _tokens(model, ids, sampler, options)
    text, matcher = tokenizer.stream(), StopMatcher(stop)
    prompt_seconds, first = 0.0, 0.0
    for n in range(1, steps + 1):
        token, from_draft = next(tokens)
        now = time.perf_counter()
        if n == 1:
            prompt_seconds, first = now - started, now
        ended = token in model.eos_token_ids
        piece = matcher.push("" if ended else text.push(token))
        reason = "stop" if ended or matcher.matched else "length" if n == steps else None
        if reason:
            piece += matcher.push(text.finish()) + matcher.finish()
            reason = "stop" if matcher.matched else reason
        yield Response(
            text=piece,
            token=token,
            finish_reason=reason,
            prompt_tokens=len(ids),
            prompt_tps=len(ids) / max(prompt_seconds, 1e-9),
            generation_tokens=n,
            generation_tps=(n - 1) / (now - first) if n > 1 else 0.0,
            peak_memory=mx.get_peak_memory(),
            from_draft=from_draft,
        )
        if reason:
            return


def _tokens(
    model, ids: list[int], sampler: Sampler, options: Reading
) -> Iterator[tuple[int, bool]]:
    """Sampled tokens, without end, and whether a draft had proposed them.

    The next step is already running while one is handed out.
    """
    reader = PromptReader(model, ids, options.step, options.prompts, options.kv_bits)
    cache = reader.cache
    sampler.observe(torch.tensor([ids], device=cache.device), model.args.vocab_size)
    draft = _draft(model, ids[: reader.kept], options)
    logits = None
    while logits is None:
        logits = reader.read(None if draft is None else draft.read)
        if options.report is not None:
            mx.eval(cache.arrays())
            options.report(reader.done - reader.kept, len(ids) - reader.kept)
    token = sampler(logits)
    mx.async_eval(token.mx)
    if draft is not None:
        yield from speculate(model, cache, token, sampler, draft, options.draft_tokens)
        return
    step = Stepper(model, cache)
    while True:
        following = sampler(step(token)[:, -1])
        mx.async_eval(following.mx)
        yield checked(int(token.item())), False
        token = following


def _draft(model, known: list[int], options: Reading) -> Draft | None:
    """What proposes tokens, having read `known`: of what it has not seen, a head does without."""
    if options.draft is None:
        return None
    if options.draft is model.mtp:
        return HeadDraft(model, options.kv_bits)
    return ModelDraft(options.draft, known)
