"""Rearranging elements: triangles, diagonals, flips, rolls, repetition, grids, stacking and
splitting.
"""

from __future__ import annotations

import itertools

import mlx.core as mx
import numpy as np

from ..core import dtype as dtypes
from ..core import layout
from ..core.layout import wrap_dim, wrap_dims
from ..core.op import composite, op, view
from ..core.tensor import Tensor, from_array
from ._calling import host, numpy_names
from .creation import made
from .shape import cat, sizes, sliced, stack

function = ("torch",)

# ---- triangles and diagonals


def _triangle(name: str, keeps):
    @op(name, inplace=True, pointwise=False)
    def triangle(input, diagonal=0):
        if input.ndim < 2:
            raise RuntimeError(f"{name}: input tensor must have at least 2 dimensions")
        rows, columns = input.shape[-2:]
        offset = mx.expand_dims(mx.arange(columns), 0) - mx.expand_dims(mx.arange(rows), 1)
        return mx.where(keeps(offset, diagonal), input, mx.zeros((), input.dtype))

    what = "below" if name == "tril" else "above"
    triangle.__doc__ = f"The elements on and {what} a diagonal, zero elsewhere. torch.{name}."

    @composite(name + "_indices", at=function)
    def indices(row, col, offset=0, *, dtype=dtypes.int64, device=None, **_):
        apart = np.arange(col)[None] - np.arange(row)[:, None]
        found = np.argwhere(apart <= offset if name == "tril" else apart >= offset).T
        return made(mx.array(np.ascontiguousarray(found).astype(np.int64)), dtype, device)

    indices.__doc__ = (
        f"[2, n] rows and columns of the elements that {name} keeps. torch.{name}_indices."
    )


_triangle("tril", lambda offset, diagonal: offset <= diagonal)
_triangle("triu", lambda offset, diagonal: offset >= diagonal)


@composite()
def diag(input, diagonal=0):
    """A vector as a diagonal matrix, or a matrix's diagonal (a copy). torch.diag."""
    if input.ndim == 1:
        return diag_embed(input, diagonal)
    if input.ndim != 2:
        raise RuntimeError(f"diag(): Supports 1D or 2D tensors. Got {input.ndim}D")
    return input.diagonal(diagonal).clone()


@op()
def diag_embed(input, offset=0, dim1=-2, dim2=-1):
    """The last dimension as the diagonal of two new ones. torch.diag_embed."""
    ndim = input.ndim + 1
    a, b = wrap_dim(dim1, ndim), wrap_dim(dim2, ndim)
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    n = input.shape[-1] + abs(offset)
    if input.size == 0:
        shape = [n if d in (a, b) else None for d in range(ndim)]
        rest = iter(input.shape[:-1])
        return mx.zeros([next(rest) if s is None else s for s in shape], input.dtype)
    rows = mx.expand_dims(mx.arange(n), 1)
    place = rows + min(offset, 0)  # which element lies in this row
    on = (
        (mx.expand_dims(mx.arange(n), 0) - rows == offset)
        & (place >= 0)
        & (place < input.shape[-1])
    )
    padded = mx.take(
        input, mx.clip(mx.reshape(place, (-1,)), 0, max(input.shape[-1] - 1, 0)), axis=-1
    )
    square = mx.where(on, mx.expand_dims(padded, -1), mx.zeros((), input.dtype))
    order = [d for d in range(ndim) if d not in (a, b)]
    return mx.transpose(square, np.argsort([*order, a, b]).tolist())


@composite()
def diagflat(input, offset=0):
    """All elements as a diagonal matrix. torch.diagflat."""
    return diag_embed(input.reshape(-1), offset)


@composite()
def trace(input):
    """The sum of a matrix's diagonal. torch.trace."""
    if input.ndim != 2:
        raise RuntimeError("trace: expected a matrix, but got tensor with dim " + str(input.ndim))
    return input.diagonal().sum()


