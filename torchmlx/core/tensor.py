"""Tensor: a handle on a cell, with a chain of view steps and torch's size, stride and offset."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from . import cell as cells
from . import device as devices
from . import dtype as dtypes
from . import layout, modes, tape, views
from .cell import Cell
from .device import device
from .dtype import dtype
from .layout import Size

MANY_IN_ONE = (
    "unsupported operation: more than one element of the written-to tensor refers to a single "
    "memory location. Please clone() the tensor before performing the operation."
)


class Tensor:
    """torch.Tensor on MLX. `tensor.mx` is its mx.array; `torchmlx.from_mx(array)` the way back.

    Methods come from the op table (torchmlx/aten); here is only what every tensor is.
    """

    _cell: Cell
    _steps: tuple = ()
    _shape: Size | None = None  # None: the cell's own shape
    _strides: tuple[int, ...] | None = None  # None: row-major
    _offset: int = 0
    _cached: mx.array | None = None
    _cached_version: int = 0
    _silent: bool = False  # writes through `.data` are none of autograd's business
    dtype: dtype
    device: device
    grad: Tensor | None = None
    # Autograd: see tape.py. `_root` is the base that a view shares its history with, `_seen` the
    # base's node when the view last looked.
    _requires_grad: bool = False
    _node: tape.Node | None = None
    _index: int = 0
    _root: Tensor | None = None
    _seen: tape.Node | None = None
    _accumulator: Any = None
    _hooks: dict | None = None
    _post_accumulate_hooks: dict | None = None

    if TYPE_CHECKING:  # what the op table adds

        def __getattr__(self, name: str) -> Any: ...
        def __getitem__(self, index) -> Any: ...
        def __setitem__(self, index, value) -> None: ...
        def __add__(self, other) -> Any: ...
        def __radd__(self, other) -> Any: ...
        def __sub__(self, other) -> Any: ...
        def __rsub__(self, other) -> Any: ...
        def __mul__(self, other) -> Any: ...
        def __rmul__(self, other) -> Any: ...
        def __truediv__(self, other) -> Any: ...
        def __matmul__(self, other) -> Any: ...
        def __neg__(self) -> Any: ...
        def __and__(self, other) -> Any: ...
        def __le__(self, other) -> Any: ...
        def __lt__(self, other) -> Any: ...
        def __ge__(self, other) -> Any: ...
        def __gt__(self, other) -> Any: ...

    def __new__(cls, *args, **kwargs):
        return legacy_constructor(cls, args, kwargs)

    # ---- what it is

    @property
    def shape(self) -> Size:
        shape = self._shape
        return Size(self._read().shape) if shape is None else shape

    @property
    def ndim(self) -> int:
        shape = self._shape
        return self._read().ndim if shape is None else len(shape)

    @property
    def mx(self) -> mx.array:
        """The value as an mx.array (float8 as its bytes). Later writes to the tensor do not change
        it.
        """
        return self._read()

    @property
    def _strides_or_contiguous(self) -> tuple[int, ...]:
        return layout.contiguous(self.shape) if self._strides is None else self._strides

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this tensor are recorded."""
        return self._requires_grad if self._root is None else tape.follow(self)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if bool(value) == self.requires_grad:
            return
        if value and self.dtype.category < dtypes.FLOAT:
            raise RuntimeError(
                "only Tensors of floating point and complex dtype can require gradients"
            )
        if not value and self._node is not None:
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables. If you want to use a "
                "computed variable in a subgraph that doesn't require differentiation use "
                "var_no_grad = var.detach()."
            )
        self._requires_grad = bool(value)
        self._root = None  # a leaf has a history of its own

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made this tensor."""
        return not self.requires_grad or self._node is None

    @property
    def grad_fn(self) -> tape.Node | None:
        """The recorded operation that made this tensor, or None."""
        return self._node if self.requires_grad else None

    @property
    def data(self) -> Tensor:
        """The same storage without autograd, which does not notice writes through it either;
        assigning rebinds this tensor to another's storage.
        """
        new = alias(self)
        new._silent = True
        return new

    @data.setter
    def data(self, other: Tensor) -> None:
        self._adopt(other)

    @property
    def _version(self) -> int:
        return self._cell.version

    @property
    def _base(self) -> Tensor | None:
        if self._root is not None:
            return self._root
        return (
            from_cell(self._cell, dtypes.from_mx(self._cell.array.dtype), self.device)
            if self._steps
            else None
        )

    # ---- reading and writing

    def _read(self) -> mx.array:
        cell = self._cell
        steps = self._steps
        if not steps:
            return cell.array
        if self._cached is not None and self._cached_version == cell.version:
            return self._cached
        array = views.read(cell.array, steps)
        if type(cell) is Cell:  # not while NumPy shares the memory
            self._cached, self._cached_version = array, cell.version
            cell.remember(self)
        return array

    def _write(self, new: mx.array, source: Tensor | None = None, fresh: bool = False) -> None:
        """Store `new` (this shape; cast to the storage dtype) in the cell, through the views.

        source: the tensor whose values these are, if autograd should know; fresh: nobody else has
        it.
        """
        if self._strides is not None and layout.overlaps(self.shape, self._strides):
            raise RuntimeError(MANY_IN_ONE)
        self._store(new, source, fresh)

    def _fill(self, number: mx.array) -> None:
        """Make every element `number` (0-d), also where several elements share memory."""
        self._store(mx.full(self.shape, number))

    def _store(self, new: mx.array, source: Tensor | None = None, fresh: bool = False) -> None:
        if modes.grad_enabled() and (
            self._requires_grad or self._root is not None or source is not None
        ):
            tape.rebase(self, source, fresh)
        storage = self.dtype.mx
        if new.dtype != storage:
            if self.dtype.opaque:
                raise NotImplementedError(f"cannot write numbers to '{self.dtype.torch_name}'")
            new = new.astype(storage)
        self._cached = None
        cell, steps = self._cell, self._steps
        if devices.STREAMS:
            with devices.stream_of(self.device):
                new = views.write(cell.array, steps, new) if steps else new
        elif steps:
            new = views.write(cell.array, steps, new)
        cell.write(new, self._silent)

    def _adopt(self, other: Tensor) -> None:
        """Become another handle on `other`'s storage (set_data)."""
        for name in ("_cell", "_steps", "_shape", "_strides", "_offset", "dtype", "device"):
            setattr(self, name, getattr(other, name))
        self._cached = None

    def _view(
        self, step, shape: Sequence[int], strides, offset: int | None = None, dtype=None
    ) -> Tensor:
        """A view whose values `step` computes and that reports this shape, strides and offset."""
        new = object.__new__(Tensor)
        new._cell = self._cell
        new._steps = (*self._steps, step)
        new._shape = Size(shape)
        if strides is not None and strides != layout.contiguous(new._shape):
            new._strides = strides
        new._offset = self._offset if offset is None else offset
        new.dtype = dtype or self.dtype
        new.device = self.device
        if self._silent:
            new._silent = True
        if modes.grad_enabled():
            tape.record_view(self, new, step)
        elif self.requires_grad and new.dtype.category >= dtypes.FLOAT:
            # As torch 2.13 has it: the view says that it requires grad, and nothing gathers there.
            new._requires_grad, new._accumulator = True, tape.NOTHING
        return new

    def _host(self) -> mx.array:
        """The value, evaluated. A meta tensor has none."""
        if self.device.type == "meta":
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        array = self._read()
        mx.eval(array)
        return array

    # ---- Python protocols that are not operations

    def __len__(self):
        if self.ndim == 0:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __iter__(self):
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d tensor")
        return iter(self.unbind(0))

    def __hash__(self):
        return id(self)

    def __bool__(self):
        if self.numel() != 1:
            count = "no values" if self.numel() == 0 else "more than one value"
            raise RuntimeError(f"Boolean value of Tensor with {count} is ambiguous")
        return bool(self.item())

    def _one(self):
        if self.numel() != 1:
            raise ValueError("only one element tensors can be converted to Python scalars")
        return self.item()

    def __int__(self):
        return int(self._one())

    def __float__(self):
        value = self._one()
        if isinstance(value, complex) and value.imag:
            raise RuntimeError("value cannot be converted to type double without overflow")
        return float(value.real)

    def __complex__(self):
        return complex(self._one())

    def __index__(self):
        if self.dtype.category > dtypes.INTEGER or self.numel() != 1:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.item())

    def __contains__(self, element):
        if not isinstance(element, (Tensor, bool, int, float, complex)):
            raise RuntimeError(
                "Tensor.__contains__ only supports Tensor or scalar, but you passed in a "
                f"{type(element)}."
            )
        return bool((self == element).any())  # type: ignore[attr-defined]

    __array_priority__ = 1000  # NumPy leaves `scalar * tensor` to the tensor

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=bool(copy))

    def __dir__(self):
        return sorted({*object.__dir__(self)})

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """A NumPy array on the same memory: writes on either side are seen by the other.

        torch.Tensor.numpy.
        """
        if self.requires_grad and not force:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() "
                "instead."
            )
        if self.device.type != "cpu" and not force:
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to "
                "copy the tensor to host memory first."
            )
        if self.dtype is dtypes.bfloat16 or self.dtype.opaque:
            raise TypeError(f"Got unsupported ScalarType {self.dtype.torch_name}")
        if self.device.type != "cpu":
            return np.array(self._host())
        return self._shared_numpy()

    def _shared_numpy(self) -> np.ndarray:
        """Memory shared with NumPy; what NumPy has no dtype for as its bits, unsigned."""
        kind, itemsize = self.dtype, self.dtype.itemsize
        bits = kind.opaque or kind is dtypes.bfloat16
        element = np.dtype(f"uint{8 * itemsize}" if bits else kind.name)
        if 0 in self.shape:
            return np.empty(tuple(self.shape), element)
        memory = cells.share(self._cell)
        strides = tuple(s * itemsize for s in self._strides_or_contiguous)
        address = memory.ctypes.data + self._offset * itemsize
        return cells.window(memory, address, tuple(self.shape), strides, element)

    def tolist(self) -> Any:
        """Nested Python lists of Python numbers (a number for a 0-d tensor)."""
        if self.dtype.opaque:
            return self.float().tolist()
        return self._host().tolist()

    def item(self) -> Any:
        """The one element as a Python number. Waits for the device."""
        if self.numel() != 1:
            raise RuntimeError(
                f"a Tensor with {self.numel()} elements cannot be converted to Scalar"
            )
        if self.device.type == "meta":
            raise RuntimeError("Tensor.item() cannot be called on meta tensors")
        return self.float().item() if self.dtype.opaque else self._host().item()

    def __copy__(self):
        """Another handle on the same storage, with this one's class and attributes."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        new.grad = new._accumulator = new._hooks = None
        return new

    def __deepcopy__(self, memo):
        """A copy; what shares a storage here shares the copied one there, through `memo`."""
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment. If you were attempting to deepcopy a module, this may be "
                "because of a torch.nn.utils.weight_norm usage."
            )
        new = memo[id(self)] = copy.copy(self)
        cell = memo.get(id(self._cell))
        if cell is None:
            cell = memo[id(self._cell)] = Cell(self._cell.array, self._cell.strides)
        new._cell, new._cached, new._root = cell, None, None
        new.grad = copy.deepcopy(self.grad, memo)
        for name in self.__dict__.keys() - _OWN:
            setattr(new, name, copy.deepcopy(self.__dict__[name], memo))
        return new

    def __reduce_ex__(self, protocol):
        bits = mx.view(mx.reshape(self._host(), (-1,)), mx.uint8) if self.numel() else b""
        strides = layout.preserved(self.shape, self._strides)
        return (
            _unpickle,
            (
                type(self), bytes(np.array(bits)) if self.numel() else b"", tuple(self.shape),
                self.dtype, str(self.device), self.requires_grad, strides,
            ),
        )  # fmt: skip


# What Tensor itself keeps in an instance's dictionary.
_OWN = {
    "_cell", "_steps", "_shape", "_strides", "_offset", "_cached", "_cached_version", "dtype",
    "device", "grad", "_requires_grad", "_node", "_index", "_root", "_seen", "_accumulator",
    "_hooks", "_post_accumulate_hooks",
}  # fmt: skip


def _unpickle(cls, data, shape, dtype: dtype, where, requires_grad, strides) -> Tensor:
    bits = mx.array(np.frombuffer(data, np.uint8).copy())
    array = mx.view(bits, dtype.mx) if data else mx.zeros((0,), dtype.mx)
    if math.prod(shape) != array.size:
        raise ValueError(f"pickled tensor of shape {shape} holds {array.size} elements")
    result = from_array(mx.reshape(array, shape), devices.resolve(where), dtype, strides)
    result.__class__ = cls
    result.requires_grad = requires_grad
    return result


def from_cell(cell: Cell, dtype: dtype, where: device, cls: type = Tensor) -> Tensor:
    """A tensor over a whole cell."""
    new = object.__new__(cls)
    new._cell = cell
    if cell.strides is not None:
        new._strides = cell.strides
    new.dtype = dtype
    new.device = where
    return new


def from_array(
    array: mx.array, where: device = devices.CPU, dtype: dtype | None = None, strides=None
) -> Tensor:
    """A new tensor holding `array`; `dtype` only where it differs from the array's (float8)."""
    return from_cell(Cell(array, strides), dtype or dtypes.from_mx(array.dtype), where)


