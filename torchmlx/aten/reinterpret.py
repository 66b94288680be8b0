"""Views that read the storage anew: as_strided, and complex numbers as pairs or parts."""

from __future__ import annotations

import mlx.core as mx

from ..core import dtype as dtypes
from ..core import views
from ..core.op import view
from ..core.tensor import Tensor, alias


@view()
def as_strided(input, size, stride, storage_offset=None):
    """A view of the storage with any sizes, strides and offset, in elements. torch.as_strided."""
    size, stride = tuple(size), tuple(stride)
    offset = input._offset if storage_offset is None else storage_offset
    if len(size) != len(stride):
        raise RuntimeError(
            f"mismatch in length of strides and shape ({len(stride)} and {len(size)}) in as_strided"
        )
    needed = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1
    flat = _flat_storage(input)
    if 0 not in size and needed > flat.numel():
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset} "
            f"require {needed} elements, but the storage has {flat.numel()}"
        )
    step = views.Gather(lambda x: mx.as_strided(mx.contiguous(x), size, stride, offset))
    return flat._view(step, size, stride, offset)


def _flat_storage(x: Tensor) -> Tensor:
    """All of x's storage as one dimension of x's dtype, in memory order."""
    array, strides = x._cell.array, x._cell.strides
    whole = x if x._root is None else x._root  # a base that is known brings its history
    if whole._steps:
        whole = alias(x)
        whole._steps, whole._offset = (), 0
    if strides is not None:
        order = tuple(sorted(range(len(strides)), key=lambda d: -strides[d]))
        whole = whole._view(views.Permute(order), [array.shape[d] for d in order], None)
    shape = tuple(array.shape if strides is None else whole.shape)
    flat = whole._view(views.Reshape(shape, (array.size,)), (array.size,), None, 0)
    if array.dtype == x.dtype.mx:
        return flat
    size = (array.nbytes // x.dtype.itemsize,)
    step = views.Bits(array.dtype, x.dtype.mx, (array.size,), size)
    return flat._view(step, size, None, 0, dtype=x.dtype)


@view()
def view_as_real(input):
    """A complex tensor as real pairs [..., 2], on the same storage. torch.view_as_real."""
    if not input.dtype.is_complex:
        raise RuntimeError("view_as_real is only supported for complex tensors")
    shape = (*input.shape, 2)
    strides = (*(2 * s for s in input._strides_or_contiguous), 1)
    step = views.Bits(mx.complex64, mx.float32, tuple(input.shape), shape)
    return input._view(step, shape, strides, 2 * input._offset, dtype=dtypes.float32)


@view()
def view_as_complex(input):
    """Real pairs [..., 2] as complex numbers, on the same storage. torch.view_as_complex."""
    shape, strides = tuple(input.shape), input._strides_or_contiguous
    if input.dtype in (dtypes.float64, dtypes.float16):
        raise TypeError(
            f"view_as_complex of {input.dtype} is not supported: MLX has complex64 only"
        )
    if input.dtype is not dtypes.float32:
        raise RuntimeError(
            "view_as_complex is only supported for half, float and double tensors, but got a "
            f"tensor of scalar type: {input.dtype.torch_name}"
        )
    if not shape or shape[-1] != 2:
        raise RuntimeError("Tensor must have a last dimension of size 2")
    if strides[-1] != 1:
        raise RuntimeError("Tensor must have a last dimension with stride 1")
    kept = tuple(s // 2 for s in strides[:-1])
    step = views.Bits(mx.float32, mx.complex64, shape, shape[:-1])
    return input._view(step, shape[:-1], kept, input._offset // 2, dtype=dtypes.complex64)


def _part(x: Tensor, which: int) -> Tensor:
    strides = tuple(2 * s for s in x._strides_or_contiguous)
    return x._view(views.Part(which), x.shape, strides, 2 * x._offset + which, dtype=dtypes.float32)


@view(at=("torch",))
def real(input):
    """The real part, a view; a real tensor itself. torch.real."""
    return _part(input, 0) if input.dtype.is_complex else input


@view(at=("torch",))
def imag(input):
    """The imaginary part, a view; complex only. torch.imag."""
    if not input.dtype.is_complex:
        raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
    return _part(input, 1)


Tensor.real = property(real, doc=real.__doc__)  # type: ignore[attr-defined]
Tensor.imag = property(imag, doc=imag.__doc__)  # type: ignore[attr-defined]
