"""Continuous batching: requests join and leave a running batch, a token a step for all of them.

One thread (`Engine`) owns the model. A request's prompt is read alone, a piece between two steps of
the others, and its cache put into a free row; each row has its own length, so no row waits for
another and nothing is padded.
"""

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

import torchmlx as torch
from torchmlx import Tensor

from ..errors import InputError
from .cache import Cache
from .generation import check_prompt
from .prompt_cache import PromptCache, PromptReader
from .sampling import Sampler, Sampling, checked, likeliest
from .stepper import Stepper
from .tokenizer import StopMatcher, Tokenizer

# A prompt is read in pieces of so many tokens, between which the others' tokens come.
PREFILL_STEP = 512
# OpenAI's word for minus infinity, which JSON cannot say.
UNLIKELY = -9999.0


@dataclass(frozen=True)
class Event:
    """What a request hears of one token; `finish_reason` is "stop", "length" or "error" at the end.

    logprob and top (token id, logprob) are of the model's own distribution, where asked for. With
    "error" the text says what went wrong.
    """

    text: str
    token: int
    finish_reason: str | None
    logprob: float | None = None
    top: Sequence[tuple[int, float]] = ()


@dataclass(eq=False)
class Request:
    """A prompt and how to go on from it; `emit` is called with every Event, by the engine's thread.

    Set `cancelled` to leave early. `logprobs` is how many alternatives are wanted; None for no
    probabilities at all.
    """

    ids: list[int]
    emit: Callable[[Event], None]
    rules: Sampling = field(default_factory=Sampling)
    max_tokens: int = 512
    stop: Sequence[str] = ()
    seed: int | None = None
    logprobs: int | None = None
    cancelled: bool = False
    cached_tokens: int = 0


class BusyError(Exception):
    """Too many requests wait already."""


class Row:
    """A request that runs, and what belongs to its newest token, which is not read yet."""

    def __init__(self, request: Request, tokenizer: Tokenizer, args, device):
        self.request = request
        # The last token needs no position of its own: nothing is read after it.
        self.limit = min(request.max_tokens, args.max_position_embeddings - len(request.ids) + 1)
        self.sampler = Sampler(request.rules, request.seed, device)
        self.text, self.matcher = tokenizer.stream(), StopMatcher(request.stop)
        self.generated, self.length = 0, len(request.ids)
        self.sampler.observe(torch.tensor([request.ids], device=device), args.vocab_size)
        self.odds: list[Tensor] = []

    def sample(self, logits: Tensor) -> Tensor:
        """The next token [1, 1] from logits [1, vocab]; nothing waits for the device."""
        token = self.sampler(logits)
        if self.request.logprobs is not None:
            every = logits.float().log_softmax(-1)
            best = torch.topk(every, max(self.request.logprobs, 1))
            self.odds = [every.gather(1, token), best.values, best.indices]
        return token

    def deliver(self, token: int, ends: frozenset[int]) -> bool:
        """Hand out a token; whether it was the last."""
        self.generated += 1
        ended = checked(token) in ends
        piece = self.matcher.push("" if ended else self.text.push(token))
        limit = self.generated == self.limit
        reason = "stop" if ended or self.matcher.matched else "length" if limit else None
        if reason:
            piece += self.matcher.push(self.text.finish()) + self.matcher.finish()
            reason = "stop" if self.matcher.matched else reason
        logprob, top = None, []
        if self.odds:
            chosen, values, indices = (x.flatten().tolist() for x in self.odds)
            count = self.request.logprobs or 0
            chosen, *values = (max(p, UNLIKELY) for p in (*chosen, *values))
            logprob, top = chosen, list(zip(indices, values, strict=True))[:count]
        self.request.emit(Event(piece, token, reason, logprob, top))
        return reason is not None


def describe(error: BaseException) -> str:
    """What a client hears of an error: bad input says itself what to do."""
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"


