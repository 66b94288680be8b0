"""Parameters and buffers: tensors that a module registers when they are assigned to it."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from ..core.dtype import FLOAT
from ..core.tensor import Tensor, alias, from_array


def _handle(cls, data: Tensor | None, requires_grad: bool) -> Any:
    """Another handle on `data`'s storage, of class `cls`."""
    new = from_array(mx.zeros((0,))) if data is None else alias(data)
    if requires_grad and new.dtype.category < FLOAT:
        raise RuntimeError("Only Tensors of floating point and complex dtype can require gradients")
    new.__class__ = cls
    new.requires_grad = requires_grad
    return new


class Parameter(Tensor):
    """A tensor that becomes a module's parameter when assigned to an attribute. torch.nn.Parameter.

    Shares storage with `data`; requires grad by default, whatever the grad mode.
    """

    def __new__(cls, data=None, requires_grad=True):
        return _handle(cls, data, requires_grad)

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.data.clone(), self.requires_grad)
        return memo[id(self)]

    def __repr__(self):
        return "Parameter containing:\n" + super().__repr__()


class _BufferType(type):
    """`isinstance(t, Buffer)` holds for the plain tensors that `Buffer(...)` makes."""

    def __instancecheck__(cls, instance):
        return isinstance(instance, Tensor) and getattr(instance, "_is_buffer", False)


class Buffer(Tensor, metaclass=_BufferType):
    """A tensor that becomes a module's buffer when assigned to an attribute. torch.nn.Buffer."""

    def __new__(cls, data=None, *, persistent=True):
        new: Any = _handle(Tensor, data, False if data is None else data.requires_grad)
        new.persistent, new._is_buffer = persistent, True
        return new