def from_memory(memory: np.ndarray, dtype: dtype) -> Tensor:
    """A tensor on NumPy's memory, which holds `dtype` (bfloat16 and float8 as unsigned bits)."""
    strides = tuple(s // memory.itemsize for s in memory.strides)
    kept = None if layout.is_contiguous(memory.shape, strides) else strides
    kind = cells.BFloat16Cell if dtype is dtypes.bfloat16 else cells.NumpyCell
    return from_cell(kind.adopt(memory, kept), dtype, devices.CPU)


def from_mx(array: mx.array) -> Tensor:
    """A tensor that holds `array` (any MLX dtype), on the device of MLX's default stream."""
    where = devices.GPU if devices.GPU and mx.default_device() == mx.gpu else devices.CPU
    return from_array(array, where)


def alias(tensor: Tensor) -> Tensor:
    """Another handle on the same storage and view, outside autograd (detach)."""
    new = object.__new__(Tensor)
    for name in ("_cell", "_steps", "_shape", "_strides", "_offset", "dtype", "device"):
        setattr(new, name, getattr(tensor, name))
    return new


def legacy_constructor(cls, args, kwargs) -> Tensor:
    """torch.Tensor(2, 3), torch.Tensor([..]), torch.Tensor(): uninitialised or copied, default
    dtype.
    """
    where = devices.resolve(kwargs.get("device"))
    dtype = kwargs.get("dtype") or dtypes.get_default_dtype()
    if len(args) == 1 and isinstance(args[0], Tensor):
        return alias(args[0])
    if len(args) == 1 and not isinstance(args[0], (int, Size)):
        return from_array(mx.array(np.asarray(args[0], np.float32)).astype(dtype.mx), where)
    shape = args[0] if len(args) == 1 and isinstance(args[0], Size) else args or (0,)
    return from_array(mx.zeros(tuple(shape), dtype.mx), where, dtype)


check_leaf_write = tape.check_write
