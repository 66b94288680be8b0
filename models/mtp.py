"""Multi-token prediction: the head that Qwen3.5's checkpoints bring to guess the token after next.

arXiv:2412.19437, section 2.2, with names as in the checkpoints (`mtp.*`). Embedding, rotation and
head over the vocabulary are the model's own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torchmlx as torch
from torchmlx import Tensor, nn

from .cache import Cache
from .decoder import CausalLM, Layer, ModelArgs
from .norms import add_and_norm
from .step import Step
from .stepper import Stepper

if TYPE_CHECKING:
    from .attention import Attention


class MTP(nn.Module):
    """From a token's hidden state and the token that follows, the following token's hidden state.

    The two, each normed, go through `fc` and one more decoder layer with a cache of its own.
    """

    def __init__(
        self, args: ModelArgs, mixer: Attention, mlp: nn.Module, norm: Callable[..., nn.Module]
    ):
        super().__init__()
        size, eps = args.hidden_size, args.rms_norm_eps
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = norm(size, eps), norm(size, eps)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layers = nn.ModuleList([Layer(args, mixer, mlp, norm)])
        self.norm = norm(size, eps)

    def make_cache(self, model: CausalLM, bits: int | None = None) -> Cache:
        """An empty cache of the head's layer, where `model` is."""
        return Cache([self.layers[0].mixer.make_state(bits)], model.device)

    def forward(self, model: CausalLM, ids: Tensor, hidden: Tensor, cache: Cache) -> Tensor:
        """Hidden states [B, L, hidden] after ids [B, L], from those of the tokens before them.

        `hidden` [B, L, hidden] is what `model.states` gave (or this, to look further ahead);
        `model.lm_head` makes logits of the result, for the tokens after ids.
        """
        step = Step(ids, cache, None, model.model.ropes)
        embedded = model.model.embed(ids, decoding=step.rows is not None)
        both = self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)
        x, more = self.layers[0](self.fc(torch.cat(both, dim=-1)), None, step, cache[0])
        cache.advance(step.length)
        return add_and_norm(self.norm, x, more)[0]


class HeadDraft:
    """A model's own head as the draft of speculative decoding; see speculative.Draft.

    Between rounds the head has read all tokens but those after the first of `_hidden`: the hidden
    states that wait for the tokens `_following`, which they lead to, and for one more.
    """

    def __init__(self, model: CausalLM, bits: int | None = None):
        head = model.mtp
        assert isinstance(head, MTP), "a model loaded with its head"

        # Not a method of self, which would be a cycle: see Stepper.
        def run(ids: Tensor, hidden: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
            last = head(model, ids, hidden, cache)[:, -1:]
            return last, model.logits(last).argmax(-1)

        self._read = partial(head, model)
        self._stepper = Stepper(model, head.make_cache(model, bits), run)
        self._hidden: Tensor | None = None
        self._following: list[int] = []
        self._ahead = 0

    def read(self, ids: Tensor, hidden: Tensor) -> None:
        """A piece [1, L] of the prompt, and the model's hidden states of it."""
        waiting = [] if self._hidden is None else [self._hidden]
        known = torch.cat((*waiting, hidden[:, :-1]), dim=1)
        if known.shape[1]:
            self._read(ids[:, -known.shape[1] :], known, self._stepper.cache)
        self._hidden = hidden[:, -1:]

    def propose(self, token: Tensor, count: int) -> list[Tensor]:
        """`count` tokens [1, 1] to follow `token`, which follows everything read or kept."""
        assert self._hidden is not None
        known = torch.tensor([self._following], dtype=token.dtype, device=token.device)
        hidden, guess = self._stepper.step(torch.cat((known, token), dim=1), self._hidden)
        proposed = [guess]
        for _ in range(count - 1):
            hidden, guess = self._stepper.step(guess, hidden)
            proposed.append(guess)
        self._ahead = count - 1
        return proposed

    def keep(self, read: list[int], count: int, hidden: Tensor) -> None:
        """The first `count` of the tokens `read` hold; `hidden` [1, L, hidden] is theirs."""
        if not self._stepper.cache.trim(self._ahead):
            raise AssertionError("keys and values can be trimmed")
        self._following, self._hidden = read[1:count], hidden[:, :count]
