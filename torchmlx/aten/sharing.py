"""Tensors on memory that others hold: arrays, buffers, whatever speaks DLPack."""

from __future__ import annotations

import numpy as np

from ..core import device as devices
from ..core import dtype as dtypes
from ..core.op import composite
from ..core.storage import UntypedStorage
from ..core.tensor import Tensor, from_memory
from .creation import from_numpy, shares_numpy, tensor
from .dlpack import from_dlpack, is_capsule


@composite(at=("torch",))
def frombuffer(buffer, *, dtype, count=-1, offset=0, requires_grad=False):
    """A 1-D tensor on a buffer's memory (of read-only memory: on a copy). torch.frombuffer."""
    try:
        size = memoryview(buffer).nbytes
    except TypeError:
        raise ValueError("object does not implement Python buffer protocol.") from None
    n = _elements(size, dtype.itemsize, count, offset)
    bits = dtype.opaque or dtype is dtypes.bfloat16
    element = np.dtype(f"uint{8 * dtype.itemsize}" if bits else dtype.name)
    try:
        memory = np.frombuffer(buffer, element, n, offset)
    except ValueError as error:  # it is not contiguous
        raise RuntimeError("could not retrieve buffer from object") from error
    result = from_memory(memory, dtype)
    return result.requires_grad_() if requires_grad else result


def _elements(size: int, itemsize: int, count: int, offset: int) -> int:
    """How many elements a buffer of `size` bytes gives, or torch's ValueError."""
    if size == 0 or count == 0:
        raise ValueError(f"both buffer length ({size}) and count ({count}) must not be 0")
    if not 0 <= offset < size:
        raise ValueError(
            f"offset ({offset} bytes) must be non-negative and no greater than buffer length "
            f"({size} bytes) minus 1"
        )
    if count < 0:
        if (size - offset) % itemsize:
            raise ValueError(
                f"buffer length ({size - offset} bytes) after offset ({offset} bytes) must be a "
                f"multiple of element size ({itemsize})"
            )
        return (size - offset) // itemsize
    if count * itemsize > size - offset:
        raise ValueError(
            f"requested buffer length ({count} * {itemsize} bytes) after offset ({offset} bytes) "
            f"must not be greater than actual buffer length ({size} bytes)"
        )
    return count


@composite(at=("torch",))
def as_tensor(data, dtype=None, device=None):
    """data as a tensor, without a copy where its storage can be shared. torch.as_tensor."""
    if isinstance(data, UntypedStorage):
        data = data.numpy()
    if not isinstance(data, Tensor):
        if shares_numpy(data):
            data = from_numpy(data)
        elif hasattr(data, "__dlpack__") and not isinstance(data, np.generic | np.ndarray):
            data = from_dlpack(data)
        else:
            return tensor(data, dtype=dtype, device=device)
        device = "cpu" if device is None else device
    data = data.to(dtype or data.dtype)
    return data if device is None else data.to(device)


@composite(at=("torch",))
def asarray(obj, *, dtype=None, device=None, copy=None, requires_grad=None):
    """obj as a tensor, on its memory where that is possible.

    copy: True always, False never (ValueError where it must), None where it must; requires_grad
    None: as obj. Buffers are read as dtype (default: the default float). torch.asarray.
    """
    if isinstance(obj, np.generic) and copy is False:
        raise RuntimeError(
            "can't alias NumPy scalars. Either remove copy=False or transform it in a ndarray. "
        )
    wants = obj.requires_grad if isinstance(obj, Tensor) else False
    wants = wants if requires_grad is None else requires_grad
    shared = _shared(obj, dtype)
    if shared is None:
        if copy is False:
            raise ValueError("can't alias arbitrary sequence into a tensor.")
        return tensor(obj, dtype=dtype, device=device, requires_grad=bool(wants))
    where = shared.device if device is None else devices.resolve(device)
    kind = dtype or shared.dtype
    if copy is False:
        _check_alias(shared, kind, where)
    elif where != shared.device or kind is not shared.dtype:
        shared = shared.to(where, kind)
    elif copy:
        shared = shared.clone()
    if not wants and not shared.is_leaf:
        return shared.detach()
    shared.requires_grad = bool(wants)
    return shared


def _check_alias(x: Tensor, kind: dtypes.dtype, where: devices.device) -> None:
    if where != x.device:
        raise ValueError(f"can't alias tensor from device '{x.device}' to '{where}'.")
    if kind is not x.dtype:
        raise ValueError(
            f"can't alias tensor with dtype '{x.dtype.torch_name}' into dtype '{kind.torch_name}'."
        )


def _shared(obj, dtype) -> Tensor | None:
    """A tensor on obj's memory, None where it has none to share."""
    if isinstance(obj, UntypedStorage):
        obj = obj.numpy()
    if isinstance(obj, Tensor):
        return obj
    if shares_numpy(obj):
        return from_numpy(obj)
    if isinstance(obj, np.ndarray | np.generic):
        return None
    if is_capsule(obj) or hasattr(obj, "__dlpack__"):
        return from_dlpack(obj)
    try:
        memoryview(obj)
    except TypeError:
        return None
    return frombuffer(obj, dtype=dtype or dtypes.get_default_dtype())
