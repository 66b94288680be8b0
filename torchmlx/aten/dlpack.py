"""DLPack: tensors to and from other libraries, on the same memory where that is possible.

On the CPU a tensor's memory is NumPy's from the first exchange on, so both sides see each other's
writes, in every dtype. What MLX holds cannot be written by others: an mx.array comes in as it is
and keeps its value, and a tensor on a GPU goes out as MLX's own capsule of its present value.
"""

from __future__ import annotations

import ctypes
import enum
from typing import Any

import mlx.core as mx
import numpy as np

from ..core import cell as cells
from ..core import device as devices
from ..core import dtype as dtypes
from ..core.op import composite
from ..core.tensor import Tensor, alias, from_memory, from_mx


class DLDeviceType(enum.IntEnum):
    """Kinds of devices, as DLPack counts them. torch.utils.dlpack.DLDeviceType."""

    kDLCPU = 1
    kDLCUDA = 2
    kDLCUDAHost = 3
    kDLOpenCL = 4
    kDLVulkan = 7
    kDLMetal = 8
    kDLVPI = 9
    kDLROCM = 10
    kDLROCMHost = 11
    kDLExtDev = 12
    kDLCUDAManaged = 13
    kDLOneAPI = 14
    kDLWebGPU = 15
    kDLHexagon = 16
    kDLMAIA = 17


_DEVICES = {"cpu": DLDeviceType.kDLCPU, "cuda": DLDeviceType.kDLCUDA, "mps": DLDeviceType.kDLMetal}

# Where a DLTensor's dtype lies from the start of its capsule's struct on, by the capsule's name
# (dlpack.h 1.0: pointer, device, dimensions; a versioned one begins with version, context, deleter
# and flags).
_DTYPE_AT = {b"dltensor": 20, b"dltensor_versioned": 52}
# dlpack.h's codes of dtypes that NumPy has not, which travel through it as unsigned integers.
_UNSIGNED = 1
_CODES = {
    dtypes.bfloat16: 4, dtypes.float8_e4m3fn: 10, dtypes.float8_e5m2: 12, dtypes.float8_e8m0fnu: 14,
}  # fmt: skip
_KINDS = {code: kind for kind, code in _CODES.items()}

_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def is_capsule(value) -> bool:
    return type(value).__name__ == "PyCapsule"


def _code(capsule) -> ctypes.c_uint8:
    """The capsule's dtype code, to be read and written in place."""
    name = _name_of(capsule) if is_capsule(capsule) else None
    if name not in _DTYPE_AT:
        raise RuntimeError(
            "from_dlpack received an invalid capsule. Note that DLTensor capsules can be consumed "
            "only once, so you might have already constructed a tensor from it once."
        )
    return ctypes.c_uint8.from_address(_pointer_of(capsule, name) + _DTYPE_AT[name])


class _Held:
    """A capsule as an object that NumPy takes it from."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)


def _tensor_of(capsule) -> Tensor:
    """A tensor on the memory of a CPU capsule, which is used up."""
    code = _code(capsule)
    kind = _KINDS.get(code.value)
    if kind is not None:
        code.value = _UNSIGNED
    memory = np.from_dlpack(_Held(capsule))  # type: ignore[arg-type]
    if any(s < 0 for s in memory.strides):
        raise ValueError("from_dlpack: tensors with negative strides are not supported; copy first")
    if kind is None and memory.dtype == np.complex128:
        raise TypeError("complex128 is not supported: MLX has no such type. Use complex64.")
    if not memory.flags.writeable:  # as NumPy has it of capsules older than 1.0; torch has not
        address, strides = memory.ctypes.data, memory.strides
        memory = cells.window(memory, address, memory.shape, strides, memory.dtype)
    return from_memory(memory, kind or dtypes._by_name(memory.dtype.name))


def _capsule_of(exporter, copy: bool | None) -> tuple[Any, bool]:
    """exporter's capsule, and whether it was asked to copy: older ones know fewer arguments."""
    given: dict[str, Any] = {"max_version": (1, 0)} | ({} if copy is None else {"copy": copy})
    for dropped in ("max_version", "copy"):
        try:
            return exporter.__dlpack__(**given), "copy" in given
        except TypeError:
            given.pop(dropped, None)
    return exporter.__dlpack__(), False


