"""torch.random: generators. The CPU's gives the numbers of torch's, draw by draw; a GPU's is
reproducible only.

torch's CPU generator is a Mersenne twister (mt19937, as is NumPy's RandomState) with one spare
normal
sample. What each distribution draws was established against torch 2.13
(tests/torchmlx/test_random.py).
"""

from __future__ import annotations

import math
import secrets
import threading
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np

from .core import device as devices
from .core.cell import of_numpy
from .core.device import device
from .core.tensor import Tensor, from_array

_WORDS = 624
_STATE_BYTES = 5056  # at::detail::CPUGeneratorImplStateLegacy followed by the spare float sample
_GPU_STATE_BYTES = 16


class Generator:
    """A source of random numbers on a device. torch.Generator."""

    def __init__(self, device: str | devices.device = "cpu"):
        self.device = devices.resolve(device)
        self.manual_seed(_DEFAULT_SEED)

    @property
    def on_cpu(self) -> bool:
        return self.device.type == "cpu"

    def manual_seed(self, seed) -> Generator:
        """Start the sequence of `seed` (negative ones count from 2^64)."""
        seed = int(seed)
        if not -(1 << 63) <= seed < 1 << 64:
            raise ValueError("Overflow when unpacking long long")
        self._seed = seed % (1 << 64)
        self._offset = 0
        self._spare: float | None = None
        self._fresh = True
        self._twister = np.random.RandomState(self._seed & 0xFFFFFFFF) if self.on_cpu else None
        return self

    def seed(self) -> int:
        """Seed from the system's entropy; returns the seed."""
        self.manual_seed(secrets.randbits(64))
        return self._seed

    def initial_seed(self) -> int:
        """The seed that the sequence started from."""
        return self._seed

    def clone_state(self) -> Generator:
        """Another generator in the same state."""
        copy = Generator(self.device)
        copy.set_state(self.get_state())
        return copy

    # ---- draws, as NumPy arrays (CPU)

    def bits32(self, n: int) -> np.ndarray:
        """n raw 32-bit words."""
        assert self._twister is not None
        self._fresh = self._fresh and n == 0
        return self._twister.randint(0, 1 << 32, size=n, dtype=np.uint32)

    def bits64(self, n: int) -> np.ndarray:
        """n 64-bit words, each of two draws, the first on top."""
        pairs = self.bits32(2 * n).astype(np.uint64).reshape(n, 2)
        return (pairs[:, 0] << np.uint64(32)) | pairs[:, 1]

    def uniform24(self, n: int) -> np.ndarray:
        """Float32 in [0, 1) with 24 random bits: torch's uniform for float32 and half precision."""
        return (self.bits32(n) & np.uint32(0xFFFFFF)).astype(np.float32) * np.float32(2.0**-24)

    def uniform53(self, n: int) -> np.ndarray:
        """Float64 in [0, 1) with 53 random bits: torch's uniform for float64 and most
        distributions.
        """
        return (self.bits64(n) & np.uint64((1 << 53) - 1)).astype(np.float64) * 2.0**-53

    def normal_serial(self, n: int) -> np.ndarray:
        """Float64 standard normals, two for two uniforms; an odd one is kept for the next call."""
        kept = [] if self._spare is None or n == 0 else [self._spare]
        missing = n - len(kept)
        pairs = -(-missing // 2)
        u = self.uniform53(2 * pairs)
        radius, angle = np.sqrt(-2.0 * np.log1p(-u[1::2])), 2.0 * np.pi * u[::2]
        made = np.empty(2 * pairs)
        made[::2], made[1::2] = radius * np.cos(angle), radius * np.sin(angle)
        if n:
            self._spare = float(made[-1]) if missing % 2 else None
        return np.concatenate([kept, made[:missing]])

    def normal_blocks(self, n: int, kind: str) -> np.ndarray:
        """Standard normals for n >= 16 contiguous elements: blocks of 16 uniforms, the last block
        anew.

        float32 and float64 draw all n uniforms before those of the last block, half types only
        whole blocks.
        """
        draw = self.uniform53 if kind == "float64" else self.uniform24
        whole = n // 16 * 16
        uniforms = draw(n if kind in ("float32", "float64") else whole)
        out = np.empty(n, uniforms.dtype)
        out[:whole] = _box_muller(uniforms[:whole].reshape(-1, 16)).reshape(-1)
        if whole < n:
            out[n - 16 :] = _box_muller(draw(16).reshape(1, 16))[0]
        return out

    def integers(self, n: int, low: int, high: int) -> np.ndarray:
        """int64 in [low, high): one word each, two where the range needs more than 28 bits."""
        span = high - low
        words = self.bits64(n) if span >= 1 << 28 else self.bits32(n).astype(np.uint64)
        remainder = words if span == 1 << 64 else words % np.uint64(span)
        return (remainder + np.uint64(low % (1 << 64))).astype(np.int64)

    def key(self) -> mx.array:
        """A fresh key for mx.random (GPU)."""
        self._offset += 1
        return mx.random.key((self._seed + self._offset * 0x9E3779B97F4A7C15) % (1 << 64))

    # ---- state

    def get_state(self) -> Tensor:
        """The state as a uint8 tensor: torch's own 5,056 bytes for a CPU generator."""
        if not self.on_cpu:
            words = np.array([self._seed, self._offset], np.uint64)
            return _bytes_tensor(words.view(np.uint8))
        assert self._twister is not None
        state_of: Any = self._twister.get_state()
        _, words, position = state_of[:3]
        state = np.zeros(_STATE_BYTES // 8, np.uint64)
        state[0] = self._seed
        state[1] = (_WORDS + 1 - int(position)) | 1 << 32  # words left, and "seeded"
        state[2] = 0 if self._fresh else int(position)
        state[3 : 3 + _WORDS] = words
        if self._spare is not None:
            state[628:629] = np.array([self._spare]).view(np.uint64)
            state[630] = 1
        return _bytes_tensor(state.view(np.uint8))

    def set_state(self, new_state: Tensor) -> Generator:
        """Continue from a state that get_state() returned."""
        data = np.array(new_state.mx, np.uint8)
        if not self.on_cpu:
            if data.size != _GPU_STATE_BYTES:
                raise RuntimeError("RNG state is wrong size")
            self._seed, self._offset = (int(w) for w in data.view(np.uint64))
            return self
        if data.size != _STATE_BYTES:
            raise RuntimeError(
                f"Expected a CPUGeneratorImplState of size {_STATE_BYTES} but found the input "
                "RNG state "
                f"size to be {data.size}"
            )
        state = data.view(np.uint64)
        self.manual_seed(int(state[0]))
        assert self._twister is not None
        position = _WORDS + 1 - (int(state[1]) & 0xFFFFFFFF)
        self._fresh = position == _WORDS and int(state[2]) == 0
        words = state[3 : 3 + _WORDS].astype(np.uint32)
        self._twister.set_state(("MT19937", words, position, 0, 0.0))
        self._spare = float(state[628:629].view(np.float64)[0]) if state[630] else None
        return self

    def __repr__(self):
        return f"<torchmlx.Generator on {self.device}>"

    def __getstate__(self):
        return str(self.device), bytes(np.array(self.get_state().mx))

    def __setstate__(self, saved):
        self.__init__(saved[0])
        self.set_state(_bytes_tensor(np.frombuffer(saved[1], np.uint8)))


_DEFAULT_SEED = 67280421310721  # what torch starts an unseeded generator from


def _bytes_tensor(data: np.ndarray) -> Tensor:
    return from_array(mx.array(np.ascontiguousarray(data)), devices.CPU)


def _box_muller(uniforms: np.ndarray) -> np.ndarray:
    """[blocks, 16] uniforms as normals: the first 8 of a block are radii, the last 8 angles."""
    one = uniforms.dtype.type(1)
    radius = np.sqrt(uniforms.dtype.type(-2) * np.log(one - uniforms[:, :8]))
    angle = uniforms.dtype.type(2 * np.pi) * uniforms[:, 8:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], 1)


default_generator = Generator("cpu")
_gpu_generator = Generator(devices.GPU) if devices.GPU else None
_defaults = [g for g in (default_generator, _gpu_generator) if g is not None]


def default_generators() -> list[Generator]:
    """The generators that this thread draws from when it is given none."""
    return _defaults if _local.generator is None else [_local.generator]


class _Local(threading.local):
    generator: Generator | None = None


_local = _Local()


def use_own_generator(seed: int) -> None:
    """From here on this thread draws CPU numbers from a generator of its own: a loader's worker."""
    _local.generator = Generator("cpu").manual_seed(seed)


def _cpu_generator() -> Generator:
    return _local.generator or default_generator


def generator_for(where: device, generator: Generator | None) -> Generator:
    """The generator to draw from on a device: the given one, which must be of its kind, or the
    default.
    """
    if generator is None:
        on_cpu = where.type in ("cpu", "meta") or not _gpu_generator
        return _cpu_generator() if on_cpu else _gpu_generator  # type: ignore[return-value]
    if where.type != "meta" and generator.device.type != where.type:
        raise RuntimeError(
            f"Expected a '{where.type}' device type for generator but found "
            f"'{generator.device.type}'"
        )
    return generator


def manual_seed(seed) -> Generator:
    """Seed the default generators of all devices. torch.manual_seed."""
    for generator in default_generators():
        generator.manual_seed(seed)
    return _cpu_generator()


def seed() -> int:
    """Seed all devices from the system's entropy; returns the seed. torch.seed."""
    chosen = secrets.randbits(63)
    manual_seed(chosen)
    return chosen


def initial_seed() -> int:
    """The seed of the default CPU generator. torch.initial_seed."""
    return _cpu_generator().initial_seed()


def get_rng_state() -> Tensor:
    """The state of the default CPU generator. torch.get_rng_state."""
    return _cpu_generator().get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Restore the default CPU generator. torch.set_rng_state."""
    _cpu_generator().set_state(new_state)


@contextmanager
def fork_rng(devices=None, enabled=True, device_type=None):
    """Restore the generators' states at the end of the block. torch.random.fork_rng."""
    saved = [(g, g.get_state()) for g in _defaults] if enabled else []
    try:
        yield
    finally:
        for generator, state in saved:
            generator.set_state(state)


def dropout_mask(shape, p: float, generator: Generator | None = None, where=None) -> Tensor:
    """What dropout keeps, bool, True with probability 1 - p: torch CPU's mask for a state."""
    shape, where = tuple(shape), devices.resolve(where)
    source = generator_for(where, generator)
    if not source.on_cpu:
        with devices.stream_of(where):
            return from_array(mx.random.bernoulli(1.0 - p, shape, key=source.key()), where)
    kept = source.uniform53(math.prod(shape)) < 1.0 - p
    return from_array(of_numpy(kept.reshape(shape)), where)
