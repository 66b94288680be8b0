"""Devices. MLX arrays have none: a Tensor remembers its device, and ops enter its stream."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import mlx.core as mx

TYPES = ("cpu", "mps", "cuda", "meta", "xpu", "hpu", "xla", "npu", "ipu", "mtia", "vulkan")
_GPU = "mps" if mx.metal.is_available() else "cuda" if mx.cuda.is_available() else None
_local = threading.local()


def _class_name(value) -> str:
    return type(value).__name__


class device:
    """torch.device: a type ("cpu", "mps", "meta", ..) and an optional index; a context manager."""

    __slots__ = ("type", "index")

    def __init__(self, type, index: int | None = None):
        if not isinstance(type, (device, str, int)):
            raise TypeError(
                "device() received an invalid combination of arguments - got "
                f"({_class_name(type)}), but expected a device, a string or an int"
            )
        if type == "":
            raise RuntimeError("Device string must not be empty")
        if isinstance(type, device):
            type, index = type.type, type.index if index is None else index
        elif isinstance(type, int):
            type, index = _GPU or "cuda", type
        elif ":" in type:
            kind, _, number = type.partition(":")
            if index is not None:
                raise RuntimeError(
                    "type (string) must not include an index because index was passed "
                    f"explicitly: {type}"
                )
            if not kind or not number.isdigit() or (number[0] == "0" and number != "0"):
                raise RuntimeError(f"Invalid device string: '{type}'")
            type, index = kind, int(number)
        if type == "cuda" and _cuda is not None:
            type, index = _cuda, None if _cuda == "cpu" else index
        if type not in TYPES:
            raise RuntimeError(
                f"Expected one of {', '.join(TYPES)} device type at start of device string: {type}"
            )
        object.__setattr__(self, "type", type)
        object.__setattr__(self, "index", index)

    def __setattr__(self, name, value):
        raise AttributeError(f"attribute '{name}' of 'torch.device' objects is not writable")

    def __eq__(self, other):
        return isinstance(other, device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self):
        return hash((self.type, self.index))

    def __repr__(self):
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type='{self.type}'{index})"

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __reduce__(self):
        return (device, (self.type, self.index))

    def __enter__(self):
        _local.stack = [*getattr(_local, "stack", []), self]
        return self

    def __exit__(self, *exc):
        _local.stack = _local.stack[:-1]


_cuda: str | None = None  # what scripts get that ask for "cuda", where it is not itself
CPU, META = device("cpu"), device("meta")
GPU = device(_GPU, 0) if _GPU else None
_default = CPU


def cuda_as_here() -> device:
    """From now on "cuda" means this machine's GPU, or its CPU where it has none."""
    global _cuda
    _cuda = GPU.type if GPU else "cpu"
    return GPU or CPU


def has_cuda() -> bool:
    """Whether there is a CUDA GPU, or something that stands in for it."""
    return _cuda is not None or _GPU == "cuda"


def is_cuda(d: device) -> bool:
    """Whether a script that asked for "cuda" may have this device."""
    return d.type == (_cuda or "cuda")


def get_default_device() -> device:
    """Where a tensor is created when no device is given. torch.get_default_device."""
    stack = getattr(_local, "stack", None)
    return stack[-1] if stack else _default


def set_default_device(d) -> None:
    """Set the device of tensors created without one; None means the CPU.

    torch.set_default_device.
    """
    global _default
    _default = CPU if d is None else device(d)


def resolve(d) -> device:
    """The device an allocation asks for, or torch's error when this machine lacks it."""
    d = get_default_device() if d is None else d if type(d) is device else device(d)
    if d.type in ("cpu", "meta"):
        return CPU if d.type == "cpu" else META
    if GPU is None or d.type != GPU.type:
        if d.type == "cuda":
            raise AssertionError("Torch not compiled with CUDA enabled")
        if d.type == "mps":
            raise RuntimeError(
                "The MPS backend is supported on Apple-silicon Macs with macOS 15 or later. "
                "Current OS version can be queried using `sw_vers`"
            )
        raise RuntimeError(f"no {d.type} device here: torchmlx runs on cpu{_and_gpu()}")
    if d.index not in (None, 0):
        raise RuntimeError(f"invalid device ordinal {d}: there is one GPU, {GPU}")
    return GPU


def _and_gpu() -> str:
    return f" and {GPU.type}" if GPU else ""


# Where the GPU is MLX's default stream but torch's default device is the CPU, every op enters a
# stream; a build without a GPU never does.
STREAMS = GPU is not None


def choose_stream(stream) -> None:
    """This thread's operations on the GPU go to `stream` (MLX's) from now on."""
    _local.stream = stream


@contextmanager
def stream_of(d: device):
    """Run the MLX operations inside on `d` (meta tensors stay lazy, so any stream does)."""
    with mx.stream(getattr(_local, "stream", mx.gpu) if d is GPU else mx.cpu):
        yield
