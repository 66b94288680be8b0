"""Transposed convolution over frames, rows and columns, channels last: each value of x adds its
multiple of the weights to the result. It is the gradient of conv3d with respect to its image.
"""

from collections.abc import Sequence
from itertools import product
from math import prod

import mlx.core as mx
import numpy as np

from .conv3d import conv3d
from .conv_weights import conv_weights
from .convolving import NMSE, Pair, bias_gradient, pairs, spread, wide, window
from .kernel import Kernel
from .spec import Case, Cost, Spec


def full(x, w, stride, dilation) -> tuple[int, ...]:
    """Lengths of the result before anything is left out; x, w: shapes."""
    each = zip(x[1:-1], w[1:-1], stride, dilation, strict=True)
    return tuple((n - 1) * s + d * (k - 1) + 1 for n, k, s, d in each)


def outputs(x, w, stride, padding, dilation) -> tuple[int, ...]:
    """Lengths of the result; x, w: shapes."""
    sizes = full(x, w, stride, dilation)
    return tuple(n - sum(pair) for n, pair in zip(sizes, padding, strict=True))


def _cropped(pad, total, padding, sizes):
    """Without what padding leaves out; zeros where it is negative, by NumPy's or MLX's `pad`."""
    more = [(max(0, -front), max(0, -back)) for front, back in padding]
    total = pad(total, [(0, 0), *more, (0, 0)])
    starts = (max(0, front) for front, _ in padding)
    return total[(slice(None), *(slice(a, a + n) for a, n in zip(starts, sizes, strict=True)))]


def reference(x, w, bias=None, *, stride, padding, dilation, groups):
    """The sum over taps in float64."""
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    total = np.zeros((x.shape[0], *full(x.shape, w.shape, stride, dilation), groups * w.shape[-1]))
    parts = [np.split(a, groups, axis) for a, axis in ((x, -1), (w, 0), (total, -1))]
    with np.errstate(invalid="ignore"):
        for image, weights, sums in zip(*parts, strict=True):
            for tap in np.ndindex(w.shape[1:-1]):
                where = window(tap, stride, dilation, x.shape[1:-1])
                sums[where] += image @ weights[(slice(None), *tap)]
    out = _cropped(np.pad, total, padding, outputs(x.shape, w.shape, stride, padding, dilation))
    return out if bias is None else out + np.asarray(bias, np.float64)


def fallback(x, w, bias=None, *, stride, padding, dilation, groups) -> mx.array:
    """A matrix product a tap and group, in float32 for half types; MLX's own on a GPU."""
    sizes = full(x.shape, w.shape, stride, dilation)
    image, weights = wide(x), wide(w)
    if 0 in x.shape or 0 in w.shape:
        total = mx.zeros((x.shape[0], *sizes, groups * w.shape[-1]), image.dtype)
    elif mx.default_device().type == mx.gpu:
        parts = zip(mx.split(image, groups, -1), mx.split(weights, groups, 0), strict=True)
        edge = [d * (k - 1) for d, k in zip(dilation, w.shape[1:-1], strict=True)]
        turned = ((a, b.transpose(4, 1, 2, 3, 0)) for a, b in parts)
        each = [mx.conv_general(a, b, 1, edge, dilation, stride, flip=True) for a, b in turned]
        total = mx.concatenate(each, axis=-1)
    else:
        total = _by_taps(image, weights, stride, dilation, groups, sizes)
    result = _cropped(mx.pad, total, padding, outputs(x.shape, w.shape, stride, padding, dilation))
    return (result if bias is None else result + wide(bias)).astype(x.dtype)