class Engine:
    """Runs requests in a thread of its own, up to `rows` at a time, `waiting` more in a queue."""

    def __init__(
        self,
        model,
        tokenizer: Tokenizer,
        rows: int = 32,
        waiting: int = 128,
        prefill_step: int = PREFILL_STEP,
        prompts: PromptCache | None = None,
        kv_bits: int | None = None,
    ):
        self.model, self.tokenizer = model, tokenizer
        self.most, self.most_waiting, self.prefill_step = rows, waiting, prefill_step
        self.prompts = PromptCache() if prompts is None else prompts
        self.kv_bits = kv_bits
        self.rows: list[Row | None] = []
        self._waiting: deque[Request] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._clear()
        self._thread = threading.Thread(target=self._run, name="torchmlx-engine", daemon=True)
        self._thread.start()

    def _clear(self) -> None:
        self.rows, self._stepper, self._tokens, self._reading = [], None, None, None

    def submit(self, request: Request) -> None:
        """Queue a request. Raises InputError for a prompt that the model cannot go on from, and
        BusyError when the queue is full."""
        check_prompt(request.ids, self.model, request.max_tokens)
        with self._changed:
            if self._closed or len(self._waiting) >= self.most_waiting:
                raise BusyError(f"{len(self._waiting)} requests wait already; try again later")
            self._waiting.append(request)
            self._changed.notify()

    def close(self) -> None:
        """End the thread after the step it is in; requests that run or wait hear an error."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    @property
    def running(self) -> int:
        """Requests that have a row, or are being read."""
        return sum(row is not None for row in self.rows) + (self._reading is not None)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _run(self) -> None:
        with torch.inference_mode():
            while not self._closed:
                try:
                    if self._reading is None:
                        self._reading = self._next()
                    if self._reading is not None:
                        self._read(*self._reading)
                    if self._stepper is not None:
                        self._step()
                # One request's fault must not end all service, a panic in tokenizers' Rust code
                # neither, which is no Exception.
                except BaseException as error:
                    self._fail(error)
            with self._changed:
                left, self._waiting = list(self._waiting), deque()
            self._fail(ended := RuntimeError("the server is stopping"))
            for request in left:
                self._refuse(request, ended)
            # MLX keeps what a thread compiled until the thread's end, which may be too late for it.
            self._clear()

    def _next(self) -> tuple[Request, PromptReader] | None:
        """A request to read; None where there is none or no room. Waits for something to do."""
        with self._changed:
            while not self._closed and not self._waiting and not self.running:
                self._changed.wait()
            while self._waiting and self.running < self.most:
                request = self._waiting.popleft()
                if not request.cancelled:
                    break
            else:
                return None
        try:
            where = (self.prefill_step, self.prompts, self.kv_bits)
            reader = PromptReader(self.model, request.ids, *where)
        except BaseException as error:
            self._refuse(request, error)
            return None
        request.cached_tokens = reader.kept
        return request, reader

    def _refuse(self, request: Request, error: BaseException) -> None:
        with contextlib.suppress(BaseException):  # whoever cannot hear it must not stop the others
            request.emit(Event(describe(error), -1, "error"))

    def _fail(self, error: BaseException) -> None:
        for row in self.rows:
            if row is not None:
                self._refuse(row.request, error)
        if self._reading is not None:
            self._refuse(self._reading[0], error)
        self._clear()

    def _read(self, request: Request, reader: PromptReader) -> None:
        """Read a piece of the prompt; after the last one the request gets a row."""
        if request.cancelled:
            self._reading = None
            return
        try:
            logits = reader.read()
            if logits is None:
                return
            device = reader.cache.device
            row = Row(request, self.tokenizer, self.model.args, device)
            token = row.sample(logits)
            mx.eval(token.mx)
        except BaseException as error:
            self._reading = None
            self._refuse(request, error)
            return
        self._place(row, reader.cache, token)  # where it fails, _fail tells the request
        self._reading = None

    def _place(self, row: Row, cache: Cache, token: Tensor) -> None:
        if self._stepper is None or self._tokens is None:
            cache.settle()
            self._stepper, self._tokens = Stepper(self.model, cache), token
            self.rows = [row]
            return
        batch = self._stepper.cache
        if None not in self.rows:
            # Twice the rows, so that the step is traced for few sizes; the new ones are copies.
            size = len(self.rows)
            batch.take([*range(size), *itertools.repeat(0, size)])
            self._tokens = torch.cat((self._tokens, self._tokens))
            self.rows += [None] * size
        index = self.rows.index(None)
        batch.put(index, cache)
        before, after = self._tokens[:index], self._tokens[index + 1 :]
        self._tokens = torch.cat((before, token, after))
        self.rows[index] = row

    def _step(self) -> None:
        """Start the next token of every row, then hand out the one before."""
        stepper, tokens = self._stepper, self._tokens
        assert stepper is not None and tokens is not None
        active = [row for row in self.rows if row is not None]
        stepper.cache.length = max(row.length for row in active)
        logits = stepper(tokens)[:, -1]
        # What comes with the tokens to hand out, before sampling replaces it.
        odds = [row.odds for row in active]
        following = self._sample(logits)
        newer = [row.odds for row in active]
        mx.async_eval(following.mx)
        values = tokens.flatten().tolist()
        for index, row in enumerate(self.rows):
            if row is None:
                continue
            row.odds = odds[active.index(row)]
            try:
                done = row.request.cancelled or row.deliver(values[index], self.model.eos_token_ids)
            except BaseException as error:  # its own fault, or that of whoever hears it
                done = True
                self._refuse(row.request, error)
            row.odds = newer[active.index(row)]
            row.length += 1
            if done:
                self.rows[index] = None
        self._tokens = following
        self._shrink()

    def _sample(self, logits: Tensor) -> Tensor:
        plain = all(
            row is None or (row.request.rules.greedy and row.request.logprobs is None)
            for row in self.rows
        )
        if plain:
            return likeliest(logits)
        parts = [
            likeliest(logits[i : i + 1]) if row is None else row.sample(logits[i : i + 1])
            for i, row in enumerate(self.rows)
        ]
        return torch.cat(parts)

    def _shrink(self) -> None:
        """Halve the batch while half of it is free."""
        used = [i for i, row in enumerate(self.rows) if row is not None]
        if not used:
            self.rows, self._stepper, self._tokens = [], None, None
            return
        size = len(self.rows)
        while size > 1 and len(used) <= size // 2:
            size //= 2
        if size == len(self.rows) or self._stepper is None or self._tokens is None:
            return
        order = used + used[:1] * (size - len(used))
        self._stepper.cache.take(order)
        self._tokens = self._tokens[torch.tensor(order, device=self._tokens.device)]
        self.rows = [self.rows[i] for i in used] + [None] * (size - len(used))
