"""Tensors from data, constants and ranges."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from ..core import device as devices
from ..core import dtype as dtypes
from ..core import layout
from ..core.cell import of_numpy
from ..core.op import checked_number, composite
from ..core.record import computed
from ..core.tensor import Tensor, from_array, from_memory
from .convert import cast_array, strides_like
from .dlpack import from_dlpack
from .shape import sizes

NUMBERS = (bool, int, float, builtins.complex)
function = ("torch",)
method = ("Tensor",)


def made(
    array: mx.array, dtype=None, device=None, requires_grad: bool = False, pin_memory=False
) -> Tensor:
    """A new tensor of `array`, cast to dtype, on a device."""
    where = devices.resolve(device)
    source = dtypes.from_mx(array.dtype)
    target = dtype or source
    if where.type == "mps" and target is dtypes.float64:
        raise TypeError(
            "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support "
            "float64. Please use float32 instead."
        )
    result = from_array(cast_array(array, source, target), where, target)
    return result.requires_grad_() if requires_grad else result


# ---- from data


def _nested_array(data, dtype=None):
    """Nested lists (of numbers and tensors) as an mx.array whose dtype follows torch's rules."""
    shape = _shape_of(data)
    leaves: list = []
    _collect(data, shape, leaves)
    if not leaves:
        return mx.zeros(shape, dtypes.get_default_dtype().mx)
    kind = None
    for leaf in leaves:
        own = leaf.dtype if isinstance(leaf, Tensor) else _leaf_dtype(leaf)
        kind = own if kind is None else dtypes.promote_types(kind, own)
    values = [leaf.item() if isinstance(leaf, (Tensor, np.generic)) else leaf for leaf in leaves]
    return _numbers(values, kind, dtype).reshape(shape)


def _leaf_dtype(leaf) -> dtypes.dtype:
    return dtypes.float64 if isinstance(leaf, np.float64) else dtypes.scalar_dtype(leaf)


def _numbers(values: list, kind, dtype=None) -> mx.array:
    """Python numbers of a kind, rounded once, to `dtype` where one is asked for."""
    target = dtype or kind
    if kind.is_complex and not target.is_complex:
        raise TypeError("must be real number, not complex")
    if target.category == dtypes.INTEGER:
        return mx.array(np.array([_integer(v, target) for v in values], target.name))
    if kind.category <= dtypes.FLOAT and target.category == dtypes.FLOAT and not target.opaque:
        return mx.array(np.array(values, np.float64), dtype=mx.float64).astype(target.mx)
    if kind.category == dtypes.INTEGER:
        return mx.array(np.array(values, np.int64))
    return mx.array(values, kind.mx)


def _integer(value, target) -> int:
    limits = dtypes.iinfo(target)
    if isinstance(value, int) and not -(2**63) <= value < 2 ** (63 + (target.name == "uint64")):
        raise ValueError("Overflow when unpacking long long")
    low = -limits.max if isinstance(value, int) and not target.is_signed else limits.min
    if value != value or not low <= value <= limits.max:
        raise RuntimeError(f"value cannot be converted to type {target.name} without overflow")
    return int(value) % (1 << limits.bits) if value < 0 and not target.is_signed else int(value)


def _shape_of(data) -> tuple[int, ...]:
    shape = []
    while isinstance(data, (list, tuple)) or (
        hasattr(data, "__len__") and not isinstance(data, str)
    ):
        if isinstance(data, Tensor):
            return (*shape, *data.shape)
        shape.append(len(data))
        if len(data) == 0:
            break
        data = data[0]
    return tuple(shape)


def _collect(data, shape, leaves: list, depth: int = 0) -> None:
    if depth == len(shape):
        if isinstance(data, (list, tuple)):
            raise TypeError("only number arguments can be converted to a tensor")
        leaves.append(data)
        return
    if isinstance(data, Tensor):
        leaves.extend(
            data.reshape(-1).tolist()
            if data.dtype.is_floating_point is False
            else data.reshape(-1).unbind(0)
        )
        return
    if not hasattr(data, "__len__") or len(data) != shape[depth]:
        got = f"got {len(data)}" if hasattr(data, "__len__") else "not a sequence"
        raise ValueError(f"expected sequence of length {shape[depth]} at dim {depth} ({got})")
    for item in data:
        _collect(item, shape, leaves, depth + 1)


