"""Pooling: windows as a strided view, reduced; adaptive pooling one dimension at a time."""

from __future__ import annotations

import functools
import itertools
import math

import mlx.core as mx

from ..core.op import TABLE, composite, op
from ._calling import collapse, is_float, kept, picked, torch_name, wide


def _sizes(value, n: int, name: str) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * n
    value = tuple(int(v) for v in value)
    if len(value) == 1:
        return value * n
    if len(value) != n:
        raise RuntimeError(f"{name} must either be a single int, or a tuple of {n} ints")
    return value


def _check(name: str, x: mx.array, n: int) -> None:
    if x.ndim not in (n + 1, n + 2):
        raise RuntimeError(
            f"{name}: Expected {n + 1}D or {n + 2}D (batch mode) tensor with optional 0 dim batch "
            f"size for input, but got: {list(x.shape)}"
        )
    if 0 in x.shape[-n - 1 :]:
        raise RuntimeError(
            f"{name}: Expected {n + 1}D or {n + 2}D (batch mode) tensor with optional 0 dim batch "
            f"size for input, but got: {list(x.shape)}"
        )


class Geometry:
    """Sizes of one pooling: kernel, stride, padding, dilation and the outputs that they give."""

    def __init__(self, x, n, kernel, stride, padding, dilation, ceil_mode):
        self.n = n
        self.kernel = _sizes(kernel, n, "kernel_size")
        self.stride = _sizes(stride, n, "stride") if _given(stride) else self.kernel
        self.padding = _sizes(padding, n, "padding")
        self.dilation = _sizes(dilation, n, "dilation")
        self.spatial = x.shape[-n:]
        if any(k <= 0 for k in self.kernel):
            raise RuntimeError("kernel size should be greater than zero")
        if any(s <= 0 for s in self.stride):
            raise RuntimeError("stride should not be zero")
        if any(d <= 0 for d in self.dilation):
            raise RuntimeError("dilation should be greater than zero")
        for p, k, d in zip(self.padding, self.kernel, self.dilation, strict=True):
            if p < 0:
                raise RuntimeError(f"pad must be non-negative, but got pad: {p}")
            if p > (d * (k - 1) + 1) // 2:
                raise RuntimeError(
                    "pad should be at most half of effective kernel size, but got "
                    f"pad={p}, kernel_size={k} and dilation={d}"
                )
        self.outputs = tuple(self._output(i, ceil_mode) for i in range(n))
        if any(o <= 0 for o in self.outputs):
            raise RuntimeError(
                f"Given input size: {_shown(x, n, self.spatial)}. Calculated output size: "
                f"{_shown(x, n, self.outputs)}. Output size is too small"
            )

    def _output(self, i: int, ceil_mode: bool) -> int:
        size, k, s = self.spatial[i], self.kernel[i], self.stride[i]
        p, d = self.padding[i], self.dilation[i]
        room = size + 2 * p - d * (k - 1) - 1
        outputs = (room + (s - 1 if ceil_mode else 0)) // s + 1
        # A window that starts beyond the input and its left padding does not count.
        return outputs - 1 if ceil_mode and (outputs - 1) * s >= size + p else outputs

    def _padded(self, x: mx.array, fill) -> mx.array:
        widths = []
        for i in range(self.n):
            reach = (self.outputs[i] - 1) * self.stride[i] + self._span(i)
            widths.append((self.padding[i], max(0, reach - self.padding[i] - self.spatial[i])))
        if not any(map(any, widths)):
            return x
        lead = [(0, 0)] * (x.ndim - self.n)
        return mx.pad(x, lead + widths, constant_values=mx.array(fill, x.dtype))

    def _span(self, i: int) -> int:
        return self.dilation[i] * (self.kernel[i] - 1) + 1

    def _taps(self, x: mx.array, first: int, i: int):
        """The elements that each tap of spatial dimension i (axis first + i) meets, one array a
        tap.
        """
        lead = (slice(None),) * (first + i)
        for tap in range(self.kernel[i]):
            start = tap * self.dilation[i]
            stop = start + (self.outputs[i] - 1) * self.stride[i] + 1
            yield x[(*lead, slice(start, stop, self.stride[i]))]

    def reduced(self, x: mx.array, fill, combine) -> mx.array:
        """Each window of x [..., *spatial] combined, one dimension at a time; `fill` is outside."""
        # Not a reduction of mx.as_strided windows: mx.max mixes rows up when they overlap with a
        # dilation (mlx 0.32.4 on the CPU: 1x3x9, kernel 3, dilation 2).
        return mx.contiguous(self.stages(x, fill, combine)[-1])

    def stages(self, x: mx.array, fill, combine) -> list[mx.array]:
        """x, padded, and what it becomes as its dimensions are combined, the last one first."""
        stages = [self._padded(x, fill)]
        for i in reversed(range(self.n)):
            x = stages[-1]
            stages.append(functools.reduce(combine, self._taps(x, x.ndim - self.n, i)))
        return stages

    def cropped(self, x: mx.array) -> mx.array:
        """x without its padding."""
        each = zip(self.padding, self.spatial, strict=True)
        return x[(..., *(slice(p, p + size) for p, size in each))]

    def to_maxima(self, x: mx.array, g: mx.array, i: int) -> mx.array:
        """The gradient g of the maxima along dimension i, put where they are in x, padded: the
        first maximum of a window gets it, or its last NaN.
        """
        axis = x.ndim - self.n + i
        taps = [mx.contiguous(tap) for tap in self._taps(x, x.ndim - self.n, i)]
        before = list(itertools.accumulate(taps, mx.maximum))
        parts = []
        for k in reversed(range(1, len(taps))):
            taken = (taps[k] > before[k - 1]) | mx.isnan(taps[k])
            parts.append(kept(taken, g))
            g = kept(mx.logical_not(taken), g)
        return self._placed([g, *reversed(parts)], x, axis, i)

    def _placed(self, parts: list[mx.array], x: mx.array, axis: int, i: int) -> mx.array:
        """Each tap's part where the tap lies along dimension i of an array like x, added up.

        A tap meets every stride-th element: one array for each remainder, then all of them woven.
        """
        stride = self.stride[i]
        steps = [divmod(k * self.dilation[i], stride) for k in range(len(parts))]
        longest = self.outputs[i] + max(q for q, _ in steps)
        planes = [mx.zeros((), parts[0].dtype)] * stride
        for part, (shift, remainder) in zip(parts, steps, strict=True):
            planes[remainder] = planes[remainder] + _fitted(part, axis, shift, longest)
        shape = (*x.shape[:axis], longest, *x.shape[axis + 1 :])
        woven = mx.stack([mx.broadcast_to(p, shape) for p in planes], axis=axis + 1)
        return _fitted(mx.flatten(woven, axis, axis + 1), axis, 0, x.shape[axis])

    def windows(self, x: mx.array, fill) -> mx.array:
        """x [..., *spatial] as [..., *outputs, taps]; positions outside hold `fill`."""
        first = x.ndim - self.n
        x = self._padded(x, fill)
        for i in range(self.n):
            x = mx.stack(list(self._taps(x, first, i)), axis=-1)
        return x.reshape(*x.shape[: first + self.n], math.prod(x.shape[first + self.n :]))


