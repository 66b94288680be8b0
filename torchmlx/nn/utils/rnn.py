"""Sequences of several lengths in one tensor: padded, or packed by steps. torch.nn.utils.rnn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ...core.op import TABLE
from ...core.tensor import Tensor

__all__ = [
    "PackedSequence",
    "invert_permutation",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]


class _Packed(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Packed):
    """Sequences, the longest first, of which `data` holds all first steps, all second ones, ...

    data: [sum of lengths, ...]; batch_sizes: int64 [longest length] on the CPU, how many sequences
    reach each step; sorted_indices, unsorted_indices: the order by length and back, or None.
    """

    def __new__(cls, data, batch_sizes=None, sorted_indices=None, unsorted_indices=None):
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        if batch_sizes is None:  # (data, batch_sizes) in one
            data, batch_sizes = data
        if batch_sizes.device.type != "cpu":
            raise ValueError(
                "batch_sizes should always be on CPU. Instances of PackedSequence should never be "
                "created manually. They should be instantiated by functions like pack_sequence and "
                "pack_padded_sequences in nn.utils.rnn. https://pytorch.org/docs/stable/nn.html"
                "#torch.nn.utils.rnn.pack_sequence"
            )
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args, **kwargs) -> PackedSequence:
        """The same with `data` moved or converted, and the orders on its device."""
        data = self.data.to(*args, **kwargs)  # type: ignore[attr-defined]
        if data is self.data:
            return self
        orders = (
            i if i is None else i.to(data.device)  # type: ignore[attr-defined]
            for i in (self.sorted_indices, self.unsorted_indices)
        )
        return type(self)(data, self.batch_sizes, *orders)

    def _as(self, name: str, *args) -> PackedSequence:
        return self.to(getattr(self.data, name)(*args).dtype)

    def cuda(self, *args, **kwargs) -> PackedSequence:
        """On the CUDA device."""
        return self.to("cuda")

    def cpu(self, *args, **kwargs) -> PackedSequence:
        """On the CPU."""
        return self.to("cpu")

    def double(self) -> PackedSequence:
        """With data of float64."""
        return self._as("double")

    def float(self) -> PackedSequence:
        """With data of float32."""
        return self._as("float")

    def half(self) -> PackedSequence:
        """With data of float16."""
        return self._as("half")

    def long(self) -> PackedSequence:
        """With data of int64."""
        return self._as("long")

    def int(self) -> PackedSequence:
        """With data of int32."""
        return self._as("int")

    def pin_memory(self) -> PackedSequence:
        """Itself: memory is the device's already."""
        return self

    @property
    def is_cuda(self) -> bool:
        """Whether data is on a CUDA device."""
        return self.data.is_cuda  # type: ignore[attr-defined]

    def is_pinned(self) -> bool:
        """Whether data is in pinned memory."""
        return self.data.is_pinned()  # type: ignore[attr-defined]


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The order that undoes this one."""
    if permutation is None:
        return None
    return TABLE["argsort"].call(permutation)


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Leave out what pads `input`, [T, B, ...] or [B, T, ...]; lengths: B integers on the CPU.

    Raises RuntimeError where lengths are not positive, or do not descend although enforce_sorted.
    """
    if not isinstance(lengths, Tensor):
        lengths = TABLE["as_tensor"].call(lengths, dtype=TABLE["tensor"].call(0).dtype)
    x: Any = input.transpose(0, 1) if batch_first else input  # type: ignore[attr-defined]
    order = None
    if not enforce_sorted:
        lengths, order = TABLE["sort"].call(lengths, descending=True)
        order = order.to(x.device)
        x = x.index_select(1, order)
    counts = [int(n) for n in lengths.tolist()]
    _check_lengths(counts, x, enforce_sorted)
    sizes = [sum(n > t for n in counts) for t in range(counts[0])]
    data = TABLE["cat"].call([x[t, :size] for t, size in enumerate(sizes)])
    return PackedSequence(data, TABLE["tensor"].call(sizes), order)


