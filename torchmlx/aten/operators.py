"""Python's operators on Tensors: table entries, tried only on operands that torch accepts."""

from __future__ import annotations

import numpy as np

from ..core.op import TABLE
from ..core.tensor import Tensor
from .index import getitem, setitem

_OPERANDS = (Tensor, bool, int, float, complex)


def _operand(other) -> bool:
    return isinstance(other, _OPERANDS)


def _number(other):
    """NumPy scalars and arrays as what they mean to torch."""
    if isinstance(other, np.generic):
        return other.item()
    if isinstance(other, np.ndarray):
        return TABLE["tensor"].call(other)
    return other


def _binary(name: str, function, reflected: bool = False):
    def operator(self, other):
        if not _operand(other):
            other = _number(other)
            if not _operand(other):
                return NotImplemented
        return function(other, self) if reflected else function(self, other)

    operator.__name__ = name
    setattr(Tensor, name, operator)


def _inplace(name: str, entry: str):
    method = TABLE[entry].inplace
    assert method is not None

    def operator(self, other):
        other = _number(other)
        return method(self, other) if _operand(other) else NotImplemented

    operator.__name__ = name
    setattr(Tensor, name, operator)


def install() -> None:
    """Attach the operators to Tensor."""
    call = {name: entry.call for name, entry in TABLE.items()}
    both = {
        "add": "add", "sub": "sub", "mul": "mul", "truediv": "true_divide",
        "floordiv": "floor_divide", "mod": "remainder", "pow": "pow", "and": "bitwise_and",
        "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift",
        "rshift": "bitwise_right_shift", "matmul": "matmul",
    }  # fmt: skip
    for name, entry in both.items():
        _binary(f"__{name}__", call[entry])
        if name != "truediv":
            commutes = name in ("add", "mul", "and", "or", "xor")
            _binary(f"__r{name}__", call[entry], reflected=not commutes)
        if TABLE[entry].inplace:
            _inplace(f"__i{name}__", entry)
    # torch divides a number by a tensor in two roundings.
    _binary("__rtruediv__", lambda x, number: x.reciprocal() * number)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        _comparison(f"__{name}__", call[name])
    for name, entry in {
        "neg": "neg",
        "pos": "positive",
        "abs": "abs",
        "invert": "bitwise_not",
    }.items():
        setattr(Tensor, f"__{name}__", call[entry])
    Tensor.__getitem__ = getitem  # type: ignore[attr-defined]
    Tensor.__setitem__ = setitem  # type: ignore[attr-defined]


def _comparison(name: str, function):
    def operator(self, other):
        other = _number(other)
        if not _operand(other):
            return NotImplemented
        return function(self, other)

    operator.__name__ = name
    setattr(Tensor, name, operator)
