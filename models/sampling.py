"""From logits to the next token: biases, penalties, temperature, top-k, top-p, min-p in turn.

The order of the filters is transformers'.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torchmlx as torch
from torchmlx import Tensor, ops

from ..errors import InputError

INFINITY = float("inf")
# Colder than this is greedy, as in vLLM: logits over it leave float32.
COLDEST = 1e-5
# What a Sampler gives instead of a token where the logits are no numbers.
NO_TOKEN = -1
NO_NUMBERS = (
    "the model's logits are not finite numbers (NaN or infinity): its weights are broken, or its "
    "values beyond float16; try --dtype float32, else download it again"
)


@dataclass(frozen=True)
class Sampling:
    """How to choose a token. The defaults are greedy.

    temperature 0 (or below 1e-5) and top_p 0 (as OpenAI and transformers have it; mlx-lm has no
    filter then) take the most likely token; top_k 0, top_p 1, min_p 0 and repetition_penalty 1
    leave everything in. presence_penalty is taken off the logit of each token generated before,
    frequency_penalty once for each time it was (OpenAI's definition; the prompt does not count).
    logit_bias, token id -> number, is added. Raises InputError for values without a meaning.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0 <= self.temperature <= 1e6, "0 (greedy) to 1e6")
        _check("top_k", self.top_k, self.top_k >= 0, "at least 0 (0 keeps all)")
        _check("top_p", self.top_p, 0 <= self.top_p <= 1, "0 to 1")
        _check("min_p", self.min_p, 0 <= self.min_p <= 1, "0 to 1")
        penalty = self.repetition_penalty
        # Beyond, logits times or over it leave float32.
        _check("repetition_penalty", penalty, 1e-6 <= penalty <= 1e6, "1e-6 to 1e6 (1 is none)")
        for name in ("presence_penalty", "frequency_penalty"):
            _check(name, value := getattr(self, name), abs(value) <= 1e6, "-1e6 to 1e6")
        for token, bias in self.logit_bias.items():
            _check(f"logit_bias of {token}", bias, abs(bias) <= 1e6, "-1e6 to 1e6")

    @property
    def likeliest(self) -> bool:
        """Whether nothing is drawn: of the logits, penalised or not, the largest is taken."""
        return self.temperature < COLDEST or self.top_p == 0

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, whatever came before."""
        changes = self.presence_penalty or self.frequency_penalty or self.logit_bias
        return self.likeliest and self.repetition_penalty == 1 and not changes


def _check(name: str, value: float, holds: bool, wanted: str) -> None:
    if not holds or abs(value) == INFINITY:
        raise InputError(f"{name} must be {wanted}, not {value}")


def checked(token: int) -> int:
    """`token` of a Sampler; InputError where the logits it came from were no numbers."""
    if token == NO_TOKEN:
        raise InputError(NO_NUMBERS)
    return token


def likeliest(logits: Tensor) -> Tensor:
    """The likeliest token of each row, int64 [B, 1], from logits [B, vocab]; see NO_TOKEN."""
    return _sound(logits.argmax(-1, keepdim=True), logits)


def _sound(token: Tensor, scores: Tensor) -> Tensor:
    """The largest scores' places [B, 1], NO_TOKEN where such a score is NaN (it wins a maximum) or
    infinite. Scores are [B, vocab]."""
    return token.where(ops.take_along(scores, token).isfinite(), NO_TOKEN)


class Sampler:
    """Draws tokens from logits [B, vocab]; holds which tokens were seen and the random numbers.

    Nothing here waits for the device: tokens come and go as tensors. With a seed on the CPU the
    numbers are torch's, so that transformers draws the same tokens from the same logits.
    """

    def __init__(self, sampling: Sampling, seed: int | None, device) -> None:
        self.sampling = sampling
        self.generator = torch.Generator(device)
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)
        self._seen: Tensor | None = None
        self._counts: Tensor | None = None
        self._bias: Tensor | None = None

    def observe(self, tokens: Tensor, vocab: int) -> None:
        """Count tokens [B, n] as seen, for the repetition penalty."""
        if self.sampling.repetition_penalty == 1:
            return
        seen = self._seen
        if seen is None:
            seen = torch.zeros((tokens.shape[0], vocab), device=tokens.device)
        self._seen = seen.scatter(1, tokens, 1.0)

    def __call__(self, logits: Tensor) -> Tensor:
        """The next token of each row, int64 [B, 1], from logits [B, vocab]."""
        logits = self._biased(logits.float())
        if self._seen is not None:
            logits = penalise(logits, self._seen, self.sampling.repetition_penalty)
        if self.sampling.likeliest:
            token = likeliest(logits)
        else:
            token = self._draw(filtered(logits, self.sampling).softmax(-1))
        self._count(token, logits.shape[-1])
        return token

    def _count(self, token: Tensor, vocab: int) -> None:
        """Take note of tokens [B, 1] that were chosen."""
        if self._seen is None and self._counts is None:
            return
        once = (torch.arange(vocab, device=token.device) == token).float()
        if self._seen is not None:
            self._seen = self._seen.maximum(once)
        if self._counts is not None:
            self._counts = self._counts + once

    def _draw(self, probabilities: Tensor) -> Tensor:
        """torch.multinomial's race of exponential clocks; its checks would wait for the device."""
        clocks = torch.empty_like(probabilities).exponential_(generator=self.generator)
        return _sound((probabilities / clocks).argmax(-1, keepdim=True), probabilities)

    def _biased(self, logits: Tensor) -> Tensor:
        rules = self.sampling
        if rules.logit_bias:
            if self._bias is None:
                self._bias = bias_of(rules.logit_bias, logits)
            logits = logits + self._bias
        if rules.presence_penalty or rules.frequency_penalty:
            counts = torch.zeros_like(logits) if self._counts is None else self._counts
            self._counts = counts
            present = (counts > 0).float() * rules.presence_penalty
            logits = logits - present - counts * rules.frequency_penalty
        return logits


def bias_of(given: Mapping[int, float], logits: Tensor) -> Tensor:
    """logit_bias as a row [vocab]. Raises InputError for a token outside the vocabulary."""
    vocab = logits.shape[-1]
    if outside := [token for token in given if not 0 <= token < vocab]:
        raise InputError(f"logit_bias: token {outside[0]} is outside the vocabulary of {vocab}")
    row = [0.0] * vocab
    for token, bias in given.items():
        row[token] = bias
    return torch.tensor(row, device=logits.device)


def penalise(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Seen tokens made less likely by `penalty` (arXiv:1909.05858, section 4.1)."""
    weakened = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(seen > 0, weakened, logits)


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits over temperature, with every token that a filter drops at -inf."""
    logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = torch.topk(logits, sampling.top_k).values[..., -1:]
        logits = logits.masked_fill(logits < smallest, -INFINITY)
    if sampling.top_p < 1:
        logits = _top_p(logits, sampling.top_p)
    if sampling.min_p > 0:
        probabilities = logits.softmax(-1)
        floor = sampling.min_p * probabilities.amax(-1, keepdim=True)
        logits = logits.masked_fill(probabilities < floor, -INFINITY)
    return logits


def _top_p(logits: Tensor, top_p: float) -> Tensor:
    """Only the likeliest tokens whose mass reaches top_p; always at least one."""
    ascending, order = torch.sort(logits, descending=False)
    drop = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    drop[..., -1:] = False
    return logits.masked_fill(ops.put_along(drop, order, drop), -INFINITY)
