"""Methods that change a tensor without a table entry of their own: shape changes, memory hints."""

from __future__ import annotations

from ..core import dtype as dtypes
from ..core import modes
from ..core.op import TABLE, composite
from ..core.outs import resize
from ..core.tape import set_history
from ..core.tensor import Tensor, check_leaf_write
from .places import check_flat, require_tensors
from .shape import sizes

method = ("Tensor",)


def _becomes_view(name: str) -> None:
    """x.NAME_(...): the tensor itself becomes the view that NAME returns."""

    @composite(name + "_", at=method)
    def changed(self, *args, **kwargs):
        check_leaf_write(self)
        seen = TABLE[name].call(self, *args, **kwargs)
        self._adopt(seen)
        self._cell.version += 1
        if modes.grad_enabled() and seen.requires_grad:
            set_history(self, seen._node, seen._index)
        return self

    changed.__doc__ = f"In-place `{name}`: shape and strides change, the storage stays."


for _name in ("t", "transpose", "squeeze", "unsqueeze", "swapaxes", "swapdims", "as_strided"):
    _becomes_view(_name)


@composite(at=method)
def resize_(self, *size, memory_format=None):
    """Another shape over the same storage; new elements are zero. Tensor.resize_."""
    if self.requires_grad:
        raise RuntimeError("cannot resize variables that require grad")
    resize(self, sizes(size))
    return self


@composite(at=method)
def resize_as_(self, other):
    """resize_ to other's shape. Tensor.resize_as_."""
    return resize_(self, tuple(other.shape))


@composite(at=method)
def apply_(self, callable):
    """Each element replaced by callable(element), on the host. Tensor.apply_."""
    values = [callable(v) for v in self.reshape(-1).tolist()]
    return self.copy_(TABLE["tensor"].call(values, dtype=self.dtype).reshape(self.shape))


@composite(at=method)
def map_(self, tensor, callable):
    """Each element replaced by callable(element, other element), on the host. Tensor.map_."""
    pairs = zip(self.reshape(-1).tolist(), tensor.expand_as(self).reshape(-1).tolist(), strict=True)
    values = [callable(a, b) for a, b in pairs]
    return self.copy_(TABLE["tensor"].call(values, dtype=self.dtype).reshape(self.shape))


@composite(inplace=True)
def put(input, index, source, accumulate=False):
    """Elements of source written (or added) at places counted over all dimensions. torch.put."""
    require_tensors("put", 1, index=index, source=source)
    if source.dtype is not input.dtype:
        raise RuntimeError(
            "put_(): self and source expected to have the same dtype, but got self.dtype = "
            f"{input.dtype.torch_name} and source.dtype = {source.dtype.torch_name}"
        )
    if source.numel() != index.numel():
        raise IndexError(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {source.numel()}, index.numel() = {index.numel()}"
        )
    check_flat("put_", input, index)
    flat = input.reshape(-1).clone()
    flat.index_put_((index.reshape(-1),), source.reshape(-1), accumulate)
    return flat.reshape(input.shape)


# ---- memory hints: there is one memory, so they return the tensor


@composite(at=method)
def pin_memory(self, device=None):
    """The tensor: all memory is reachable by the device. Tensor.pin_memory."""
    return self


@composite(at=method)
def is_pinned(self, device=None):
    """False: memory is not pinned. Tensor.is_pinned."""
    return False


def _cast_method(name: str, target: dtypes.dtype) -> None:
    @composite(name, at=method)
    def cast(self, memory_format=None) -> Tensor:
        return self.to(target)

    cast.__doc__ = f"The tensor as {target}. Tensor.{name}."


_cast_method("byte", dtypes.uint8)
_cast_method("char", dtypes.int8)
