"""How likely a model finds a text."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torchmlx as torch
from torchmlx.nn import functional as F

from ..errors import InputError
from .sampling import NO_NUMBERS
from .tokenizer import Tokenizer


@dataclass(frozen=True)
class Score:
    """Negative log-likelihood in nats, summed over `tokens` predicted tokens of `bytes` bytes."""

    total: float
    tokens: int
    bytes: int

    @property
    def per_token(self) -> float:
        return self.total / self.tokens

    @property
    def per_byte(self) -> float:
        return self.total / self.bytes


def score(
    model,
    tokenizer: Tokenizer,
    text: str,
    context: int = 2048,
    progress: Callable[[int, int], None] | None = None,
) -> Score:
    """The likelihood of `text`, in pieces of `context` tokens that do not see one another.

    The first token of each piece is given, its bytes do not count. Raises InputError for a text of
    fewer than two tokens, and for a model whose logits are not finite.
    """
    ids = tokenizer.encode(text)
    context = min(context, model.args.max_position_embeddings)
    if len(ids) < 2 or context < 2:
        raise InputError("a text of at least two tokens, and a context of two, are needed")
    total, tokens, size = 0.0, 0, 0
    for start in range(0, len(ids), context):
        piece = ids[start : start + context]
        if len(piece) > 1:
            total += _nll(model, piece)
            tokens += len(piece) - 1
            size += _bytes(tokenizer, piece) - _bytes(tokenizer, piece[:1])
        if progress is not None:
            progress(min(start + context, len(ids)), len(ids))
    if not math.isfinite(total):
        raise InputError(NO_NUMBERS)
    return Score(total, tokens, max(size, 1))


def _bytes(tokenizer: Tokenizer, ids: list[int]) -> int:
    return len(tokenizer.decode(ids, skip_special_tokens=True).encode())


def _nll(model, ids: list[int]) -> float:
    where = model.model.norm.weight.device
    with torch.inference_mode():
        logits = model(torch.tensor([ids], device=where))[0, :-1].float()
        targets = torch.tensor(ids[1:], device=where)
        return float(F.cross_entropy(logits, targets, reduction="sum").item())
