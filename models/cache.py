"""What a model remembers of the tokens it has read: a state a layer, and where each row stands.

A `Cache` is in one of two conditions. While *reading* a prompt all rows have `length` tokens, the
shorter ones padding at their left, and the host knows every size. `settle` turns to *decoding*:
buffers of a fixed capacity, each row from its slot 0 on, written where the array `rows` says. The
host need not know the values, so that one compiled step serves until the capacity is used up.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import mlx.core as mx

from torchmlx import Tensor

from ..core import device as devices
from ..core.tensor import from_array
from ..errors import InputError

# Capacity grows in these steps: a buffer is copied, and a step compiled, once every so many tokens.
STEP = 256
# Slots of a window beyond its own, so that a few tokens can be taken back (speculative decoding).
SLACK = 16


def on(device: devices.device) -> AbstractContextManager:
    """MLX's operations inside run on `device`."""
    return devices.stream_of(device) if devices.STREAMS else nullcontext()


def round_up(length: int) -> int:
    """The capacity, in whole steps, that `length` tokens need."""
    return -(-length // STEP) * STEP


class State(Protocol):
    """What one layer remembers. `arrays` holds all of it, batch first, in an order of its own."""

    arrays: list[mx.array]
    # Whether it sums up all tokens, so that none can be taken back.
    recurrent: bool

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` a row."""

    def settle(self, length: int, pads: mx.array | None) -> None:
        """From reading `length` columns, of which row b pads the first pads[b], to decoding."""

    def unsettle(self, length: int, peak: int) -> None:
        """Back to reading. Every row has `length` tokens, and had up to `peak` before trims."""

    def trim(self, length: int, count: int, peak: int | None) -> bool:
        """Forget the last `count` of `length` tokens; False, and no change, where it cannot.

        `peak` is None while reading."""
        ...

    def copy(self) -> State: ...


class Plain:
    """Keys and values as they come."""

    name = "plain"

    def encode(self, x: mx.array) -> list[mx.array]:
        return [x]

    def decode(self, parts: Sequence[mx.array], dtype: mx.Dtype) -> mx.array:
        return parts[0]


class Quantised:
    """Keys and values in 8 or 4 bits: groups along the head, each with scale and offset."""

    def __init__(self, bits: int):
        if bits not in (4, 8):
            raise InputError(f"a cache has 4 or 8 bits, not {bits}")
        self.bits, self.name = bits, f"q{bits}"

    def encode(self, x: mx.array) -> list[mx.array]:
        size = next((n for n in (64, 32) if x.shape[-1] % n == 0), None)
        if size is None:
            raise InputError(
                f"heads of {x.shape[-1]} values have no quantised cache: leave out --kv-bits"
            )
        return list(mx.quantize(x, group_size=size, bits=self.bits))

    def decode(self, parts: Sequence[mx.array], dtype: mx.Dtype) -> mx.array:
        packed, scales, offsets = parts
        size = packed.shape[-1] * 32 // self.bits // scales.shape[-1]
        return mx.dequantize(packed, scales, offsets, group_size=size, bits=self.bits).astype(dtype)


def codec(bits: int | None) -> Plain | Quantised:
    """How keys and values are kept: as they are, or in 8 or 4 `bits`."""
    return Plain() if bits is None else Quantised(bits)


class KVState:
    """Keys and values of an attention layer, [B, H, slots, D] each.

    With a `window` only the last tokens stay: while reading in order, while decoding in a ring,
    where the token at position p has slot p modulo the number of slots.
    """

    recurrent = False

    def __init__(self, window: int | None = None, bits: int | None = None):
        self.window = window
        self.codec = codec(bits)
        self.arrays: list[mx.array] = []

    @property
    def slots(self) -> int:
        return self.arrays[0].shape[2] if self.arrays else 0

    @property
    def plain(self) -> bool:
        """Whether `tensors` are keys and values as they come."""
        return isinstance(self.codec, Plain)

    def tensors(self, device: devices.device) -> list[Tensor]:
        return [from_array(x, device) for x in self.arrays]

    def store(self, *tensors: Tensor) -> None:
        """Replace what is remembered."""
        self.arrays = [t.mx for t in tensors]

    def reserve(self, tokens: int) -> None:
        wanted = round_up(tokens)
        if self.window is not None:
            wanted = min(wanted, self.window + SLACK)
        if self.arrays and wanted > self.slots:
            more = wanted - self.slots
            self.arrays = [mx.pad(x, [(0, 0), (0, 0), (0, more), (0, 0)]) for x in self.arrays]

    def append(
        self, keys: mx.array, values: mx.array, past: int, rows: mx.array | None
    ) -> tuple[mx.array, mx.array]:
        """Store [B, H, L, D] behind `past` tokens (reading) or at `rows` [B] (decoding).

        Returns the keys and values to attend over: while reading those of the tokens kept so far,
        in order, while decoding all slots.
        """
        new = [*self.codec.encode(keys), *self.codec.encode(values)]
        if rows is not None:
            self.arrays = [_write(x, n, rows) for x, n in zip(self.arrays, new, strict=True)]
            seen = self.arrays
        elif self.window is not None:
            if past:
                pairs = zip(self.arrays, new, strict=True)
                new = [mx.concatenate([x, n], axis=2) for x, n in pairs]
            keep = self.window + SLACK
            seen, self.arrays = new, [x[:, :, -keep:] for x in new]
        else:
            seen = self._extend(new, past)
        half = len(seen) // 2
        return (
            self.codec.decode(seen[:half], keys.dtype),
            self.codec.decode(seen[half:], values.dtype),
        )

    def _extend(self, new: list[mx.array], past: int) -> list[mx.array]:
        end = past + new[0].shape[2]
        if not self.arrays:
            self.arrays = [
                mx.zeros((*x.shape[:2], round_up(end), x.shape[3]), x.dtype) for x in new
            ]
        self.reserve(end)
        start = mx.array([past])
        pairs = zip(self.arrays, new, strict=True)
        self.arrays = [mx.slice_update(x, n, start, (2,)) for x, n in pairs]
        return [x[:, :, :end] for x in self.arrays]

    def settle(self, length: int, pads: mx.array | None) -> None:
        if not self.arrays:
            return
        stored = length if self.window is None else self.slots
        self.reserve(length + 1)
        if pads is None and stored == length:
            return
        # Slot s holds the last position that is s modulo the slots; `first` is column 0's position.
        pads = mx.zeros((1,), mx.int32) if pads is None else pads
        count = (length - pads)[:, None]
        position = count - 1 - (count - 1 - mx.arange(self.slots)) % self.slots
        first = length - stored - pads[:, None]
        column = mx.clip(position - first, 0, self.slots - 1)
        self.arrays = [_gather(x, column) for x in self.arrays]

    def unsettle(self, length: int, peak: int) -> None:
        if self.window is None or not self.arrays:
            return
        slot = mx.arange(max(peak - self.slots, 0), length) % self.slots
        self.arrays = [_gather(x, slot[None]) for x in self.arrays]

    def trim(self, length: int, count: int, peak: int | None) -> bool:
        if self.window is None or not self.arrays:
            return True
        kept = self.slots if peak is None else length - max(peak - self.slots, 0)
        # The next token sees window - 1 before it.
        if kept - count < min(length - count, self.window - 1):
            return False
        if peak is None:
            self.arrays = [x[:, :, : kept - count] for x in self.arrays]
        return True

    def copy(self) -> KVState:
        new = KVState(self.window)
        new.codec, new.arrays = self.codec, list(self.arrays)
        return new


class RecurrentState:
    """Arrays of a size of their own that sum up all tokens, such as a convolution's last inputs.

    Empty before the first token; a layer reads `tensors` and leaves new ones there.
    """

    recurrent = True

    def __init__(self) -> None:
        self.arrays: list[mx.array] = []

    def tensors(self, device: devices.device) -> list[Tensor]:
        return [from_array(x, device) for x in self.arrays]

    def store(self, *tensors: Tensor) -> None:
        """Replace what is remembered; each tensor [B, ..]."""
        self.arrays = [t.mx for t in tensors]

    def reserve(self, tokens: int) -> None:
        pass

    def settle(self, length: int, pads: mx.array | None) -> None:
        pass

    def unsettle(self, length: int, peak: int) -> None:
        pass

    def trim(self, length: int, count: int, peak: int | None) -> bool:
        return count == 0

    def copy(self) -> RecurrentState:
        new = RecurrentState()
        new.arrays = list(self.arrays)
        return new


def _write(buffer: mx.array, new: mx.array, rows: mx.array) -> mx.array:
    """Row b of `new` [B, H, L, D] at slot rows[b] of the ring `buffer`."""
    slots, length = buffer.shape[2], new.shape[2]
    if new.shape[0] == 1 and length == 1:
        return mx.slice_update(buffer, new, rows % slots, (2,))
    slot = (rows[:, None] + mx.arange(length)) % slots
    return mx.put_along_axis(buffer, slot[:, None, :, None], new, axis=2)


def _gather(x: mx.array, slots: mx.array) -> mx.array:
    """Slots [B or 1, n] of x [B, H, .., D], as its new ones."""
    return mx.take_along_axis(x, slots[:, None, :, None], axis=2)


class Cache:
    """The states of all layers of a model for B rows; see the top of this file.

    `length` counts the tokens of every row while reading, padding included; while decoding it is
    at least that of the longest row. `rows` [B] int32 is None while reading.
    """

    def __init__(self, states: Sequence[State], device: devices.device):
        self.states = list(states)
        self.device = device
        self.length = 0
        self.rows: mx.array | None = None
        self._peak = 0
        self._mark: tuple[int, list[list[mx.array]]] | None = None

    def __getitem__(self, layer: int) -> State:
        return self.states[layer]

    def arrays(self) -> list[mx.array]:
        """Everything it holds, to evaluate, or to give to a compiled step."""
        held = [x for state in self.states for x in state.arrays]
        return held if self.rows is None else [self.rows, *held]

    def replace(self, arrays: Sequence[mx.array]) -> None:
        """Take what a step made of `arrays()`."""
        rest = iter(arrays)
        if self.rows is not None:
            self.rows = next(rest)
        for state in self.states:
            state.arrays = [next(rest) for _ in state.arrays]

    def advance(self, count: int) -> None:
        """Count tokens that every layer has stored."""
        self.count(count)
        if self.rows is not None:
            self.rows = self.rows + count

    def count(self, tokens: int) -> None:
        """The host's part of `advance`."""
        self.length += tokens
        self._peak = max(self._peak, self.length)

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` a row; what is there stays."""
        with on(self.device):
            for state in self.states:
                state.reserve(tokens)

    def settle(self, padding: Tensor | None = None) -> None:
        """Begin decoding. `padding` [B, length] is 0 where the prompt was padded, at the left."""
        if self.rows is not None:
            return
        with on(self.device):
            pads = None
            rows = self.states[0].arrays[0].shape[0] if self.length else 1
            if padding is not None:
                pads = self.length - padding.mx.astype(mx.int32).sum(axis=1)
            for state in self.states:
                state.settle(self.length, pads)
            lengths = mx.full((rows,), self.length, mx.int32)
            self.rows = lengths if pads is None else lengths - pads
            self._peak = self.length

    def unsettle(self) -> None:
        """Back to reading, of one row or rows of one length."""
        if self.rows is None:
            return
        with on(self.device):
            for state in self.states:
                state.unsettle(self.length, self._peak)
        self.rows = None

    def mark(self) -> None:
        """Remember this moment, which `trim` may then return to in recurrent layers too."""
        self._mark = (self.length, [list(s.arrays) for s in self.states if s.recurrent])

    def trim(self, count: int) -> bool:
        """Forget the last `count` tokens of every row; False, and no change, where it cannot.

        Layers with a window go back a few tokens, recurrent layers only to the `mark`.
        """
        length = self.length - count
        recurrent = [state for state in self.states if state.recurrent]
        marked = self._mark is not None and self._mark[0] == length
        if not 0 <= count <= self.length or (count and recurrent and not marked):
            return False
        if count == 0:
            return True
        before = [state.arrays for state in self.states]
        peak = None if self.rows is None else self._peak
        with on(self.device):
            for state in self.states:
                if not state.recurrent and not state.trim(self.length, count, peak):
                    for each, arrays in zip(self.states, before, strict=True):
                        each.arrays = arrays
                    return False
            if self.rows is not None:
                self.rows = self.rows - count
        if recurrent and self._mark is not None:
            for state, arrays in zip(recurrent, self._mark[1], strict=True):
                state.arrays = list(arrays)
        self.length = length
        return True

    @property
    def trims(self) -> bool:
        """Whether `trim` goes back to any place: not with recurrent layers, nor with windows."""
        return all(isinstance(s, KVState) and s.window is None for s in self.states)

    def copy(self) -> Cache:
        """A snapshot. It shares memory with this one until either is written to."""
        new = Cache([state.copy() for state in self.states], self.device)
        new.length, new.rows, new._peak = self.length, self.rows, self._peak
        return new

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self.arrays())

    def take(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; one may be named again."""
        index = mx.array(list(rows), mx.int32)
        with on(self.device):
            self.replace([mx.take(x, index, axis=0) for x in self.arrays()])

    @property
    def capacity(self) -> int:
        """Tokens a row that there is room for, as far as windows do not bound it."""
        return max((s.slots for s in self.states if isinstance(s, KVState)), default=0)

    def put(self, row: int, other: Cache) -> None:
        """Let `other`, of one row, be row `row` of these; both decode."""
        tokens = max(self.capacity, other.capacity, self.length + 1, other.length + 1)
        for cache in (self, other):
            cache.settle()
            cache.reserve(tokens)
        with on(self.device):
            at = mx.array([row])
            pairs = zip(self.arrays(), other.arrays(), strict=True)
            self.replace([mx.slice_update(mine, new, at, (0,)) for mine, new in pairs])
        self.length = max(self.length, other.length)
        self._peak = max(self._peak, other._peak)
