"""Convolution over rows and columns, channels last: conv3d's program with one frame."""

from collections.abc import Sequence
from math import prod
from typing import Any

import mlx.core as mx

from . import conv3d
from .conv3d import Convolution
from .convolving import NMSE, Pair, check, outputs, pairs, spread
from .kernel import Kernel
from .spec import Case, Cost, Metal, Spec

# Strides and padding of the one frame.
ONE, NONE = (1,), ((0, 0),)


def _framed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], 1, *shape[1:])


def problem(
    x, w, bias=None, *, stride, padding, upsample=False, dilation=(1, 1), groups=1
) -> Convolution:
    """Describe the convolution; the shapes fit."""
    height, width = outputs(x.shape, w.shape, 0, stride, padding, upsample, dilation)
    (top, _), (left, _) = padding
    shape = (x.shape[0], height, width, w.shape[0])
    return Convolution(
        x=_framed(x.shape),
        w=_framed(w.shape),
        cached=0,
        bias=bias is not None,
        stride=ONE + stride,
        before=(0, top, left),
        out=_framed(shape),
        shape=shape,
        upsample=upsample,
        dense=groups == 1 and set(dilation) == {1},
        dtype=x.dtype,
    )


def _numbers(stride, padding, upsample=False, dilation=(1, 1), groups=1) -> dict[str, Any]:
    """conv3d's for one frame."""
    return {
        "stride": ONE + stride,
        "padding": NONE + padding,
        "upsample": upsample,
        "dilation": ONE + dilation,
        "groups": groups,
    }


def reference(x, w, bias=None, **numbers):
    """The sum over taps in float64."""
    return conv3d.reference(x[:, None], w[:, None], bias, None, **_numbers(**numbers))[:, 0]


def fallback(x, w, bias=None, **numbers) -> mx.array:
    """As conv3d's. MLX's own conv2d may return zeros when its Winograd space overflows (#3979)."""
    return conv3d.fallback(x[:, None], w[:, None], bias, **_numbers(**numbers))[:, 0]


def vjp(primals, cotangent, output, **numbers):
    """As conv3d's."""
    x, w, *bias = primals
    framed = (x[:, None], w[:, None], *bias)
    dx, dw, *rest = conv3d.vjp(framed, cotangent[:, None], None, **_numbers(**numbers))
    return (dx[:, 0], dw[:, 0], *rest)


def conv2d(
    x: mx.array,
    w: mx.array,
    bias: mx.array | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int | Pair] = 0,
    upsample: bool = False,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> mx.array:
    """Convolution (torch's: correlation) over rows and columns, summed in float32, rounded once.

    x [B, H, W, C], w [O, KH, KW, C / groups], bias [O], all of one dtype: float32, float16,
    bfloat16, and float64 on the CPU. `stride` and `dilation` (between taps) are a number or one for
    each of H and W; `padding`, with zeros, a number or, for each, a number or (before, after).
    `upsample` doubles rows and columns first, as nearest does. Returns [B, OH, OW, O]. Raises
    ValueError for shapes that do not fit, TypeError for mixed dtypes.
    """
    if x.ndim != 4 or w.ndim != 4:
        raise ValueError(f"conv2d takes 4-d arrays, not x {x.shape}, weights {w.shape}")
    steps, pads, gaps = spread(stride, 2), pairs(padding, 2), spread(dilation, 2)
    check("conv2d", x, w, bias, None, steps, pads, upsample, gaps, groups)
    arrays = (x, w) if bias is None else (x, w, bias)
    numbers = {"stride": steps, "padding": pads, "upsample": upsample}
    return KERNEL(*arrays, **numbers, dilation=gaps, groups=groups)


def conv2d_in_order(x, w, bias=None, *, stride=1, padding=0, upsample=False, **rest):
    """conv2d as cases call it."""
    return conv2d(x, w, bias, stride, padding, upsample, **rest)


def cost(x, w, bias=None, **keywords) -> Cost:
    """As conv3d.least."""
    conv = problem(x, w, bias, **keywords)
    return conv3d.least(conv, [x] if bias is None else [x, bias])


def _case(
    why: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int | Pair] = 0,
    bias: bool = True,
    upsample: bool = False,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    **spec,
) -> Case:
    """x [B, H, W, C], w [O, KH, KW]: of about 1 / sqrt(K), so that outputs are about one."""
    channels = x[-1] // groups
    weights = Spec((*w, channels), scale=prod((*w[1:], channels)) ** -0.5)
    arrays = {"x": Spec(x, **spec), "w": weights, **({"bias": Spec(w[:1])} if bias else {})}
    numbers: dict[str, object] = {"stride": spread(stride, 2), "padding": pairs(padding, 2)}
    numbers["upsample"] = upsample
    if dilation != 1 or groups != 1:
        numbers |= {"dilation": spread(dilation, 2), "groups": groups}
    return Case(arrays, why, numbers)


CASES = [
    _case("nothing even", (2, 7, 6, 17), (19, 3, 2), stride=(2, 1), padding=((2, 0), (0, 1))),
    _case("Wan2.2 upsampler", (1, 4, 4, 1024), (40, 3, 3), padding=1, upsample=True),
    _case("Wan2.2 upsampler, frames", (3, 4, 4, 256), (50, 3, 3), padding=1, upsample=True),
    _case("Wan2.2 downsampler", (2, 13, 14, 160), (66, 3, 3), stride=2, padding=((0, 1), (0, 1))),
    _case("q, k, v of the middle block", (1, 7, 10, 1024), (72, 1, 1)),
    _case("Qwen-Image-2.1 conv_in: RGBA", (1, 10, 11, 4), (96, 3, 3), padding=1),
    _case("conv_out", (1, 9, 9, 96), (3, 3, 3), padding=1),
    _case("one pixel", (1, 1, 1, 3), (2, 1, 1), bias=False),
    _case("fewer than 8 elements in constant memory", (1, 1, 2, 3), (40, 1, 2), padding=1),
    _case("NaN and infinity", (2, 5, 6, 20), (9, 3, 3), padding=1, fill="specials"),
    _case("unaligned", (2, 4, 5, 24), (9, 2, 2), bias=False, layout="offset"),
    _case("every other element", (2, 4, 5, 24), (9, 2, 2), upsample=True, layout="strided"),
    _case("dilated, two groups", (2, 9, 8, 34), (38, 3, 2), padding=2, dilation=(2, 1), groups=2),
    _case("a channel each", (2, 6, 11, 24), (24, 3, 3), stride=2, padding=1, groups=24),
]

KERNEL = Kernel(
    "conv2d",
    function=conv2d_in_order,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=Metal(conv3d.VARIANTS, problem, conv3d.choose, conv3d.launch, bar=conv3d.bar),
    cpu="convolution",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