def _array_of(data, dtype=None) -> mx.array:
    if isinstance(data, NUMBERS) and not isinstance(data, np.generic):
        kind = dtypes.scalar_dtype(data)
        return _numbers([data], kind, dtype).reshape(())
    if isinstance(data, np.ndarray | np.generic):
        return _from_ndarray(np.asarray(data))
    if isinstance(data, mx.array):
        return data
    if isinstance(data, (list, tuple, range)):
        data = list(data)
        if data and all(isinstance(d, np.ndarray) for d in data):
            return _from_ndarray(np.array(data))
        return _nested_array(data, dtype)
    if hasattr(data, "__dlpack__"):
        return from_dlpack(data, copy=True).mx
    if hasattr(data, "__array__"):
        return _from_ndarray(np.asarray(data))
    if isinstance(data, str):
        raise TypeError("new(): invalid data type 'str'")
    if isinstance(data, Sequence):  # a deque, say
        return _array_of(list(data), dtype)
    raise RuntimeError(f"Could not infer dtype of {type(data).__name__}")


_NUMPY = {np.dtype(d.name) for d in dtypes.ALL if d.name in np.sctypeDict}


def _from_ndarray(array: np.ndarray) -> mx.array:
    if array.dtype not in _NUMPY:
        if array.dtype.name == "bfloat16":
            return mx.view(mx.array(array.view(np.uint16)), mx.bfloat16)
        raise TypeError(
            f"can't convert np.ndarray of type {array.dtype}. The only supported types are: "
            "float64, float32, float16, complex64, complex128, int64, int32, int16, int8, "
            "uint64, uint32, uint16, uint8, and bool."
        )
    if array.dtype == np.complex128:
        raise TypeError("complex128 is not supported: MLX has no such type. Use complex64.")
    if any(s < 0 for s in array.strides):
        array = array.copy()
    return of_numpy(array)


@composite(at=function)
def tensor(data, *, dtype=None, device=None, requires_grad=False, pin_memory=False):
    """A new tensor copied from numbers, nested lists, arrays or a tensor. torch.tensor."""
    if isinstance(data, Tensor):
        copied = data.to(dtype or data.dtype, copy=True).detach()
        copied = copied if device is None else copied.to(device)
        return copied.requires_grad_() if requires_grad else copied
    return made(_array_of(data, dtype), dtype, device, requires_grad)


@composite(at=function)
def scalar_tensor(s, *, dtype=None, device=None, requires_grad=False, **_):
    """A 0-d tensor of the default float dtype. torch.scalar_tensor."""
    kind = dtype or dtypes.get_default_dtype()
    return tensor(s, dtype=kind, device=device, requires_grad=requires_grad)


@composite(at=function)
def from_numpy(ndarray):
    """A tensor on the array's memory: writes on either side are seen by the other.

    torch.from_numpy.
    """
    if not isinstance(ndarray, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(ndarray).__name__})")
    if any(s < 0 for s in ndarray.strides):
        raise ValueError(
            "At least one of the strides of one of the given numpy arrays is negative, and "
            "tensors with negative strides are not currently supported. (You can probably work "
            "around this by making a copy of your array with array.copy().)"
        )
    if ndarray.dtype not in _NUMPY or ndarray.dtype == np.complex128:
        _from_ndarray(ndarray)  # raises torch's error
    return from_memory(ndarray, dtypes._by_name(ndarray.dtype.name))


def shares_numpy(data) -> bool:
    """Whether data is an array whose memory a tensor can share."""
    return isinstance(data, np.ndarray) and data.dtype in _NUMPY


# ---- constants


def _full(shape, value, dtype, device, requires_grad=False) -> Tensor:
    where = devices.resolve(device)
    dtype = dtype or dtypes.get_default_dtype()
    if any(n < 0 for n in shape):
        raise RuntimeError(
            f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}"
        )
    if where.type == "mps" and dtype is dtypes.float64:
        return made(mx.zeros(()), dtype, device)  # raises torch's error
    if dtype.mx is None:
        raise TypeError(f"{dtype} is not supported: MLX has no such type")
    if dtype.opaque:
        value = cast_array(mx.array(float(value)), dtypes.float32, dtype)
    else:
        value = checked_number(value, dtype)
    if devices.STREAMS:
        with devices.stream_of(where):
            array = mx.full(shape, value, dtype.mx)
    else:
        array = mx.full(shape, value, dtype.mx)
    result = from_array(array, where, dtype)
    return result.requires_grad_() if requires_grad else result