@composite(at=("torch",))
def from_dlpack(ext_tensor, *, device=None, copy=None):
    """A tensor on the memory of another library's array, or of a DLPack capsule.

    copy: True always, False never (ValueError where it must), None where it must. An mx.array is
    never written: it keeps its value when the tensor changes. torch.from_dlpack.
    """
    if not hasattr(ext_tensor, "__dlpack__"):
        if device is not None or copy is not None:
            raise AssertionError(
                "device and copy kwargs not supported when ext_tensor is already a DLPack capsule."
            )
        return _tensor_of(ext_tensor)
    home = tuple(ext_tensor.__dlpack_device__())
    wanted = None if device is None else devices.resolve(device)
    moves = wanted is not None and _device_of(wanted) != home
    if moves and copy is False:
        raise ValueError(
            f"cannot move DLPack tensor from device {home} to {_device_of(wanted)} without "
            "copying. Set copy=None or copy=True."
        )
    if isinstance(ext_tensor, Tensor):
        _check_export(ext_tensor)
        result, copied = alias(ext_tensor), False
    elif isinstance(ext_tensor, mx.array):
        result, copied = from_mx(ext_tensor), True
    else:
        result, copied = _foreign(ext_tensor, home, copy)
    if moves:
        return result.to(wanted)
    return result.clone() if copy and not copied else result


def _foreign(exporter, home, copy: bool | None) -> tuple[Tensor, bool]:
    if home[0] not in (DLDeviceType.kDLCPU, DLDeviceType.kDLCUDAHost):
        return from_mx(mx.from_dlpack(exporter)), True
    capsule, asked = _capsule_of(exporter, copy)
    return _tensor_of(capsule), asked


def _device_of(where: devices.device) -> tuple[DLDeviceType, int]:
    if where.type not in _DEVICES:
        raise BufferError(f"Cannot pack tensors on {where}")
    return _DEVICES[where.type], where.index or 0


def _check_export(x: Tensor) -> None:
    if x.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    _device_of(x.device)


@composite("__dlpack_device__", at=("Tensor",))
def dlpack_device(self):
    """(DLDeviceType, index) of the tensor's device. Tensor.__dlpack_device__."""
    if self.device.type not in _DEVICES:
        raise ValueError(f"Unknown device type {self.device.type} for Dlpack")
    return _device_of(self.device)


@composite("__dlpack__", at=("Tensor",))
def dlpack(self, *, stream=-1, max_version=None, dl_device=None, copy=None):
    """A DLPack capsule of the tensor, on its memory (copy=True: on a copy). Tensor.__dlpack__."""
    _check_export(self)
    if stream is not None and type(stream) is not int:
        raise TypeError("stream must be ``int`` or ``none``")
    if dl_device is not None and tuple(dl_device) != _device_of(self.device):
        raise BufferError(
            f"cannot export a tensor on {self.device} to DLPack device {tuple(dl_device)}: "
            "move it there first"
        )
    if self.device.type != "cpu":
        return self.mx.__dlpack__()
    if stream not in (None, -1):
        raise AssertionError("stream should be None on cpu.")
    memory = self._shared_numpy()
    memory = memory.copy("K") if copy else memory
    versioned = max_version is not None and max_version[0] >= 1
    capsule = memory.__dlpack__(max_version=(1, 0) if versioned else None)
    if self.dtype in _CODES:
        _code(capsule).value = _CODES[self.dtype]
    return capsule


def to_dlpack(tensor):
    """A capsule on the tensor's memory, to be consumed once. torch.utils.dlpack.to_dlpack."""
    _device_of(tensor.device)
    return tensor.detach().__dlpack__()
