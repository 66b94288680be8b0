"""The gradient of a convolution with respect to its weights, channels last: for each tap, the
gradient of the result, transposed, times what the tap meets.
"""

from collections.abc import Sequence
from math import prod

import mlx.core as mx
import numpy as np

from . import conv3d as forward
from .conv3d import conv3d
from .convolving import NMSE, Pair, outputs, pairs, spread, whole_image, wide, window
from .kernel import Kernel
from .spec import Case, Cost, Spec


def reference(x, gradient, cache=None, *, kernel, stride, padding, upsample, dilation, groups):
    """The sum over pixels in float64."""
    image = whole_image(np, x, cache, padding, upsample).astype(np.float64)
    gradient = np.asarray(gradient, np.float64)
    out = np.zeros((gradient.shape[-1], *kernel, x.shape[-1] // groups))
    parts = [np.split(a, groups, axis) for a, axis in ((image, -1), (gradient, -1), (out, 0))]
    with np.errstate(invalid="ignore"):
        for met, weights, sums in zip(*parts, strict=True):
            for tap in np.ndindex(*kernel):
                where = window(tap, stride, dilation, gradient.shape[1:-1])
                sums[(slice(None), *tap)] = np.tensordot(
                    weights, met[where], ([0, 1, 2, 3], [0, 1, 2, 3])
                )
    return out


def fallback(x, gradient, cache=None, *, kernel, stride, padding, upsample, dilation, groups):
    """A matrix product a tap and group, in float32 for half types."""
    if 0 in x.shape or 0 in gradient.shape:
        return mx.zeros((gradient.shape[-1], *kernel, x.shape[-1] // groups), x.dtype)
    image = wide(whole_image(mx, x, cache, padding, upsample))
    images, gradients = mx.split(image, groups, -1), mx.split(wide(gradient), groups, -1)
    groups_of = [
        _by_taps(a, b, kernel, stride, dilation) for a, b in zip(images, gradients, strict=True)
    ]
    return mx.concatenate(groups_of, axis=0).astype(x.dtype)


def _by_taps(x, gradient, kernel, stride, dilation) -> mx.array:
    sizes, columns = gradient.shape[1:-1], gradient.shape[-1]
    left = gradient.reshape(-1, columns).T
    taps = []
    for tap in np.ndindex(*kernel):
        met = x[window(tap, stride, dilation, sizes)]
        taps.append(mx.matmul(left, met.reshape(-1, x.shape[-1])))
    return mx.stack(taps, axis=1).reshape(columns, *kernel, x.shape[-1])


def vjp(primals, cotangent, output, *, kernel, **numbers):
    """The gradient is linear in x and in the gradient of the result, each by a convolution."""
    x, gradient, cache = (*primals, None)[:3]
    # As a function of the weights, conv3d's vjp for the image is its transpose.
    inputs = (x, cotangent) if cache is None else (x, cotangent, None, cache)
    dx, _, *rest = forward.vjp(inputs, gradient, None, **numbers)
    result = conv3d(x, cotangent, cache=cache, **numbers)
    return (dx, result) if cache is None else (dx, result, rest[-1])


def conv_weights(
    x: mx.array,
    gradient: mx.array,
    cache: mx.array | None = None,
    *,
    kernel: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int | Pair] = 0,
    upsample: bool = False,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> mx.array:
    """The gradient of conv3d's weights [O, *kernel, C / groups], from that of its result.

    x [B, D, H, W, C], gradient [B, OD, OH, OW, O], cache [B, DC, H, W, C], all of one dtype:
    float32, float16, bfloat16, and float64 on the CPU; the numbers are conv3d's. Summed in
    float32, rounded once. Raises ValueError for shapes that do not fit, TypeError for mixed dtypes.
    """
    arrays = (x, gradient) if cache is None else (x, gradient, cache)
    if any(a.dtype != x.dtype for a in arrays) or not mx.issubdtype(x.dtype, mx.floating):
        dtypes = ", ".join(str(a.dtype) for a in arrays)
        raise TypeError(f"conv_weights takes one floating dtype, not {dtypes}")
    numbers = {
        "stride": spread(stride, 3),
        "padding": pairs(padding, 3),
        "upsample": upsample,
        "dilation": spread(dilation, 3),
    }
    kernel, cached = spread(kernel, 3), 0 if cache is None else cache.shape[1]
    if x.ndim != 5 or gradient.ndim != 5 or groups < 1 or x.shape[-1] % groups:
        raise ValueError(f"conv_weights: x {x.shape}, gradient {gradient.shape}, {groups} groups")
    weights = (gradient.shape[-1], *kernel, x.shape[-1] // groups)
    sizes = outputs(x.shape, weights, cached, **numbers)
    if gradient.shape[:-1] != (x.shape[0], *sizes) or gradient.shape[-1] % groups:
        raise ValueError(
            f"conv_weights: gradient {gradient.shape} does not fit results {(x.shape[0], *sizes)} "
            f"in {groups} groups"
        )
    return KERNEL(*arrays, kernel=kernel, **numbers, groups=groups)


def cost(x, gradient, cache=None, *, kernel, groups, **numbers) -> Cost:
    """Reads each array once, writes the result; a multiply and an add for each weight and pixel."""
    arrays = [x, gradient] if cache is None else [x, gradient, cache]
    out = gradient.shape[-1] * prod(kernel) * x.shape[-1] // groups
    moved = sum(a.nbytes for a in arrays) + out * x.itemsize
    return Cost(bytes=moved, flops=2 * prod(gradient.shape[:-1]) * out)


def _case(
    why: str,
    x: tuple[int, ...],
    columns: int,
    kernel: tuple[int, ...],
    cached: int = 0,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int | Pair] = 0,
    upsample: bool = False,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    **spec,
) -> Case:
    numbers = {
        "stride": spread(stride, 3),
        "padding": pairs(padding, 3),
        "upsample": upsample,
        "dilation": spread(dilation, 3),
    }
    sizes = outputs(x, (columns, *kernel, x[-1]), cached, **numbers)
    gradient = Spec((x[0], *sizes, columns), scale=prod((x[0], *sizes)) ** -0.5)
    arrays: dict[str, Spec | None] = {"x": Spec(x, **spec), "gradient": gradient}
    arrays |= {"cache": Spec((x[0], cached, *x[2:]), **spec)} if cached else {}
    return Case(arrays, why, {"kernel": kernel, **numbers, "groups": groups})


ODD = ((1, 2), (0, 1), (2, 0))

CASES = [
    _case("nothing even", (2, 3, 5, 6, 37), 19, (2, 3, 2), stride=2, padding=ODD),
    _case("the first of an image: three channels", (2, 1, 9, 8, 3), 40, (1, 3, 3), padding=1),
    _case("more pixels than a block", (3, 2, 15, 14, 34), 33, (1, 2, 1)),
    _case("cached frames", (1, 2, 4, 5, 24), 18, (3, 3, 3), 2, padding=((2, 0), 1, 1)),
    _case("doubled image", (1, 1, 4, 3, 12), 9, (1, 3, 3), padding=(0, 1, 1), upsample=True),
    _case("dilated", (1, 4, 7, 6, 20), 15, (2, 3, 2), padding=1, dilation=(2, 1, 3)),
    _case("groups", (2, 2, 5, 4, 24), 12, (2, 2, 3), padding=1, stride=(1, 2, 1), groups=3),
    _case("two channels, rows of taps share a strip", (2, 2, 19, 18, 2), 33, (2, 3, 3), padding=1),
    _case("narrow groups in pairs and more", (2, 1, 9, 8, 40), 60, (1, 3, 3), padding=1, groups=20),
    _case("a channel each", (2, 3, 5, 11, 21), 21, (2, 3, 3), padding=1, stride=2, groups=21),
    _case("one value", (1, 1, 1, 1, 1), 1, (1, 1, 1)),
    _case("NaN and infinity", (1, 2, 3, 4, 8), 5, (2, 2, 2), fill="specials"),
    _case("transposed in memory", (1, 2, 4, 5, 24), 9, (1, 2, 2), layout="transposed"),
]

KERNEL = Kernel(
    "conv_weights",
    function=conv_weights,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=None,
    cpu="conv_weights",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