def _size_of(name: str, size: tuple, kwargs: dict) -> tuple[int, ...]:
    """The size given as numbers, as one sequence, or as size=."""
    if not size and "size" not in kwargs:
        raise TypeError(f"{name}() received an invalid combination of arguments: size is missing")
    return sizes(size or (kwargs["size"],))


def _constant(name: str, value):
    @composite(name, at=function)
    def constant(
        *size, dtype=None, layout=None, device=None, requires_grad=False,
        pin_memory=False, memory_format=None, names=None, **kwargs,
    ):  # fmt: skip
        result = _full(_size_of(name, size, kwargs), value, dtype, device, requires_grad)
        return result

    @composite(name + "_like", at=function)
    def like(
        input, *, dtype=None, layout=None, device=None, requires_grad=False,
        memory_format=None, pin_memory=False,
    ):  # fmt: skip
        return _like(input, value, dtype, device, requires_grad, memory_format)

    @composite("new_" + name, at=method)
    def new(
        self, *size, dtype=None, device=None, requires_grad=False, layout=None,
        pin_memory=False, **kwargs,
    ):  # fmt: skip
        where = self.device if device is None else device
        return _full(
            _size_of(f"new_{name}", size, kwargs), value, dtype or self.dtype, where, requires_grad
        )

    constant.__doc__ = f"A tensor of the given size, dtype and device. torch.{name}."
    like.__doc__ = f"A tensor like `input` in shape, dtype, device and layout. torch.{name}_like."
    new.__doc__ = f"A tensor with this one's dtype and device. Tensor.new_{name}."


def _like(x: Tensor, value, dtype, device, requires_grad, memory_format) -> Tensor:
    where = x.device if device is None else device
    result = _full(tuple(x.shape), value, dtype or x.dtype, where, requires_grad)
    strides = strides_like(x, memory_format)
    if strides is not None:
        result._strides = result._cell.strides = strides
    return result


# "empty" is zeros: MLX hands out no uninitialised memory.
for _name, _value in (("zeros", 0), ("ones", 1), ("empty", 0)):
    _constant(_name, _value)


@composite(at=function)
def empty_strided(size, stride, *, dtype=None, device=None, requires_grad=False, **_):
    """A tensor of the given size and dense strides. torch.empty_strided."""
    result = _full(tuple(size), 0, dtype, device, requires_grad)
    if not layout.is_contiguous(size, stride):
        result._strides = result._cell.strides = tuple(stride)
    return result


def _fill_dtype(value, dtype):
    return dtype or dtypes.scalar_dtype(value)


def _fill_number(value):
    return value.item() if isinstance(value, (Tensor, np.generic)) else value


@composite(at=function)
def full(
    size,
    fill_value,
    *,
    dtype=None,
    layout=None,
    device=None,
    requires_grad=False,
    pin_memory=False,
):
    """A tensor filled with a number, whose type gives the dtype. torch.full."""
    number = _fill_number(fill_value)
    dtype = dtype or (fill_value.dtype if isinstance(fill_value, Tensor) else None)
    result = _full(sizes((size,)), number, _fill_dtype(number, dtype), device, requires_grad)
    return result


@composite(at=function)
def full_like(
    input,
    fill_value,
    *,
    dtype=None,
    device=None,
    requires_grad=False,
    layout=None,
    memory_format=None,
):
    """A tensor like `input` filled with a number. torch.full_like."""
    return _like(input, _fill_number(fill_value), dtype, device, requires_grad, memory_format)


@composite(at=method)
def new_full(self, size, fill_value, *, dtype=None, device=None, requires_grad=False):
    """A filled tensor with this one's dtype and device. Tensor.new_full."""
    where = self.device if device is None else device
    return _full(
        sizes((size,)), _fill_number(fill_value), dtype or self.dtype, where, requires_grad
    )


