"""Views as copies (NAME_copy), and copies with a part written (as_strided_scatter)."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ..core.op import TABLE, composite, op
from ..core.tensor import Tensor


def _copied(name: str, view) -> None:
    """torch.NAME_copy: what `view` gives, in storage of its own."""

    @composite(f"torch.{name}_copy", at=("torch",))
    def copied(input, *args, **kwargs):
        seen = view(input, *args, **kwargs)
        return seen.clone() if isinstance(seen, Tensor) else tuple(part.clone() for part in seen)

    copied.__doc__ = f"torch.{name} in storage of its own. torch.{name}_copy."


def _sliced(input, dim=0, start=None, end=None, step=1):
    return input[(slice(None),) * (dim % input.ndim) + (slice(start, end, step),)]


for _name in (
    "as_strided", "detach", "diagonal", "narrow", "permute", "select", "split", "squeeze",
    "t", "transpose", "unbind", "unsqueeze", "view_as_complex", "view_as_real",
):  # fmt: skip
    _copied(_name, lambda *args, _name=_name, **kwargs: TABLE[_name].call(*args, **kwargs))
_copied("alias", lambda input: input)
_copied("slice", _sliced)
_copied("split_with_sizes", lambda input, sizes, dim=0: input.split(tuple(sizes), dim))
_copied("view", lambda input, *size: input.reshape(*size))
for _name in ("expand", "unfold"):
    _copied(_name, lambda input, *args, _name=_name: getattr(input, _name)(*args))


@composite("Tensor.narrow_copy", at=("Tensor",))
def _narrow_copy(self, dim, start, length):
    """torch.narrow in storage of its own. Tensor.narrow_copy."""
    return self.narrow(dim, start, length).clone()


@composite()
def as_strided_scatter(input, src, size, stride, storage_offset=None):
    """A copy of input whose elements seen by as_strided are src. torch.as_strided_scatter."""
    order = sorted(range(input.ndim), key=lambda d: -input.stride(d))  # as they lie in memory
    result = _scattered(input.permute(order), src, size, stride, storage_offset)
    return result.permute(np.argsort(order).tolist())


@op("_as_strided_scatter", at=())
def _scattered(input, src, size, stride, storage_offset):
    if tuple(src.shape) != tuple(size):
        raise RuntimeError(f"expected src to have a size equal to {list(size)}")
    last = (storage_offset or 0) + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if src.size and last >= input.size:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)} reach element {last} of a "
            f"storage of {input.size}"
        )
    where = np.lib.stride_tricks.as_strided(
        np.arange(input.size)[storage_offset or 0 :], size, [8 * s for s in stride]
    )
    source = np.full(input.size, -1, np.int32)
    source[where.ravel()] = np.arange(where.size, dtype=np.int32)
    source = mx.array(source)
    written = mx.take(mx.reshape(src, (-1,)), mx.maximum(source, 0))
    result = mx.where(source < 0, mx.reshape(input, (-1,)), written)
    return mx.reshape(result, input.shape)


@composite()
def ravel(input):
    """All elements in one dimension; a view where the strides allow it. torch.ravel."""
    return input.contiguous().view(-1)


@op(at=("torch",))
def fill(input, value):
    """A tensor like input of one value. torch.fill."""
    return mx.broadcast_to(mx.array(value).astype(input.dtype), input.shape)


def _method(name: str) -> None:
    """torch.NAME(input, ...) for a method that changes its tensor."""

    @composite("torch." + name, at=("torch",))
    def changed(input, *args, **kwargs):
        return getattr(input, name)(*args, **kwargs)

    changed.__doc__ = f"Tensor.{name} as a function. torch.{name}."


for _name in ("fill_", "zero_", "detach_", "resize_as_", "as_strided_", "get_device"):
    _method(_name)
