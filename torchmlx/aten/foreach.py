"""torch._foreach_*: one operation over lists of tensors, as optimisers use them."""

from __future__ import annotations

from ..core.op import TABLE, composite
from ..core.tensor import Tensor
from .reduce import vector_norm

function = ("torch",)


def _paired(tensors, others) -> list:
    """One operand for each tensor: from a list (one each), or the same number or tensor for all."""
    if not isinstance(others, (list, tuple)):
        return [others] * len(tensors)
    if len(others) != len(tensors):
        raise RuntimeError(
            "Tensor lists must have the same number of tensors, got "
            f"{len(tensors)} and {len(others)}"
        )
    return list(others)


def _check_tensors(tensors) -> None:
    if not len(tensors):
        raise RuntimeError("Tensor list must have at least one tensor.")


def _both(name: str, apply, doc: str) -> None:
    """_foreach_NAME(tensors, ...), and _foreach_NAME_ which changes the tensors."""

    @composite(f"_foreach_{name}", at=function)
    def made(self, *args, **kwargs):
        _check_tensors(self)
        return tuple(apply(self, *args, **kwargs))

    @composite(f"_foreach_{name}_", at=function)
    def changed(self, *args, **kwargs):
        _check_tensors(self)
        for x, new in zip(self, apply(self, *args, **kwargs), strict=True):
            x.copy_(new)
        return list(self)

    made.__doc__ = changed.__doc__ = doc


def _unary(name: str) -> None:
    _both(
        name,
        lambda tensors: [TABLE[name].call(x) for x in tensors],
        f"torch.{name} of each tensor.",
    )


def _binary(name: str) -> None:
    def apply(tensors, other, **kwargs):
        pairs = zip(tensors, _paired(tensors, other), strict=True)
        return [TABLE[name].call(x, y, **kwargs) for x, y in pairs]

    _both(name, apply, f"torch.{name} of each tensor and its partner.")


def _ternary(name: str) -> None:
    def apply(tensors, first, second, value=1, **kwargs):
        scalars = kwargs.get("scalars", value)
        scalars = scalars.tolist() if isinstance(scalars, Tensor) else scalars
        groups = zip(tensors, first, second, _paired(tensors, scalars), strict=True)
        return [TABLE[name].call(x, a, b, value=v) for x, a, b, v in groups]

    _both(name, apply, f"torch.{name} of each tensor and its partners.")


for _name in (
    "abs", "neg", "sqrt", "rsqrt", "exp", "log", "reciprocal", "sign", "sigmoid", "round", "floor",
    "ceil", "trunc", "frac", "sin", "cos", "tanh", "erf", "expm1", "log1p", "log2", "log10",
):  # fmt: skip
    _unary(_name)
for _name in ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "clamp_max", "clamp_min"):
    _binary(_name)
for _name in ("addcmul", "addcdiv"):
    _ternary(_name)


def _lerp(tensors, ends, weight):
    weights = _paired(tensors, weight)
    return [TABLE["lerp"].call(x, y, w) for x, y, w in zip(tensors, ends, weights, strict=True)]


_both("lerp", _lerp, "torch.lerp of each tensor and its partner.")


@composite("_foreach_norm", at=function)
def norm(self, ord=2, dtype=None):
    """The p-norm of each tensor. torch._foreach_norm."""
    _check_tensors(self)
    return tuple(vector_norm(x, ord, dtype=dtype) for x in self)


@composite("_foreach_copy_", at=function)
def copy_(self, src, non_blocking=False):
    """Each tensor overwritten by its partner. torch._foreach_copy_."""
    for x, y in zip(self, src, strict=True):
        x.copy_(y)
    return list(self)


@composite("_foreach_zero_", at=function)
def zero_(self):
    """Each tensor set to zero. torch._foreach_zero_."""
    for x in self:
        x.zero_()
    return list(self)


@composite("_has_compatible_shallow_copy_type", at=function)
def has_compatible_type(input, other):
    """Whether set_data may exchange the tensors' storage: all tensors here are of one kind."""
    return True
