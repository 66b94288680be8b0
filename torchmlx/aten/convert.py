"""Conversion, copying and facts: dtype, device, layout and storage."""

from __future__ import annotations

import math
from contextlib import nullcontext

import mlx.core as mx
import numpy as np

from ..core import device as devices
from ..core import dtype as dtypes
from ..core import float8, layout
from ..core.device import device
from ..core.dtype import dtype
from ..core.layout import wrap_dim
from ..core.op import checked_number, composite
from ..core.overlap import check_apart
from ..core.record import computed
from ..core.storage import UntypedStorage
from ..core.tensor import Tensor, check_leaf_write, from_array

method = ("Tensor",)


class memory_format:
    """How dimensions lie in memory: contiguous, channels last or preserved. torch.memory_format."""

    def __init__(self, name: str):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"


contiguous_format = memory_format("contiguous_format")
channels_last = memory_format("channels_last")
channels_last_3d = memory_format("channels_last_3d")
preserve_format = memory_format("preserve_format")


def cast_array(array: mx.array, source: dtype, target: dtype) -> mx.array:
    """Elements of `array` (stored as `source`) as `target`, rounded as torch's CPU rounds."""
    if source is target:
        return array
    if target.mx is None:
        raise TypeError(f"{target} is not supported: MLX has no such type. Use torch.complex64.")
    if source.opaque:
        return cast_array(float8.decode(array, source), dtypes.float32, target)
    if target.opaque:
        return float8.encode(cast_array(array, source, dtypes.float32), target)
    if target is dtypes.bool_:
        return array != 0
    if source.is_complex and not target.is_complex:
        array = mx.real(array)
    return array.astype(target.mx)


def converted(x: Tensor, target: dtype, where: device) -> Tensor:
    """A copy of x as (dtype, device), keeping its order of dimensions."""
    if where.type not in ("cpu", "meta") and target is dtypes.float64:
        raise TypeError(
            "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support "
            "float64. Please use float32 instead."
        )
    if x.device.type == "meta" and where.type != "meta":
        raise NotImplementedError(
            "Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() "
            "instead of torch.nn.Module.to() when moving module from meta to a different device."
        )
    strides = layout.preserved(x.shape, x._strides)
    if x.device is not where and x.device.type != "meta" and devices.STREAMS:
        x._host()  # the other stream must see finished values
    source = x.dtype
    with devices.stream_of(where) if devices.STREAMS else nullcontext():
        return computed(
            "_to_copy", lambda a: mx.contiguous(cast_array(a, source, target)), x,
            dtype=target, where=where, strides=strides,
        )  # fmt: skip


@composite(at=method)
def to(self, *args, **kwargs):
    """The tensor with another dtype and/or device; itself if it has them already. Tensor.to."""
    target, where, copy, fmt = parse_to(args, kwargs)
    target = target or self.dtype
    where = self.device if where is None else devices.resolve(where)
    if isinstance(args[0] if args else None, Tensor) or "other" in kwargs:
        where = where or self.device
    if target is self.dtype and where == self.device and not copy:
        kept = (None, preserve_format, _present_format(self))
        return self if fmt in kept else self.contiguous(memory_format=fmt)
    result = converted(self, target, where)
    return result if fmt in (None, preserve_format) else result.contiguous(memory_format=fmt)


def _present_format(x: Tensor) -> memory_format:
    """What torch takes the tensor's format to be: contiguous unless it is channels last."""
    last = (f for f in (channels_last, channels_last_3d) if is_contiguous(x, f))
    return next(last, contiguous_format) if x._strides is not None else contiguous_format


def parse_to(args, kwargs):
    """(dtype, device, copy, memory_format) of the arguments that `.to()` takes."""
    target, where = kwargs.get("dtype"), kwargs.get("device")
    other = kwargs.get("other")
    for a in args:
        if isinstance(a, dtype):
            target = a
        elif isinstance(a, Tensor):
            other = a
        elif isinstance(a, (device, str, int)) and not isinstance(a, bool):
            where = a
    if other is not None:
        target, where = other.dtype, other.device
    flags = [a for a in args if isinstance(a, bool)]  # non_blocking, copy
    copy = flags[1] if len(flags) > 1 else kwargs.get("copy", False)
    return target, where, bool(copy), kwargs.get("memory_format")


def _cast_method(name: str, target: dtype):
    @composite(name, at=method)
    def cast(self, memory_format=None):
        return self.to(target, memory_format=memory_format)

    cast.__doc__ = f"The tensor as {target}. Tensor.{name}."