def _fitted(x: mx.array, axis: int, before: int, size: int) -> mx.array:
    """x with `before` zeros put first along an axis, then cut or filled up to `size`."""
    lead, missing = (slice(None),) * axis, size - before - x.shape[axis]
    if missing < 0:
        x, missing = x[(*lead, slice(0, size - before))], 0
    if not before and not missing:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, missing)
    return mx.pad(x, widths)


def _given(stride) -> bool:
    return stride is not None and not (not isinstance(stride, int) and len(stride) == 0)


def _shown(x, n: int, sizes) -> str:
    return "(" + "x".join(map(str, (x.shape[-n - 1], *sizes))) + ")"


def _lowest(x: mx.array):
    if is_float(x):
        return -math.inf
    return False if x.dtype == mx.bool_ else mx.iinfo(x.dtype).min


def _first_maximum(flat: mx.array) -> mx.array:
    """Index of the maximum of the last axis: the last NaN that a scan meets, else the first
    maximum.
    """
    if flat.size == 0:
        return mx.zeros(flat.shape[:-1], mx.uint32)
    which = mx.argmax(flat, axis=-1)
    if not is_float(flat):
        return which
    nan = mx.isnan(flat)
    last_nan = flat.shape[-1] - 1 - mx.argmax(nan[..., ::-1], axis=-1)
    return mx.where(collapse(mx.any, nan, -1), last_nan, which)