@composite(at=("Tensor",))
def fill_diagonal_(self, fill_value, wrap=False):
    """The diagonal set to a number. Tensor.fill_diagonal_."""
    if self.ndim < 2:
        raise RuntimeError("dimensions must larger than 1")
    n = min(self.shape)
    if self.ndim > 2 and n != max(self.shape):
        raise RuntimeError("all dimensions of input must be of equal length")
    if self.ndim == 2 and wrap and self.shape[0] > self.shape[1] + 1:
        width = self.shape[1]
        rows = mx.arange(self.shape[0])
        on = mx.expand_dims(rows % (width + 1), 1) == mx.expand_dims(mx.arange(width), 0)
    else:
        ranges = [mx.reshape(mx.arange(s), [-1 if d == i else 1 for d in range(self.ndim)])
                  for i, s in enumerate(self.shape)]  # fmt: skip
        on = ranges[0] < n
        for r in ranges[1:]:
            on = on & (r == ranges[0])
    return self.masked_fill_(from_array(on, self.device), fill_value)


# ---- order


@op(pointwise=True)
def flip(input, *dims, **kwargs):
    """The order of elements reversed along dims. torch.flip."""
    for d in wrap_dims(sizes(dims or (kwargs["dims"],)), input.ndim):
        if input.ndim == 0:
            break
        n = input.shape[d]
        input = mx.take(input, mx.arange(n - 1, -1, -1), axis=d)
    return mx.contiguous(input)


@composite()
def fliplr(input):
    """flip along the second dimension. torch.fliplr."""
    if input.ndim < 2:
        raise RuntimeError("Input must be >= 2-d.")
    return flip(input, 1)


@composite()
def flipud(input):
    """flip along the first dimension. torch.flipud."""
    if input.ndim < 1:
        raise RuntimeError("Input must be >= 1-d.")
    return flip(input, 0)


@op()
def roll(input, shifts, dims=None):
    """Elements shifted along dims, wrapping around; without dims, as one row. torch.roll."""
    shifts = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    dims = () if dims is None else (dims,) if isinstance(dims, int) else tuple(dims)
    if not dims:
        if len(shifts) != 1:
            raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:0")
        return mx.reshape(mx.roll(mx.reshape(input, (-1,)), shifts[0]), input.shape)
    if len(shifts) != len(dims):
        raise RuntimeError(
            f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}"
        )
    for s, d in zip(shifts, dims, strict=True):
        d = wrap_dim(d, input.ndim)
        input = mx.roll(input, s, axis=d) if input.size else input
    return input


@composite()
def rot90(input, k=1, dims=(0, 1)):
    """Rotated k quarter turns from the first towards the second of two dims. torch.rot90."""
    if len(dims) != 2:
        raise RuntimeError(f"expected total rotation dims == 2, but got dims = {len(dims)}")
    if input.ndim < 2:
        raise RuntimeError(f"expected total dims >= 2, but got total dims = {input.ndim}")
    a, b = dims
    if wrap_dim(a, input.ndim) == wrap_dim(b, input.ndim):
        raise RuntimeError(
            f"expected rotation dims to be different, but got dim0 = {a} and dim1 = {b}"
        )
    k %= 4
    if k == 0:
        return input.clone()
    if k == 2:
        return flip(input, a, b)
    return flip(input, b).transpose(a, b) if k == 1 else flip(input.transpose(a, b), b)


# ---- repetition


@composite()
@numpy_names
def repeat_interleave(input, repeats=None, dim=None, *, output_size=None):
    """Each element (or slice along dim) repeated. torch.repeat_interleave."""
    if repeats is None:
        return _repeat_positions(input)
    x = input.reshape(-1) if dim is None else input
    d = wrap_dim(0 if dim is None else dim, x.ndim)
    if isinstance(repeats, int):
        if repeats < 0:
            raise RuntimeError("Repeats must be non-negative")
        return _repeated(x, repeats, d)
    if repeats.numel() == 1:
        return _repeated(x, int(repeats.item()), d)
    if repeats.ndim != 1 or repeats.numel() != x.shape[d]:
        raise RuntimeError(
            "repeats must have the same size as input along dim, but got repeats.size(0) = "
            f"{repeats.numel()} and input.size({d}) = {x.shape[d]}"
        )
    return x.index_select(d, _repeat_positions(repeats))