def _by_taps(x, w, stride, dilation, groups, sizes) -> mx.array:
    batch, (depth, width) = x.shape[0], (x.shape[-1] // groups, w.shape[-1])
    rows = x.reshape(-1, groups, depth).swapaxes(0, 1)  # [G, rows, C / G]
    w = w.reshape(groups, depth, *w.shape[1:])
    total = mx.zeros((batch, *sizes, groups * width), x.dtype)
    for tap in product(*map(range, w.shape[2:-1])):
        part = mx.matmul(rows, w[(slice(None), slice(None), *tap)])  # [G, rows, O / G]
        part = part.swapaxes(0, 1).reshape(*x.shape[:-1], groups * width)
        total = total.at[window(tap, stride, dilation, x.shape[1:-1])].add(part)
    return total


def vjp(primals, cotangent, output, *, stride, padding, dilation, groups):
    """For x and w what a convolution of the cotangent with w has for its image and its weights."""
    x, w = primals[:2]
    # The zeros beyond the last product have no part in it.
    ends = (n + min(0, b) for n, (_, b) in zip(cotangent.shape[1:-1], padding, strict=True))
    g = cotangent[(slice(None), *map(slice, ends))]
    numbers = {"stride": stride, "dilation": dilation, "groups": groups}
    numbers["padding"] = tuple((front, max(0, back)) for front, back in padding)
    gradients = (conv3d(g, w, **numbers), conv_weights(g, x, kernel=w.shape[1:-1], **numbers))
    return gradients if len(primals) == 2 else (*gradients, bias_gradient(cotangent))


def conv_transpose(
    x: mx.array,
    w: mx.array,
    bias: mx.array | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int | Pair] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> mx.array:
    """Transposed convolution over frames, rows and columns, summed in float32, rounded once.

    x [B, D, H, W, C], w [C, KD, KH, KW, O / groups], bias [O], all of one dtype: float32, float16,
    bfloat16, and float64 on the CPU. `stride` (between the places where x lands) and `dilation`
    (between taps) are a number or one for each of D, H and W; `padding` is how many results are
    left out at both ends: a number or, for each axis, a number or (before, after), where a negative
    `after` adds zeros (torch's output_padding). Returns [B, OD, OH, OW, O] with OD = (D - 1) *
    stride + dilation * (KD - 1) + 1 - before - after. Raises ValueError for shapes that do not
    fit, TypeError for mixed dtypes.
    """
    steps, pads, gaps = spread(stride, 3), pairs(padding, 3), spread(dilation, 3)
    arrays = (x, w) if bias is None else (x, w, bias)
    if any(a.dtype != x.dtype for a in arrays) or not mx.issubdtype(x.dtype, mx.floating):
        dtypes = ", ".join(str(a.dtype) for a in arrays)
        raise TypeError(f"conv_transpose takes one floating dtype, not {dtypes}")
    fits = x.ndim == w.ndim == 5 and x.shape[-1] == w.shape[0] and 0 not in w.shape[1:4]
    if not fits or groups < 1 or w.shape[0] % groups or 0 in x.shape[1:4]:
        raise ValueError(
            f"conv_transpose: x {x.shape} as [B, D, H, W, C] does not fit weights {w.shape} as "
            f"[C, KD, KH, KW, O / {groups}]"
        )
    if bias is not None and bias.shape != (groups * w.shape[-1],):
        raise ValueError(f"conv_transpose: bias {bias.shape} does not fit weights {w.shape}")
    sizes = outputs(x.shape, w.shape, steps, pads, gaps)
    if min(*steps, *gaps, *sizes) < 1 or min(front for front, _ in pads) < 0:
        raise ValueError(
            f"conv_transpose: stride {steps}, padding {pads}, dilation {gaps}, results {sizes}"
        )
    return KERNEL(*arrays, stride=steps, padding=pads, dilation=gaps, groups=groups)


def cost(x, w, bias=None, *, stride, padding, dilation, groups) -> Cost:
    """Reads each array once, writes the result; a multiply and an add for each value and weight."""
    arrays = [x, w] if bias is None else [x, w, bias]
    out = prod(outputs(x.shape, w.shape, stride, padding, dilation)) * groups * w.shape[-1]
    moved = sum(a.nbytes for a in arrays) + x.shape[0] * out * x.itemsize
    return Cost(bytes=moved, flops=2 * x.size * prod(w.shape[1:]))


def _case(
    why: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int | Pair] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    bias: bool = True,
    **spec,
) -> Case:
    """x [B, D, H, W, C], w [KD, KH, KW, O / groups]."""
    arrays = {"x": Spec(x, **spec), "w": Spec((x[-1], *w), scale=(x[-1] // groups) ** -0.5)}
    arrays |= {"bias": Spec((groups * w[-1],))} if bias else {}
    numbers = {
        "stride": spread(stride, 3),
        "padding": pairs(padding, 3),
        "dilation": spread(dilation, 3),
        "groups": groups,
    }
    return Case(arrays, why, numbers)


CASES = [
    _case("a decoder's upsampler", (1, 1, 7, 6, 40), (1, 4, 4, 20), (1, 2, 2), (0, 1, 1)),
    _case("a patch each", (2, 1, 5, 4, 33), (1, 2, 2, 17), stride=(1, 2, 2), bias=False),
    _case("nothing even", (2, 3, 4, 5, 17), (2, 3, 4, 19), (2, 1, 3), ((1, 0), (0, 2), (2, -1))),
    _case("dilation and stride share a factor", (1, 2, 5, 4, 6), (3, 3, 2, 7), 4, 1, (2, 6, 4)),
    _case("results that nothing reaches", (1, 2, 2, 3, 5), (1, 1, 1, 4), 3, ((0, -2), 0, 0)),
    _case("groups", (1, 2, 4, 5, 12), (2, 3, 2, 10), (1, 2, 1), 1, 1, groups=3),
    _case("a channel each", (1, 2, 5, 9, 21), (2, 3, 3, 1), (1, 2, 2), 1, 1, groups=21),
    _case("one value", (1, 1, 1, 1, 1), (1, 1, 1, 1)),
    _case("NaN and infinity", (1, 2, 3, 4, 8), (2, 2, 2, 5), 2, fill="specials", bias=False),
    _case("unaligned", (2, 1, 4, 5, 24), (1, 2, 2, 9), layout="offset"),
    _case("transposed in memory", (1, 2, 4, 5, 24), (1, 2, 2, 9), layout="transposed"),
]

KERNEL = Kernel(
    "conv_transpose",
    function=conv_transpose,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=None,
    cpu="conv_transpose",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
