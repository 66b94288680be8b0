"""What the layers of one forward pass share, computed once."""

from collections.abc import Mapping

import torchmlx as torch
from torchmlx import Tensor

from ..core.tensor import from_array
from .cache import Cache
from .rope import Rope

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


class Step:
    """Positions of the new tokens [B, length], and who sees whom.

    past: tokens before them, as the host knows it; 0 without a cache.
    rows: tokens before them in each row, int32 [B], while the cache decodes; else None.
    padding: bool [B, past + length], False where a row is padded; None where none is, and while
        decoding, when rows have no padding any more.
    """

    def __init__(
        self, ids: Tensor, cache: Cache | None, padding: Tensor | None, ropes: Mapping[str, Rope]
    ):
        self.length, self.device = ids.shape[1], ids.device
        self.past = cache.length if cache is not None else 0
        rows = cache.rows if cache is not None else None
        self.rows = None if rows is None else from_array(rows, self.device)
        self.padding = padding.bool() if padding is not None and self.rows is None else None
        positions, total = self._positions(), self.past + self.length
        self._turns = {kind: rope(positions, total) for kind, rope in ropes.items()}
        self._masks: dict[tuple[int, int | None], Tensor] = {}

    def _positions(self) -> Tensor:
        """[length], or [B, 1, length] where rows differ."""
        new = torch.arange(self.length, device=self.device)
        if self.rows is not None:
            return (self.rows[:, None] + new)[:, None]
        if self.padding is None:
            return new + self.past
        # A left-padded row counts from its first real token.
        counted = self.padding.long().cumsum(-1) - 1
        return counted.clamp(min=0)[:, None, self.past :]

    def turn(self, kind: str) -> tuple[Tensor, Tensor]:
        """cos and sin for a kind of attention; a model with one rotation has FULL only."""
        return self._turns.get(kind) or self._turns[FULL]

    @property
    def real(self) -> Tensor | None:
        """Which of the new tokens are no padding, bool [B, length, 1]; None where all are."""
        return None if self.padding is None else self.padding[:, self.past :, None]

    def sight(self, keys: int, window: int | None) -> dict:
        """What `ops.attention` has to know of `keys` keys: mask, lengths, causal and window."""
        if self.rows is not None:
            if window is not None:
                return {"mask": self.visible(keys, window)}
            # Several new tokens see one another causally, the last one all valid keys.
            return {"lengths": self.rows + self.length, "causal": self.length > 1}
        found: dict = {"causal": self.length > 1 or window is not None, "window": window}
        if self.padding is not None:
            found["mask"] = self.padding[:, None, None, -keys:]
        if found["causal"] and keys != self.length:
            # The last query is at the last key; without lengths the first were at the first.
            found["lengths"] = torch.tensor(keys, device=self.device)
        return found

    def visible(self, keys: int, window: int | None) -> Tensor:
        """Which of the keys each query sees, bool [B or 1, 1, length, keys]."""
        if (keys, window) not in self._masks:
            self._masks[keys, window] = self._visible(keys, window)
        return self._masks[keys, window]

    def _visible(self, keys: int, window: int | None) -> Tensor:
        slots, new = (torch.arange(n, device=self.device) for n in (keys, self.length))
        if self.rows is None:
            # The keys are the last ones up to the newest.
            at, positions = new + (keys - self.length), slots
        else:
            # A slot holds the newest position that is its number modulo the slots.
            last = self.rows[:, None, None, None] + (self.length - 1)
            at = self.rows[:, None, None] + new
            positions = last - (last - slots) % keys
        seen = (positions <= at[..., None]) & (positions >= 0)
        if window is not None:
            seen = seen & (positions > at[..., None] - window)
        if self.rows is not None:
            return seen
        seen = seen[None, None]
        return seen if self.padding is None else seen & self.padding[:, None, None, -keys:]
