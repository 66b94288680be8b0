"""A checkpoint's tensors under the names that our modules have, whoever wrote it."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np

from ..errors import InputError
from ..serialization.safetensors import TensorInfo
from .checkpoint import Checkpoint

# Regular expressions and what they become.
Renames = Sequence[tuple[str, str]]
# What multimodal releases, and conversions by mlx-lm, put before or between the names.
PREFIXES = (
    (r"^model\.language_model\.", "model."),
    (r"^language_model\.", ""),
    (r"^model\.mtp\.", "mtp."),
    (r"\.switch_mlp\.", ".experts."),
)
# Parts that the text model does without, the last one unless it is asked for.
PREDICTION = "multi-token prediction"
SKIPPED = (
    (r"^(model\.)?(visual|vision_\w+|multi_modal_projector)\.", "vision"),
    (r"^(model\.)?mtp\.", PREDICTION),
)
# Left in older checkpoints and computed here, or for activations, which stay unquantised.
IGNORED = re.compile(r"(rotary_emb\.inv_freq|\.(input|activation|output|k|v)_scale)$")
# What multiplies e4m3 codes, by the writer: DeepSeek and Qwen; compressed-tensors and ModelOpt;
# DeepSeek-V4; Mistral.
SCALES = ("weight_scale_inv", "weight_scale", "scale", "qscale_weight")
SCALE_TYPES = ("F32", "BF16", "F16", "F8_E8M0", "U8")


class Sources:
    """The tensors of a checkpoint by our names; `renames` are an architecture's own, as regexes.

    With `mtp` what predicts further tokens is the model's, else it is left out too.
    `skipped` counts what was left out, by kind; `left_out` has the stored names. `take` marks a
    tensor as used; `unused` are the others.
    """

    def __init__(self, checkpoint: Checkpoint, renames: Renames = (), mtp: bool = False):
        self.checkpoint = checkpoint
        self.skipped: Counter[str] = Counter()
        self.left_out: list[str] = []
        self._stored: dict[str, str] = {}
        rules = [(re.compile(old), new) for old, new in (*PREFIXES, *renames)]
        for stored in checkpoint.tensors:
            kind = next((kind for rule, kind in SKIPPED if re.search(rule, stored)), None)
            if kind is not None and not (mtp and kind == PREDICTION):
                self.skipped[kind] += 1
                self.left_out.append(stored)
            elif not IGNORED.search(stored):
                self._add(stored, rules)
        self._unused = set(self._stored)

    def _add(self, stored: str, rules: Iterable[tuple[re.Pattern, str]]) -> None:
        name = stored
        for old, new in rules:
            name = old.sub(new, name)
        if name in self._stored:
            raise InputError(
                f"{self.checkpoint.folder}: tensors {ascii(self._stored[name])} and "
                f"{ascii(stored)} are the same weight; remove one"
            )
        self._stored[name] = stored

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def __iter__(self):
        return iter(self._stored)

    def info(self, name: str) -> TensorInfo:
        return self.checkpoint.tensors[self._stored[name]]

    def take(self, name: str) -> TensorInfo:
        """The entry of a tensor, which counts as used from here on."""
        self._unused.discard(name)
        return self.info(name)

    @property
    def unused(self) -> list[str]:
        """Names, as stored, of what no one took."""
        return [stored for name, stored in self._stored.items() if name in self._unused]

    def stored(self, name: str) -> str:
        """The checkpoint's own name."""
        return self._stored[name]

    def place(self, name: str) -> str:
        """File and stored name, for messages."""
        stored = self._stored[name]
        return f"{self.checkpoint.file_of(stored)}: tensor {stored}"

    def read(self, name: str) -> mx.array:
        return self.checkpoint.read(self._stored[name])

    def read_into(self, name: str, out: np.ndarray) -> None:
        self.checkpoint.read_into(self._stored[name], out)

    @property
    def folder(self) -> Path:
        return self.checkpoint.folder

    def scale_of(self, stem: str) -> str | None:
        """The name of the scale of `stem`.weight."""
        return next((n for ending in SCALES if (n := f"{stem}.{ending}") in self), None)


def read_scale(sources: Sources, name: str) -> mx.array:
    """A scale as floats: float32 or bfloat16 as stored, exponent bytes as powers of two."""
    info, array = sources.info(name), sources.read(name)
    if info.dtype in ("F8_E8M0", "U8"):
        with mx.stream(mx.cpu):
            exponents = array.astype(mx.float32) - 127
            return mx.where(array == 255, mx.array(np.nan), mx.power(2.0, exponents))
    return array.astype(mx.float32) if info.dtype == "F16" else array


def blank(shape: Sequence[int], dtype: mx.Dtype) -> tuple[mx.array, np.ndarray]:
    """Zeros, and a NumPy array on the same memory to write them by, of their bytes' type.

    So a stack of tensors is filled one by one and never held twice.
    """
    storage = mx.uint16 if dtype == mx.bfloat16 else dtype  # NumPy knows no bfloat16
    with mx.stream(mx.cpu):
        array = mx.zeros(tuple(shape), storage)
        mx.eval(array)
        raw = np.array(array, copy=False)
        array = array.view(dtype)
        mx.eval(array)
    return array, raw


def bits(array: mx.array, dtype: mx.Dtype) -> np.ndarray:
    """The array cast to `dtype`, as NumPy has its bytes (see `blank`)."""
    with mx.stream(mx.cpu):
        array = array.astype(dtype)
        return np.array(array.view(mx.uint16) if dtype == mx.bfloat16 else array)