@composite(at=method)
def new_tensor(self, data, *, dtype=None, device=None, requires_grad=False):
    """A tensor of data with this one's dtype and device. Tensor.new_tensor."""
    where = self.device if device is None else device
    return tensor(data, dtype=dtype or self.dtype, device=where, requires_grad=requires_grad)


# ---- ranges


def _range_dtype(values, dtype):
    if dtype is not None:
        return dtype
    if all(isinstance(v, (int, np.integer)) for v in values):
        return dtypes.int64
    return dtypes.get_default_dtype()


@composite(at=function)
def arange(
    start,
    end=None,
    step=1,
    *,
    dtype=None,
    layout=None,
    device=None,
    requires_grad=False,
    pin_memory=False,
):
    """start, start + step, ... below end. int64 for ints, else the default float dtype.

    torch.arange.
    """
    if end is None:
        start, end = 0, start
    values = [_fill_number(v) for v in (start, end, step)]
    start, end, step = values
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if (end - start) * step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    dtype = _range_dtype(values, dtype)
    count = math.ceil((end - start) / step) if isinstance(step, float) else -((start - end) // step)
    count = max(0, math.ceil(count))
    if dtype.category == dtypes.INTEGER:
        array = np.int64(start) + np.arange(count, dtype=np.int64) * np.int64(step)
    else:
        array = start + np.arange(count, dtype=np.float64) * step
    result = made(_from_ndarray(np.asarray(array)), dtype, device, requires_grad)
    return result


@composite(at=function)
def linspace(
    start,
    end,
    steps,
    *,
    dtype=None,
    device=None,
    requires_grad=False,
    layout=None,
    pin_memory=False,
):
    """`steps` evenly spaced values from start to end, both included. torch.linspace."""
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")
    dtype = dtype or dtypes.get_default_dtype()
    start, end = _fill_number(start), _fill_number(end)
    real = np.float32 if dtype.itemsize < 8 else np.float64
    # torch walks from both ends, in the dtype's own precision.
    step = real((real(end) - real(start)) / real(max(steps - 1, 1)))
    i = np.arange(steps)
    half = i < steps // 2
    values = np.where(
        half, real(start) + step * i.astype(real), real(end) - step * (steps - 1 - i).astype(real)
    )
    if steps == 1:
        values = np.array([start], real)
    if dtype.category == dtypes.INTEGER:
        values = np.trunc(values)
    return made(_from_ndarray(values.astype(real)), dtype, device, requires_grad)


@composite(at=function)
def logspace(start, end, steps, base=10.0, *, dtype=None, device=None, requires_grad=False, **_):
    """base ** linspace(start, end, steps). torch.logspace."""
    exponents = np.linspace(_fill_number(start), _fill_number(end), steps)
    dtype = dtype or dtypes.get_default_dtype()
    return made(_from_ndarray(np.power(base, exponents)), dtype, device, requires_grad)


@composite(at=function)
def eye(
    n,
    m=None,
    *,
    dtype=None,
    device=None,
    requires_grad=False,
    layout=None,
    pin_memory=False,
):
    """Ones on the diagonal of an [n, m] matrix. torch.eye."""
    dtype = dtype or dtypes.get_default_dtype()
    return made(mx.eye(n, n if m is None else m, dtype=mx.float32), dtype, device, requires_grad)


@composite(at=function)
def complex(real, imag):
    """real + i * imag as complex64. torch.complex."""
    if real.dtype is not imag.dtype or real.dtype is not dtypes.float32:
        raise RuntimeError(
            f"Expected both inputs to be Float tensors but got {real.dtype} and {imag.dtype}"
        )
    shape = layout.broadcast_shapes(real.shape, imag.shape)

    def joined(real, imag):
        pair = mx.stack([mx.broadcast_to(real, shape), mx.broadcast_to(imag, shape)], axis=-1)
        return mx.view(pair, mx.complex64).reshape(shape)

    return computed("complex", joined, real, imag, dtype=dtypes.complex64)


@composite(at=function)
def polar(abs, angle):
    """abs * (cos(angle) + i * sin(angle)) as complex64. torch.polar."""
    return complex(abs * angle.cos(), abs * angle.sin())
