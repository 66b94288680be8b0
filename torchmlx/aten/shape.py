"""Views and rearrangements: operations that share storage, or copy it into another shape."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx

from ..core import dtype as dtypes
from ..core import layout, views
from ..core.dtype import dtype
from ..core.layout import infer_size, wrap_dim, wrap_dims
from ..core.op import composite, op, view
from ..core.record import computed
from ..core.tensor import Tensor, alias, from_array


def sizes(args, kwargs=None, name: str = "size") -> tuple[int, ...]:
    """Sizes given as varargs, as one sequence or as `name=`; 0-d integer tensors count as ints."""
    if not args:
        if not kwargs or name not in kwargs:
            raise TypeError(f'missing 1 required positional arguments: "{name}"')
        args = (kwargs[name],)
    first: Any = args[0] if len(args) == 1 else 0
    if hasattr(first, "__iter__") and not (isinstance(first, Tensor) and first.ndim == 0):
        args = first
    return tuple(a if type(a) is int else a.__index__() for a in args)


def reshaped(x: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """A view of x as `shape`, or None where torch would have to copy."""
    old, strides = tuple(x.shape), x._strides
    if strides is not None:
        strides = layout.view_strides(old, strides, shape)
        if strides is None:
            return None
    return x._view(views.Reshape(old, shape), shape, strides)


@view("view", at=("Tensor",))
def view_(self, *shape, **kwargs):
    """The same storage as another shape, or (given a dtype) the same bytes as another dtype.

    Tensor.view.
    """
    wanted = kwargs.get("dtype", shape[0] if len(shape) == 1 else None)
    if isinstance(wanted, dtype):
        return _view_dtype(self, wanted)
    shape = infer_size(sizes(shape, kwargs), self.numel())
    found = reshaped(self, shape)
    if found is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one "
            "dimension spans across two contiguous subspaces). Use .reshape(...) instead."
        )
    return found


def _view_dtype(x: Tensor, target: dtype) -> Tensor:
    old, new = x.dtype.itemsize, target.itemsize
    shape, strides = list(x.shape), list(x._strides_or_contiguous)
    if target.mx is None:
        raise NotImplementedError(f"{target} is not supported: MLX has no such type")
    if target is x.dtype:
        return alias_view(x)
    if old != new:
        if not shape:
            raise RuntimeError(
                f"self.dim() cannot be 0 to view {x.dtype.torch_name} as {target.torch_name} "
                "(different element sizes)"
            )
        if strides[-1] != 1:
            raise RuntimeError(f"self.stride(-1) must be 1 to view {x.dtype} as {target}")
        if shape[-1] * old % new:
            raise RuntimeError(
                f"self.size(-1) must be divisible by {new // old} to view {x.dtype} as {target} "
                f"(different element sizes), but got {shape[-1]}"
            )
        for d, s in enumerate(strides[:-1]):
            if s * old % new:
                raise RuntimeError(
                    f"self.stride({d}) must be divisible by {new // old} to view "
                    f"{x.dtype.torch_name} as {target.torch_name} (different element sizes), "
                    f"but got {s}"
                )
        if x._offset * old % new:
            raise RuntimeError(
                f"self.storage_offset() must be divisible by {new // old} to view "
                f"{x.dtype.torch_name} as {target.torch_name} (different element sizes), "
                f"but got {x._offset}"
            )
        shape[-1] = shape[-1] * old // new
        strides = [s * old // new for s in strides[:-1]] + [1]
    step = views.Bits(x.dtype.mx, target.mx, tuple(x.shape), tuple(shape))
    return x._view(step, shape, tuple(strides), x._offset * old // new, dtype=target)


@view()
def reshape(input, *shape, **kwargs):
    """A view where the strides allow it, a copy otherwise. torch.reshape."""
    shape = infer_size(sizes(shape, kwargs, "shape"), input.numel())
    found = reshaped(input, shape)
    return computed("reshape", lambda a: mx.reshape(a, shape), input) if found is None else found


@view(at=("Tensor",))
def view_as(self, other):
    """self.view(other.shape). Tensor.view_as."""
    return self.view(other.shape)


@view(at=("Tensor",))
def reshape_as(self, other):
    """self.reshape(other.shape). Tensor.reshape_as."""
    return self.reshape(other.shape)


@view()
def flatten(input, start_dim=0, end_dim=-1):
    """Dimensions start_dim..end_dim as one. torch.flatten."""
    shape = tuple(input.shape)
    start, end = wrap_dim(start_dim, len(shape)), wrap_dim(end_dim, len(shape))
    if start > end:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    if not shape:
        return input.reshape(1)
    if start == end:
        return input
    return input.reshape(*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :])


@view(at=("Tensor",))
def ravel(self):
    """The elements as one dimension. torch.ravel."""
    return self.contiguous().view(-1)


@view()
def unflatten(input, dim, sizes):
    """Dimension `dim` split into `sizes`. torch.unflatten."""
    if input.ndim == 0:
        raise RuntimeError("unflatten: Dimension specified as 0 but tensor has no dimensions")
    d = wrap_dim(dim, input.ndim)
    shape = tuple(input.shape)
    parts = infer_size(tuple(sizes), shape[d])
    return input.view(*shape[:d], *parts, *shape[d + 1 :])


def _permuted(x: Tensor, order: tuple[int, ...]) -> Tensor:
    shape, strides = x.shape, x._strides_or_contiguous
    shape = tuple(shape[d] for d in order)
    strides = tuple(strides[d] for d in order)
    return x._view(views.Permute(order), shape, strides)


@view()
def permute(input, *dims, **kwargs):
    """Dimensions in another order. torch.permute."""
    dims = sizes(dims, kwargs, "dims")
    if len(dims) != input.ndim:
        raise RuntimeError(
            "permute(sparse_coo): number of dimensions in the tensor input does not match the "
            f"length of the desired ordering of dimensions i.e. input.dim() = {input.ndim} is not "
            f"equal to len(dims) = {len(dims)}"
        )
    return _permuted(input, wrap_dims(dims, input.ndim))


@view(aliases=("swapaxes", "swapdims"))
def transpose(input, dim0, dim1):
    """Two dimensions exchanged. torch.transpose."""
    a, b = wrap_dim(dim0, input.ndim), wrap_dim(dim1, input.ndim)
    if a == b:
        return alias_view(input)
    order = list(range(input.ndim))
    order[a], order[b] = b, a
    return _permuted(input, tuple(order))


def alias_view(x: Tensor) -> Tensor:
    """The same tensor as a new view object."""
    return x._view(views.Reshape(tuple(x.shape), tuple(x.shape)), x.shape, x._strides)


@view()
def t(input):
    """The transpose of a tensor of at most two dimensions. torch.t."""
    if input.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D")
    return input.transpose(0, 1) if input.ndim == 2 else alias_view(input)


@view(aliases=("moveaxis",))
def movedim(input, source, destination):
    """Dimensions moved to new places, the others keep their order. torch.movedim."""
    source, destination = wrap_dims(source, input.ndim), wrap_dims(destination, input.ndim)
    if input.ndim == 0:
        return alias_view(input)
    order = [d for d in range(input.ndim) if d not in source]
    for to, d in sorted(zip(destination, source, strict=True)):
        order.insert(to, d)
    return _permuted(input, tuple(order))


@view()
def squeeze(input, dim=None):
    """Without the dimensions (or the given ones) of size 1. torch.squeeze."""
    dims = wrap_dims(dim, input.ndim)
    keep = [d for d in range(input.ndim) if not (d in dims and input.shape[d] == 1)]
    shape, strides = input.shape, input._strides_or_contiguous
    return _relabel(input, [shape[d] for d in keep], [strides[d] for d in keep])


@view()
def unsqueeze(input, dim):
    """With a dimension of size 1 inserted at `dim`. torch.unsqueeze."""
    d = wrap_dim(dim, input.ndim + 1)
    shape, strides = list(input.shape), list(input._strides_or_contiguous)
    step = shape[d] * strides[d] if d < len(shape) else 1
    shape.insert(d, 1)
    strides.insert(d, step)
    return _relabel(input, shape, strides)


def _relabel(x: Tensor, shape, strides) -> Tensor:
    shape = tuple(shape)
    return x._view(views.Reshape(tuple(x.shape), shape), shape, tuple(strides))


@view(at=("Tensor",))
def expand(self, *size, **kwargs):
    """Dimensions of size 1 repeated without copying; -1 keeps a size. Tensor.expand."""
    wanted = sizes(size, kwargs)
    shape, strides = tuple(self.shape), self._strides_or_contiguous
    lead = len(wanted) - len(shape)
    if lead < 0:
        raise RuntimeError(
            f"expand({self.type()}{{{list(shape)}}}, size={list(wanted)}): the number of sizes "
            f"provided ({len(wanted)}) must be greater or equal to the number of dimensions in "
            f"the tensor ({len(shape)})"
        )
    new = []
    for i, n in enumerate(wanted):
        own = shape[i - lead] if i >= lead else 1
        if n == -1 and i < lead:
            raise RuntimeError(
                "The expanded size of the tensor (-1) isn't allowed in a leading, non-existing "
                f"dimension {i}"
            )
        n = own if n == -1 else n
        if own not in (1, n):
            raise RuntimeError(
                f"The expanded size of the tensor ({n}) must match the existing size ({own}) at "
                f"non-singleton dimension {i}.  Target sizes: {list(wanted)}.  Tensor sizes: "
                f"{list(shape)}"
            )
        new.append(n)
    kept = _expanded_strides(shape, strides, new)
    return self._view(views.Expand(shape, tuple(new)), new, kept)


def _expanded_strides(shape, strides, new) -> tuple[int, ...]:
    """0 where elements are repeated; a new dimension of size 1 strides over the rest."""
    if not shape:
        return (0,) * len(new)
    lead, result = len(new) - len(shape), list(strides)
    for i in range(len(shape)):
        if shape[i] != new[i + lead]:
            result[i] = 0
    for n, following in zip(new[:lead][::-1], new[1 : lead + 1][::-1], strict=True):
        result.insert(0, following * result[0] if n == 1 else 0)
    return tuple(result)


@view(at=("Tensor",))
def expand_as(self, other):
    """self.expand(other.shape). Tensor.expand_as."""
    return self.expand(other.shape)


@view()
def broadcast_to(input, size):
    """input.expand(size). torch.broadcast_to."""
    return input.expand(size)


@composite(at=("torch",))
def broadcast_tensors(*tensors):
    """All tensors expanded to their common shape. torch.broadcast_tensors."""
    shape = layout.broadcast_shapes(*(t.shape for t in tensors))
    return tuple(t.expand(shape) for t in tensors)


@view()
def narrow(input, dim, start, length):
    """Elements start .. start + length of a dimension. torch.narrow."""
    if input.ndim == 0:
        raise RuntimeError("narrow() cannot be applied to a 0-dim tensor.")
    d = wrap_dim(dim, input.ndim)
    start, size = int(start), input.shape[d]
    if length < 0:
        raise RuntimeError("narrow(): length must be non-negative.")
    if not -size <= start <= size:
        raise IndexError(
            f"start out of range (expected to be in range of [{-size}, {size}], but got {start})"
        )
    start += size if start < 0 else 0
    if start + length > size:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({size}).")
    return sliced(input, d, start, start + length)


def sliced(x: Tensor, dim: int, start: int, stop: int, step: int = 1) -> Tensor:
    """x[..., start:stop:step, ...] along one dimension (bounds already valid)."""
    shape, strides = list(x.shape), list(x._strides_or_contiguous)
    offset = x._offset + start * strides[dim]
    shape[dim] = max(0, -(-(stop - start) // step))
    strides[dim] *= step
    index = (slice(None),) * dim + (slice(start, stop, step),)
    return x._view(views.Index(index), shape, tuple(strides), offset)


@view()
def select(input, dim, index):
    """The slice at `index` of a dimension, without that dimension. torch.select."""
    if input.ndim == 0:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    d, n = wrap_dim(dim, input.ndim), input.shape[wrap_dim(dim, input.ndim)]
    if not -n <= index < n:
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(input.shape)} at "
            f"dimension {d}"
        )
    return input[(slice(None),) * d + (int(index),)]


@view()
def unbind(input, dim=0):
    """The slices along a dimension, as a tuple. torch.unbind."""
    d = wrap_dim(dim, input.ndim)
    if input.ndim == 0:
        raise IndexError("Dimension specified as 0 but tensor has no dimensions")
    return tuple(input.select(d, i) for i in range(input.shape[d]))


@view()
def split(tensor, split_size_or_sections, dim=0):
    """Pieces of a size (the last may be smaller), or of the given sizes. torch.split."""
    d = wrap_dim(dim, tensor.ndim)
    if tensor.ndim == 0:
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    n, size = tensor.shape[d], split_size_or_sections
    if isinstance(size, int):
        if size < 0 or (size == 0 and n):
            raise RuntimeError(
                f"split expects split_size be non-negative, but got split_size={size}"
            )
        parts = [builtins_min(size, n - i) for i in range(0, n, size)] if n else [0]
    else:
        parts = [int(s) for s in size]
        if sum(parts) != n or any(s < 0 for s in parts):
            raise RuntimeError(
                f"split_with_sizes expects split_sizes to sum exactly to {n} (input tensor's size "
                f"at dimension {d}), but got split_sizes={parts}"
            )
    starts = [sum(parts[:i]) for i in range(len(parts))]
    return tuple(sliced(tensor, d, s, s + p) for s, p in zip(starts, parts, strict=True))


builtins_min = min


@view()
def chunk(input, chunks, dim=0):
    """At most `chunks` pieces of equal size. torch.chunk."""
    if input.ndim == 0:
        raise RuntimeError("chunk expects at least a 1-dimensional tensor")
    if chunks <= 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    d = wrap_dim(dim, input.ndim)
    size = -(-input.shape[d] // chunks)
    if size == 0:
        return tuple(sliced(input, d, 0, 0) for _ in range(chunks))
    return input.split(size, d)


@view()
def diagonal(input, offset=0, dim1=0, dim2=1):
    """A view of the diagonals of two dimensions, as the last dimension. torch.diagonal."""
    a, b = wrap_dim(dim1, input.ndim), wrap_dim(dim2, input.ndim)
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    shape, strides = list(input.shape), list(input._strides_or_contiguous)
    rows, columns = shape[a], shape[b]
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    start = (offset * strides[b] if offset >= 0 else -offset * strides[a]) if length else 0
    rest = [d for d in range(len(shape)) if d not in (a, b)]
    new_shape = [shape[d] for d in rest] + [length]
    new_strides = [strides[d] for d in rest] + [strides[a] + strides[b]]
    step = views.Gather(lambda x: mx.diagonal(x, offset, a, b))
    return input._view(step, new_shape, tuple(new_strides), input._offset + start)


@view(at=("Tensor",))
def unfold(self, dimension, size, step):
    """Windows of a dimension as a new last dimension. Tensor.unfold."""
    d = wrap_dim(dimension, self.ndim)
    if self.ndim == 0 and 0 <= size <= 1 and step > 0:
        return self._view(views.Reshape((), (1,)), (1,), None) if size else self.reshape(1)[:0]
    shape, strides = list(self.shape) or [1], list(self._strides_or_contiguous) or [1]
    if size > shape[d]:
        raise RuntimeError(
            f"maximum size for tensor at dimension {d} is {shape[d]} but size is {size}"
        )
    if step <= 0:
        raise RuntimeError(f"step is {step} but must be > 0")
    count = (shape[d] - size) // step + 1
    new_shape = [*shape[:d], count, *shape[d + 1 :], size]
    new_strides = [*strides[:d], strides[d] * step, *strides[d + 1 :], strides[d]]

    def windows(x):
        where = mx.arange(count)[:, None] * step + mx.arange(size)[None]
        taken = mx.take(mx.reshape(x, shape), where, axis=d)
        return mx.moveaxis(taken, d + 1, -1)

    return self._view(views.Gather(windows), new_shape, tuple(new_strides))


@view(at=("torch", "Tensor"))
def detach(input):
    """The same storage without gradient history. torch.Tensor.detach."""
    return alias(input)


def _joined(tensors):
    """The tensors that count: torch.cat has always skipped empty 1-D ones."""
    if not tensors:
        raise ValueError("torch.cat(): expected a non-empty list of Tensors")
    return [t for t in tensors if t.shape != (0,)] or tensors[:1]


@op("_concat", at=())
def _concat(arrays, dim):
    # A lone array comes back as it is.
    return mx.contiguous(mx.concatenate(arrays, axis=dim))


@composite(at=("torch",), aliases=("concat", "concatenate"))
def cat(tensors, dim=0):
    """Tensors joined along an existing dimension, in their promoted dtype. torch.cat."""
    tensors = list(tensors)
    kept = _joined(tensors)
    common = tensors[0].dtype
    for x in tensors[1:]:
        common = dtypes.promote_types(common, x.dtype) if x.dtype is not common else common
    d = wrap_dim(dim, kept[0].ndim)
    if kept[0].ndim == 0:
        raise RuntimeError("zero-dimensional tensor (at position 0) cannot be concatenated")
    for i, x in enumerate(kept):
        if x.ndim != kept[0].ndim:
            raise RuntimeError(
                f"Tensors must have same number of dimensions: got {kept[0].ndim} and {x.ndim}"
            )
        for a in range(x.ndim):
            if a != d and x.shape[a] != kept[0].shape[a]:
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {d}. Expected size "
                    f"{kept[0].shape[a]} but got size {x.shape[a]} for tensor number {i} in the "
                    "list."
                )
    result = _opaque_aware(kept, common, d)
    return result


def _opaque_aware(tensors, common: dtype, dim: int) -> Tensor:
    if common.opaque:
        array = mx.concatenate([t._read() for t in tensors], axis=dim)
        return from_array(array, tensors[0].device, common)
    return _concat([t.to(common) for t in tensors], dim)  # type: ignore[return-value]


@composite(at=("torch",))
def stack(tensors, dim=0):
    """Tensors of one shape joined along a new dimension. torch.stack."""
    tensors = list(tensors)
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    for i, x in enumerate(tensors):
        if x.shape != tensors[0].shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(tensors[0].shape)} at "
                f"entry 0 and {list(x.shape)} at entry {i}"
            )
    d = wrap_dim(dim, tensors[0].ndim + 1)
    return cat([x.unsqueeze(d) for x in tensors], d)


@composite(at=("Tensor",))
def repeat(self, *repeats, **kwargs):
    """The tensor tiled. Tensor.repeat."""
    repeats = sizes(repeats, kwargs, "repeats")
    if len(repeats) < self.ndim:
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions "
            "of tensor"
        )
    shape = (1,) * (len(repeats) - self.ndim) + tuple(self.shape)

    def tiled(a):  # contiguous: once repeated, it would keep what it is a part of
        return mx.contiguous(mx.tile(mx.reshape(a, shape), repeats))

    return computed("repeat", tiled, self)