def _repeated(x: Tensor, times: int, d: int) -> Tensor:
    shape = list(x.shape) or [1]
    spread = x.reshape(shape).unsqueeze(d + 1)
    spread = spread.expand(*shape[: d + 1], times, *shape[d + 1 :])
    return spread.clone(memory_format=None).reshape(*shape[:d], shape[d] * times, *shape[d + 1 :])


def _repeat_positions(repeats: Tensor) -> Tensor:
    counts = host(repeats._host())
    if (counts < 0).any():
        raise RuntimeError("repeats can not be negative")
    places = np.repeat(np.arange(counts.size, dtype=np.int64), counts)
    kind = repeats.dtype if repeats.dtype is dtypes.int32 else dtypes.int64
    return from_array(mx.array(places).astype(kind.mx), repeats.device)


@composite()
def tile(input, *dims, **kwargs):
    """Repeated along dims, missing leading ones counting as 1. torch.tile."""
    dims = sizes(dims or (kwargs.get("dims", ()),))
    if not dims and not input.ndim:
        return input.clone()
    return input.repeat(*(1,) * (input.ndim - len(dims)), *dims)


@composite(at=function)
def meshgrid(*tensors, indexing=None):
    """Coordinate grids of 1-D tensors; indexing "ij" (default) or "xy". torch.meshgrid."""
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        tensors = tuple(tensors[0])
    if indexing not in (None, "ij", "xy"):
        raise RuntimeError(
            f'torch.meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}'
        )
    if any(t.ndim > 1 for t in tensors):
        raise RuntimeError(
            "torch.meshgrid: Expected 0D or 1D tensor in the tensor list but got: "
            f"{next(t for t in tensors if t.ndim > 1)}"
        )
    swap = indexing == "xy" and len(tensors) > 1
    order = [1, 0, *range(2, len(tensors))] if swap else list(range(len(tensors)))
    shape = [tensors[i].numel() for i in order]
    grids = []
    for i, t in enumerate(tensors):
        axis = order.index(i)
        grids.append(t.reshape([-1 if d == axis else 1 for d in range(len(shape))]).expand(shape))
    return tuple(grids)


@composite(at=function)
def cartesian_prod(*tensors):
    """All tuples of elements of 1-D tensors, [n, tensors]. torch.cartesian_prod."""
    if len(tensors) == 1:
        return tensors[0]
    return stack([g.reshape(-1) for g in meshgrid(*tensors)], 1)


@composite(at=function)
def combinations(input, r=2, with_replacement=False):
    """All r-tuples of elements in order, [n, r]. torch.combinations."""
    if input.ndim != 1:
        raise RuntimeError("Expect a 1D vector, but got shape " + str(list(input.shape)))
    pick = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    index = np.array(list(pick(range(len(input)), r)), np.int64).reshape(-1, r)
    return input[from_array(mx.array(index), input.device)]


@composite(at=function)
def block_diag(*tensors):
    """Matrices along the diagonal of one. torch.block_diag."""
    blocks = [t.reshape(1, -1) if t.ndim < 2 else t for t in tensors]
    for i, t in enumerate(tensors):
        if t.ndim > 2:
            raise RuntimeError(
                f"torch.block_diag: Input tensors must have 2 or fewer dimensions. Input {i} has "
                f"{t.ndim} dimensions"
            )
    width, rows, left = sum(b.shape[1] for b in blocks), [], 0
    for b in blocks:
        before = b.new_zeros(b.shape[0], left)
        left += b.shape[1]
        rows.append(cat([before, b, b.new_zeros(b.shape[0], width - left)], 1))
    return cat(rows, 0)