for _name, _target in dtypes.ALIASES.items():
    _cast_method(_name, _target)
_cast_method("bfloat16", dtypes.bfloat16)


@composite("type", at=method)
def type_(self, dtype=None, non_blocking=False):
    """The tensor's type as a string, or the tensor converted to a type. Tensor.type."""
    if dtype is None:
        place = "" if self.device.type == "cpu" else self.device.type + "."
        return f"torch.{place}{self.dtype.torch_name}Tensor"
    if isinstance(dtype, str):
        by_name = {f"torch.{d.torch_name}Tensor": d for d in dtypes.ALL}
        if dtype not in by_name:
            raise ValueError(f"invalid type: '{dtype}'")
        dtype = by_name[dtype]
    return self.to(getattr(dtype, "dtype", dtype))


@composite(at=method)
def type_as(self, other):
    """The tensor with other's dtype and device. Tensor.type_as."""
    return self.to(other.dtype) if self.device == other.device else self.to(other)


@composite(at=method)
def cpu(self, memory_format=None):
    """The tensor on the CPU. Tensor.cpu."""
    return self.to(devices.CPU, memory_format=memory_format)


@composite(at=method)
def cuda(self, device=None, non_blocking=False, memory_format=None):
    """The tensor on the CUDA device, or torch's error where there is none. Tensor.cuda."""
    return self.to("cuda" if device is None else device, memory_format=memory_format)


@composite()
def clone(input, *, memory_format=preserve_format):
    """A copy with storage of its own. torch.clone.

    Arrays do not change, so a copy may share memory, but not keep more of it than it needs: MLX
    copies a part of a larger array.
    """
    strides = strides_like(input, memory_format)
    return computed("clone", lambda a: mx.contiguous(a), input, strides=strides)


def strides_like(x: Tensor, memory_format: memory_format | None):
    """Strides of a new tensor in x's shape (None: row-major)."""
    if memory_format in (preserve_format, None):
        return layout.preserved(x.shape, x._strides)
    last = memory_format in (channels_last, channels_last_3d)
    return layout.channels_last(x.shape) if last else None


@composite(at=method)
def contiguous(self, memory_format=contiguous_format):
    """The tensor if its memory is already in the given order, else a copy that is.

    Tensor.contiguous.
    """
    if self.is_contiguous(memory_format=memory_format):
        return self
    return clone(self, memory_format=memory_format)


@composite(at=method)
def is_contiguous(self, memory_format=contiguous_format):
    """Whether the elements lie in the given order. Tensor.is_contiguous."""
    if memory_format in (channels_last, channels_last_3d):
        wanted = 4 if memory_format is channels_last else 5
        return self.ndim == wanted and layout.is_channels_last(self.shape, self._strides)
    return layout.is_contiguous(self.shape, self._strides)


def _number(value) -> mx.array:
    kind = mx.int64 if isinstance(value, int) else mx.float64
    return mx.array(value, mx.complex64 if isinstance(value, complex) else kind)


@composite(at=method)
def copy_(self, src, non_blocking=False):
    """Copy src (broadcastable, any dtype or device) into this tensor. Tensor.copy_."""
    check_leaf_write(self)
    if not isinstance(src, Tensor):  # wraps around where fill_ refuses
        src = from_array(_number(src), self.device)
    elif src._cell is self._cell:
        check_apart(self, (src,))
    array = mx.contiguous(cast_array(src._read(), src.dtype, self.dtype))
    shape = tuple(self.shape)
    if array.shape != shape:
        if layout.broadcast_shapes(src.shape, shape) != shape:
            raise RuntimeError(
                f"The size of tensor a {list(shape)} must match the size of tensor b "
                f"{list(src.shape)}"
            )
        array = mx.broadcast_to(array, shape)
    self._write(array, src)
    return self


@composite(at=method)
def fill_(self, value):
    """Every element set to a number. Tensor.fill_."""
    check_leaf_write(self)
    if isinstance(value, Tensor):
        if value.ndim:
            raise RuntimeError(
                f"fill_ only supports 0-dimension value tensor but got tensor with {value.ndim} "
                "dimensions."
            )
        number = cast_array(value._read(), value.dtype, self.dtype)
        self._write(mx.broadcast_to(number, self.shape), value)
        return self
    if not isinstance(value, (bool, int, float, complex, np.generic)):
        raise TypeError(f"fill_() takes a number or a 0-dim Tensor, not {type(value).__name__}")
    self._fill(checked_number(value, self.dtype))
    return self


@composite(at=method)
def zero_(self):
    """Every element set to zero. Tensor.zero_."""
    check_leaf_write(self)
    self._fill(mx.array(0, self.dtype.mx))
    return self