def _max_pool(x, geometry: Geometry, indices: bool):
    if not indices:
        return geometry.reduced(x, _lowest(x), mx.maximum)
    flat = geometry.windows(x, _lowest(x))
    which = _first_maximum(flat)
    values = picked(flat, which[..., None], axis=-1)[..., 0]
    return values, _flat_positions(which.astype(mx.int64), geometry)


def max_pool_gradient(n: int, g, input, *numbers):
    """The gradient of max_pool{n}d by its input; numbers: kernel size, stride and so on."""
    geometry = Geometry(input, n, *numbers)
    stages = geometry.stages(input, -math.inf, mx.maximum)
    for i in range(n):  # the last dimension was combined first
        g = geometry.to_maxima(stages[-2 - i], g, i)
    return geometry.cropped(g)


def _flat_positions(which: mx.array, geometry: Geometry) -> mx.array:
    """Which tap of each window, as an index into the input's flattened spatial dimensions."""
    n, position = geometry.n, mx.zeros((), mx.int64)
    for i in range(n):
        below = math.prod(geometry.kernel[i + 1 :])
        tap = (which // below) % geometry.kernel[i]
        start = mx.arange(geometry.outputs[i], dtype=mx.int64) * geometry.stride[i]
        start = start.reshape(-1, *(1,) * (n - 1 - i)) - geometry.padding[i]
        position = position * geometry.spatial[i] + (start + tap * geometry.dilation[i])
    return position


def _avg_pool(x, geometry: Geometry, include_pad: bool, divisor):
    total = geometry.reduced(wide(x), 0, mx.add)
    if divisor is None:
        divisor = _window_sizes(geometry, include_pad)
    if is_float(x):
        return (total / divisor).astype(x.dtype)
    return (total // divisor).astype(x.dtype)


def _window_sizes(geometry: Geometry, include_pad: bool):
    """Elements that each window's sum is divided by, [*outputs]."""
    n, sizes = geometry.n, mx.ones((), mx.float32)
    for i in range(n):
        size, p = geometry.spatial[i], geometry.padding[i]
        start = mx.arange(geometry.outputs[i]) * geometry.stride[i] - p
        # Beyond the right padding there is nothing to count, even with include_pad.
        end = mx.minimum(start + geometry.kernel[i], size + p)
        if not include_pad:
            start, end = mx.maximum(start, 0), mx.minimum(end, size)
        sizes = sizes[..., None] * (end - start)
    return sizes


def _register(n: int) -> None:
    max_name, avg_name = f"max_pool{n}d", f"avg_pool{n}d"

    def geometry(name, x, kernel_size, stride, padding, dilation, ceil_mode):
        _check(name, x, n)
        return Geometry(x, n, kernel_size, stride, padding, dilation, ceil_mode)

    @op(f"{max_name}_with_indices", at=("F",) if n > 1 else ("F", "torch"))
    def with_indices(
        input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False,
        return_indices=False,
    ):  # fmt: skip
        shape = geometry(max_name, input, kernel_size, stride, padding, dilation, ceil_mode)
        return _max_pool(input, shape, indices=True)

    @op(f"_{max_name}", at=())
    def values(input, kernel_size, stride, padding, dilation, ceil_mode):
        shape = geometry(max_name, input, kernel_size, stride, padding, dilation, ceil_mode)
        return _max_pool(input, shape, indices=False)

    @composite(max_name, at=("torch",))
    def max_pool(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False):
        return values(input, kernel_size, stride, padding, dilation, ceil_mode)

    def averaged(
        input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True,
        divisor_override=None,
    ):  # fmt: skip
        if divisor_override == 0:
            raise RuntimeError("divisor must be not zero")
        if not is_float(input) and input.dtype != mx.int64:
            raise NotImplementedError(
                f"\"{avg_name}_out_frame\" not implemented for '{torch_name(input)}'"
            )
        shape = geometry(avg_name, input, kernel_size, stride, padding, 1, ceil_mode)
        return _avg_pool(input, shape, count_include_pad, divisor_override)

    averaged.__doc__ = f"Mean over windows of {n} dimensions. torch.nn.functional.{avg_name}."
    max_pool.__doc__ = f"Maximum over windows of {n} dimensions. torch.{max_name}."
    with_indices.__doc__ = f"{max_name}, and the position of each maximum in the flattened input."
    if n == 1:
        op(avg_name, at=("F", "torch"))(_without_divisor(averaged))
    else:
        op(avg_name, at=("F",))(averaged)


def _without_divisor(averaged):
    def avg_pool1d(
        input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True
    ):
        return averaged(input, kernel_size, stride, padding, ceil_mode, count_include_pad)

    avg_pool1d.__doc__ = averaged.__doc__
    return avg_pool1d


for _n in (1, 2, 3):
    _register(_n)


def _regions(size: int, outputs: int) -> list[tuple[int, int]]:
    return [(i * size // outputs, -(-(i + 1) * size // outputs)) for i in range(outputs)]


def _along(x: mx.array, axis: int, outputs: int, reduce):
    """`reduce` over each adaptive region of one axis: the pieces joined along it."""
    size = x.shape[axis]
    if outputs == 0:
        return x[(slice(None),) * axis + (slice(0, 0),)]
    if size % outputs == 0:
        shape = (*x.shape[:axis], outputs, size // outputs, *x.shape[axis + 1 :])
        return reduce(x.reshape(shape), axis + 1)
    lead = (slice(None),) * axis
    pieces = [reduce(x[(*lead, slice(a, b))], axis) for a, b in _regions(size, outputs)]
    return mx.stack(pieces, axis=axis)


def _adaptive(n: int, x: mx.array, output_size) -> tuple[int, ...]:
    given = (output_size,) * n if isinstance(output_size, (int, type(None))) else output_size
    if len(given) != n:
        raise RuntimeError(f"adaptive pooling: output_size must be {n} elements")
    return tuple(s if o is None else int(o) for o, s in zip(given, x.shape[-n:], strict=True))


def _region_max(x: mx.array, n: int, region, spatial):
    """Maximum of one region and its position in the flattened spatial dimensions."""
    part = x[(..., *(slice(a, b) for a, b in region))]
    flat = part.reshape(*part.shape[:-n], math.prod(part.shape[-n:]))
    which = _first_maximum(flat)
    position, left = mx.zeros((), mx.int64), which.astype(mx.int64)
    taps = []
    for a, b in reversed(region):
        taps.append(left % (b - a) + a)
        left = left // (b - a)
    for tap, size in zip(reversed(taps), spatial, strict=True):
        position = position * size + tap
    return picked(flat, which[..., None], axis=-1)[..., 0], position


@op("_adaptive_avg_pool", at=())
def _adaptive_avg_pool(input, n, output_size):
    outputs = _adaptive(n, input, output_size)
    x = wide(input)
    for i, size in enumerate(outputs):
        x = _along(x, x.ndim - n + i, size, functools.partial(collapse, mx.mean))
    return x.astype(input.dtype)


@op("_adaptive_max_pool", at=())
def _adaptive_max_pool(input, n, output_size):
    """(maxima, their positions in the flattened spatial dimensions)."""
    outputs = _adaptive(n, input, output_size)
    spatial, lead = input.shape[-n:], input.shape[:-n]
    regions = itertools.product(*(_regions(s, o) for s, o in zip(spatial, outputs, strict=True)))
    found = [_region_max(input, n, region, spatial) for region in regions]
    if not found:
        return mx.zeros((*lead, *outputs), input.dtype), mx.zeros((*lead, *outputs), mx.int64)
    values, positions = zip(*found, strict=True)
    shape = (*lead, *outputs)
    return mx.stack(values, axis=-1).reshape(shape), mx.stack(positions, axis=-1).reshape(shape)


def _check_adaptive(name: str, n: int, input) -> None:
    if input.ndim not in (n + 1, n + 2):
        raise RuntimeError(
            f"{name}(): Expected {n + 1}D or {n + 2}D tensor, but got {list(input.shape)}"
        )
    # torch lets averages over one or two dimensions be of no channels.
    needed = input.shape[-n:] if "avg" in name and n < 3 else input.shape[1:]
    if 0 in needed:
        raise RuntimeError(
            f"{name}(): Expected input to have non-zero size for non-batch dimensions, but input "
            "has "
            f"sizes {list(input.shape)}"
        )


def _register_adaptive(n: int) -> None:
    avg_name, max_name = f"adaptive_avg_pool{n}d", f"adaptive_max_pool{n}d"
    places = ("F", "torch") if n == 1 else ("F",)

    @composite(avg_name, at=places)
    def average(input, output_size):
        _check_adaptive(avg_name, n, input)
        return _adaptive_avg_pool(input, n, output_size)

    @composite(f"{max_name}_with_indices", at=("F",))
    def maxima(input, output_size, return_indices=True):
        _check_adaptive(max_name, n, input)
        return _adaptive_max_pool(input, n, output_size)

    average.__doc__ = f"Mean over regions that give output_size. torch.nn.functional.{avg_name}."
    if n == 1:
        composite(max_name, at=("torch",))(maxima)
    maxima.__doc__ = f"Maximum over regions and its position. torch.nn.functional.{max_name}."


for _n in (1, 2, 3):
    _register_adaptive(_n)


@composite(at=("F",))
def lp_pool1d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """The norm of each window. torch.nn.functional.lp_pool1d."""
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


@composite(at=("F",))
def lp_pool2d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """The norm of each window. torch.nn.functional.lp_pool2d."""
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


@composite(at=("F",))
def lp_pool3d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """The norm of each window. torch.nn.functional.lp_pool3d."""
    return _lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode)


def _lp_pool(n: int, input, norm_type, kernel_size, stride, ceil_mode):
    count = math.prod(_sizes(kernel_size, n, "kernel_size"))
    average = TABLE[f"avg_pool{n}d"].call
    mean = average(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    magnitude = (mean.sign() * mean.abs().relu()) * count
    return magnitude.pow(1.0 / norm_type)


@op("_max_unpool", at=())
def max_unpool(input, indices, n, sizes):
    """input [..., *spatial] put at indices of zeros [..., *sizes]."""
    lead, area = input.shape[:-n], math.prod(sizes)
    if input.shape != indices.shape:
        raise RuntimeError(
            "Expected shape of indices to be same as that of the input tensor "
            f"({list(input.shape)}) "
            f"but got indices tensor with shape: {list(indices.shape)}"
        )
    if input.size == 0:
        return mx.zeros((*lead, *sizes), input.dtype)
    where = indices.reshape(math.prod(lead), -1)
    outside = mx.any((where < 0) | (where >= area))
    if mx.default_device().type == mx.cpu and outside.item():
        raise RuntimeError(f"Found an invalid max index (output volumes are of size {list(sizes)})")
    flat = mx.zeros((where.shape[0], area), input.dtype)
    result = mx.put_along_axis(flat, where, input.reshape(where.shape), axis=1)
    return result.reshape(*lead, *sizes)


def unpooled_sizes(spatial, kernel, stride, padding, output_size) -> tuple[int, ...]:
    """Sizes whose pooling gives `spatial`: the smallest, or output_size if that is possible."""
    n = len(spatial)
    settings = zip(
        spatial, _sizes(kernel, n, "kernel_size"), _sizes(stride, n, "stride"),
        _sizes(padding, n, "padding"), strict=True,
    )  # fmt: skip
    smallest = tuple((m - 1) * s + k - 2 * p for m, k, s, p in settings)
    if output_size is None:
        return smallest
    wanted = tuple(output_size)[-n:]
    steps = _sizes(stride, n, "stride")
    if any(not d - s < w < d + s for d, s, w in zip(smallest, steps, wanted, strict=True)):
        raise ValueError(
            f"invalid output_size {wanted} (smallest is {smallest}, steps are {steps})"
        )
    return wanted