# ---- stacking and splitting


def _atleast(name: str, shaped):
    @composite(name, at=function)
    def atleast(*tensors):
        if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
            tensors = tuple(tensors[0])
        results = tuple(shaped(t) for t in tensors)
        return results[0] if len(results) == 1 else results

    atleast.__doc__ = f"Tensors with dimensions of size 1 added as needed. torch.{name}."
    return shaped


def _to_3d(t: Tensor) -> Tensor:
    if t.ndim == 2:
        return t.unsqueeze(2)
    return t if t.ndim > 2 else t.reshape(1, -1, 1)


_to_1d = _atleast("atleast_1d", lambda t: t.reshape(1) if t.ndim == 0 else t)
_to_2d = _atleast("atleast_2d", lambda t: t if t.ndim > 1 else t.reshape(1, -1))
_atleast("atleast_3d", _to_3d)


@composite(at=function)
def hstack(tensors):
    """Joined along the second dimension (the first of vectors). torch.hstack."""
    tensors = [_to_1d(t) for t in tensors]
    return cat(tensors, 0 if tensors[0].ndim == 1 else 1)


@composite(at=function, aliases=("row_stack",))
def vstack(tensors):
    """Joined along the first dimension, vectors as rows. torch.vstack."""
    return cat([_to_2d(t) for t in tensors], 0)


@composite(at=function)
def dstack(tensors):
    """Joined along the third dimension. torch.dstack."""
    return cat([_to_3d(t) for t in tensors], 2)


@composite(at=function)
def column_stack(tensors):
    """Joined along the second dimension, vectors as columns. torch.column_stack."""
    return cat([t.reshape(-1, 1) if t.ndim < 2 else t for t in tensors], 1)


@view()
def tensor_split(input, indices_or_sections, dim=0):
    """Nearly equal parts, or parts between indices. torch.tensor_split."""
    d = wrap_dim(dim, input.ndim)
    if input.ndim == 0:
        raise RuntimeError(
            "tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims"
        )
    n, wanted = input.shape[d], indices_or_sections
    wanted = wanted.tolist() if isinstance(wanted, Tensor) else wanted
    if isinstance(wanted, int):
        if wanted <= 0:
            raise RuntimeError(f"number of sections must be larger than 0, got {wanted}")
        size, larger = divmod(n, wanted)
        ends = np.cumsum([size + (i < larger) for i in range(wanted)]).tolist()
        bounds = list(zip([0, *ends[:-1]], ends, strict=True))
    else:
        cuts = [slice(None, i).indices(n)[1] for i in wanted]
        bounds = list(zip([0, *cuts], [*cuts, n], strict=True))
    return tuple(sliced(input, d, a, max(a, b)) for a, b in bounds)


def _split_along(name: str, dim: int, least: int):
    @view(name)
    def split(input, indices_or_sections):
        if input.ndim < least:
            raise RuntimeError(
                f"torch.{name} requires a tensor with at least {least} "
                f"dimension{'s' * (least > 1)}, but "
                f"got a tensor with {input.ndim} dimensions!"
            )
        d = 0 if name == "hsplit" and input.ndim == 1 else dim
        n = indices_or_sections
        if isinstance(n, int) and (n == 0 or input.shape[d] % n):
            raise RuntimeError(
                f"torch.{name} attempted to split along dimension {d}, but the size of the "
                "dimension "
                f"{input.shape[d]} is not divisible by the split_size {n}!"
            )
        return tensor_split(input, n, d)

    split.__doc__ = f"Equal parts, or parts between indices, along a fixed dimension. torch.{name}."


_split_along("hsplit", 1, 1)
_split_along("vsplit", 0, 2)
_split_along("dsplit", 2, 3)


@view(aliases=("unsafe_split_with_sizes",))
def split_with_sizes(input, split_sizes, dim=0):
    """Parts of the given sizes. torch.split_with_sizes."""
    return input.split(list(split_sizes), dim)