def _check_lengths(counts: list[int], x: Any, enforce_sorted: bool) -> None:
    if x.shape[1] == 0:
        raise RuntimeError("Cannot pack empty tensors.")
    if len(counts) != x.shape[1]:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {len(counts)} "
            f"(batch_size={x.shape[1]})"
        )
    if any(a < b for a, b in zip(counts, counts[1:], strict=False)):
        assert enforce_sorted
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You "
            "can pass `enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to "
            "sidestep this requirement if you do not need ONNX exportability."
        )
    if counts[-1] <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' "
            "that is <= 0"
        )
    if counts[0] > x.shape[0]:
        raise RuntimeError(
            f"Expected `lengths` to be at most the padded length {x.shape[0]}, got {counts[0]}"
        )


def lengths_of(sequence: PackedSequence) -> list[int]:
    """The sequences' lengths, the longest first."""
    sizes = sequence.batch_sizes.tolist()
    return [sum(size > i for size in sizes) for i in range(sizes[0])]


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(sequences [T, B, ...] or [B, T, ...] with padding behind each, lengths int64 [B])."""
    sizes = sequence.batch_sizes.tolist()
    longest = len(sizes)
    if total_length is not None and total_length < longest:
        raise ValueError(
            "Expected total_length to be at least the length of the longest sequence in input, but "
            f"got total_length={total_length} and max sequence length being {longest}"
        )
    rest = sequence.data.shape[1:]
    steps, start = [], 0
    for size in sizes:
        step = sequence.data[start : start + size]  # type: ignore[index]
        pad = step.new_full((sizes[0] - size, *rest), padding_value)
        steps.append(TABLE["cat"].call([step, pad]))
        start += size
    for _ in range((total_length or longest) - longest):
        steps.append(steps[0].new_full((sizes[0], *rest), padding_value))
    padded = TABLE["stack"].call(steps)
    lengths = TABLE["tensor"].call(lengths_of(sequence))
    if sequence.unsorted_indices is not None:
        padded = padded.index_select(1, sequence.unsorted_indices)
        lengths = lengths[sequence.unsorted_indices.cpu()]  # type: ignore[attr-defined]
    return (padded.transpose(0, 1) if batch_first else padded), lengths


def pad_sequence(
    sequences: Any, batch_first: bool = False, padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:  # fmt: skip
    """Sequences [T_i, ...] with padding to the longest: [T, B, ...] or [B, T, ...]."""
    if isinstance(sequences, Tensor):
        sequences = sequences.unbind(0)  # type: ignore[attr-defined]
    elif not isinstance(sequences, Iterable):
        raise RuntimeError(
            "pad_sequence: Expected iterable for input sequences, but got arg of type: "
            f"{type(sequences)}"
        )
    if padding_side not in ("left", "right"):
        raise RuntimeError(
            f"Expected padding_side to be one of left or right, but got padding_side={padding_side}"
        )
    sequences = tuple(sequences)
    if not sequences:
        raise RuntimeError("received an empty list of sequences")
    longest = max(s.shape[0] for s in sequences)
    padded = []
    for s in sequences:
        pad = s.new_full((longest - s.shape[0], *sequences[0].shape[1:]), padding_value)
        padded.append(TABLE["cat"].call([s, pad] if padding_side == "right" else [pad, s]))
    return TABLE["stack"].call(padded, 0 if batch_first else 1)


def unpad_sequence(
    padded_sequences: Tensor, lengths: Tensor, batch_first: bool = False
) -> list[Tensor]:
    """The sequences without their padding."""
    padded: Any = padded_sequences if batch_first else padded_sequences.transpose(0, 1)  # type: ignore[attr-defined]
    return [row[: int(n)] for row, n in zip(padded, lengths, strict=True)]


def pack_sequence(sequences: Any, enforce_sorted: bool = True) -> PackedSequence:
    """Sequences [T_i, ...] packed."""
    lengths = [s.shape[0] for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences that were packed."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
