"""The key-value cache of one attention layer."""

import mlx.core as mx

from torchmlx import Tensor

STEP = 256


class KVCache:
    """Keys and values of the positions seen so far, [B, H, L, D] each.

    Capacity grows in steps of 256, so that the buffer is copied once every 256 tokens and written
    in place in between.
    """

    def __init__(self) -> None:
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values [B, H, new, D] and return all so far, [B, H, length, D]."""
        end = self.length + keys.shape[2]
        self._keys = _store(self._keys, keys, self.length, end)
        self._values = _store(self._values, values, self.length, end)
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def arrays(self) -> list[mx.array]:
        """What the cache holds, to evaluate."""
        return [t.mx for t in (self._keys, self._values) if t is not None]


def _store(buffer: Tensor | None, new: Tensor, start: int, end: int) -> Tensor:
    if buffer is None or end > buffer.shape[2]:
        batch, heads, _, dim = new.shape
        capacity = -(-end // STEP) * STEP
        grown = new.new_zeros((batch, heads, capacity, dim))
        if buffer is not None:
            grown[:, :, :start] = buffer[:, :, :start]
        buffer = grown
    buffer[:, :, start:end] = new
    return buffer