@view()
def unsafe_split(tensor, split_size, dim=0):
    """torch.split. torch.unsafe_split."""
    return tensor.split(split_size, dim)


@view()
def unsafe_chunk(input, chunks, dim=0):
    """torch.chunk. torch.unsafe_chunk."""
    return input.chunk(chunks, dim)


@composite()
def take_along_dim(input, indices, dim=None):
    """Elements at `indices` along dim, both broadcast; without dim, of the flat tensor.

    torch.take_along_dim.
    """
    if indices.dtype is not dtypes.int64:
        raise RuntimeError(
            "torch.take_along_dim(): dtype of indices should be Long but got "
            f"{indices.dtype.torch_name}"
        )
    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    if input.ndim != indices.ndim:
        raise RuntimeError(
            "torch.take_along_dim(): input and indices should have the same number of "
            "dimensions, but "
            f"got {input.ndim} dimensions for input, and {indices.ndim} dimensions for indices"
        )
    d = wrap_dim(dim, input.ndim)
    ours, theirs = list(input.shape), list(indices.shape)
    ours[d], theirs[d] = 1, 1
    shape = list(layout.broadcast_shapes(ours, theirs))
    full, wanted = shape.copy(), shape.copy()
    full[d], wanted[d] = input.shape[d], indices.shape[d]
    if full[d]:
        indices = indices.remainder(full[d])  # torch counts round and round, here alone
    return input.expand(full).gather(d, indices.expand(wanted))


@composite(at=function)
def broadcast_shapes(*shapes):
    """The common shape of several. torch.broadcast_shapes."""
    return layout.Size(
        layout.broadcast_shapes(*((s,) if isinstance(s, int) else s for s in shapes))
    )


def _scattered(name: str, part):
    @composite(name)
    def scattered(input, src, *args, **kwargs):
        result = input.clone()
        place = part(result, *args, **kwargs)
        if place.shape != src.shape:
            raise RuntimeError(
                "expected src to have a size equal to the slice of self. "
                f"src size = {list(src.shape)}, slice size = {list(place.shape)}"
            )
        place.copy_(src)
        return result

    scattered.__doc__ = f"A copy of the input with src in the part that is named. torch.{name}."


def _slice(x: Tensor, dim=0, start=None, end=None, step=1) -> Tensor:
    d = wrap_dim(dim, x.ndim)
    return x[(slice(None),) * d + (slice(start, end, step),)]


_scattered("select_scatter", lambda x, dim, index: x.select(dim, index))
_scattered("slice_scatter", _slice)
_scattered("diagonal_scatter", lambda x, *a, **k: x.diagonal(*a, **k))


@composite(at=function)
def vander(x, N=None, increasing=False):
    """Powers of x as columns, the highest first. torch.vander."""
    n = len(x) if N is None else N
    powers = [x**i if i else x.new_ones(x.shape) for i in range(n)]
    return stack(powers if increasing else powers[::-1], 1) if n else x.new_zeros(len(x), 0)


@composite(at=("Tensor",))
def sum_to_size(self, *size):
    """Summed over the dimensions along which `size` broadcasts to this shape.

    Tensor.sum_to_size.
    """
    size = sizes(size)
    lead = self.ndim - len(size)
    if lead < 0 or any(n not in (1, m) for n, m in zip(size, self.shape[lead:], strict=True)):
        raise RuntimeError(
            f"size {{{list(size)}}} is not expandable to size {{{list(self.shape)}}}."
        )
    kept = [lead + d for d, n in enumerate(size) if n == 1 != self.shape[lead + d]]
    result = self.sum(list(range(lead))) if lead else self
    return result.sum([d - lead for d in kept], keepdim=True) if kept else result


@composite(at=function)
def unravel_index(indices, shape):
    """Coordinates of flat indices in a shape. torch.unravel_index."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    found = []
    for n in reversed(shape):
        found.append(indices % n)
        indices = indices // n
    return tuple(reversed(found))