@composite(at=method)
def set_(self, source):
    """Become another handle on source's storage. Tensor.set_."""
    self._adopt(source)
    return self


@composite(at=method)
def requires_grad_(self, requires_grad=True):
    """Set whether autograd should record operations on this tensor. Tensor.requires_grad_."""
    self.requires_grad = requires_grad
    return self


# ---- facts


@composite(at=method)
def size(self, dim=None):
    """The shape, or one of its sizes. Tensor.size."""
    return self.shape if dim is None else self.shape[wrap_dim(dim, self.ndim)]


@composite(at=method)
def stride(self, dim=None):
    """Elements between neighbours along each dimension (or one). Tensor.stride."""
    strides = self._strides_or_contiguous
    return tuple(strides) if dim is None else strides[wrap_dim(dim, self.ndim)]


@composite(at=method)
def storage_offset(self):
    """Where the first element lies in the storage, in elements. Tensor.storage_offset."""
    return self._offset


@composite(aliases=("nelement",))
def numel(input):
    """The number of elements. torch.numel."""
    return math.prod(input.shape)


@composite(at=method, aliases=("ndimension",))
def dim(self):
    """The number of dimensions. Tensor.dim."""
    return self.ndim


@composite(at=method)
def element_size(self):
    """Bytes of one element. Tensor.element_size."""
    return self.dtype.itemsize


@composite(at=method)
def data_ptr(self):
    """An address that identifies the storage and offset. It is invented: MLX buffers move.

    Tensor.data_ptr.
    """
    return self._cell.address() + self._offset * self.dtype.itemsize


@composite(at=method)
def get_device(self):
    """The device's index, -1 for the CPU. Tensor.get_device."""
    return -1 if self.device.type == "cpu" else self.device.index or 0


@composite()
def is_floating_point(input):
    """Whether the dtype is a floating point type. torch.is_floating_point."""
    return input.dtype.is_floating_point


@composite()
def is_complex(input):
    """Whether the dtype is complex. torch.is_complex."""
    return input.dtype.is_complex


@composite()
def is_signed(input):
    """Whether the dtype can hold negative numbers. torch.is_signed."""
    return input.dtype.is_signed


@composite(at=("torch",))
def is_tensor(obj):
    """Whether obj is a Tensor. torch.is_tensor."""
    return isinstance(obj, Tensor)


@composite()
def is_nonzero(input):
    """Whether the one element is not zero. torch.is_nonzero."""
    return bool(input)


@composite()
def is_same_size(input, other):
    """Whether the shapes are equal. torch.is_same_size."""
    return input.shape == other.shape


def _matrix_transpose(x: Tensor, name: str) -> Tensor:
    if x.ndim == 0 and name == "mT":
        return x
    if x.ndim < 2:
        raise RuntimeError(
            f"tensor.{name} is only supported on matrices or batches of matrices. "
            f"Got {x.ndim}-D tensor."
        )
    return x.transpose(-2, -1)


def _adjoint(x: Tensor, name: str) -> Tensor:
    if name == "H" and x.ndim not in (0, 2):
        raise RuntimeError(
            f"tensor.H is only supported on matrices (2-D tensors). Got {x.ndim}-D tensor."
        )
    if x.ndim == 0 and name == "H":
        return x
    transposed = _matrix_transpose(x, name)
    return transposed.conj() if x.dtype.is_complex else transposed


def _property(name: str, getter):
    setattr(Tensor, name, property(getter, doc=f"Tensor.{name}."))


_property("itemsize", lambda x: x.dtype.itemsize)
_property("nbytes", lambda x: x.dtype.itemsize * x.numel())
_property("is_cuda", lambda x: devices.is_cuda(x.device))
_property("is_mps", lambda x: x.device.type == "mps")
_property("is_xpu", lambda x: x.device.type == "xpu")
_property("is_cpu", lambda x: x.device.type == "cpu")
_property("is_meta", lambda x: x.device.type == "meta")
_property("is_sparse", lambda x: False)
_property("is_quantized", lambda x: False)
_property("T", lambda x: x.permute(tuple(range(x.ndim - 1, -1, -1))))
_property("mT", lambda x: _matrix_transpose(x, "mT"))
_property("H", lambda x: _adjoint(x, "H"))
_property("mH", lambda x: _adjoint(x, "mH"))


@composite(at=method)
def untyped_storage(self):
    """The storage, for data_ptr() and nbytes(). Tensor.untyped_storage."""
    return UntypedStorage(_of=self)
