"""Convolutions: torch's channels first outside, the kernels' channels last inside.

The result stays channels last in memory, as a view: a chain of layers turns its image round once.
"""

from __future__ import annotations

import mlx.core as mx

from ..core.op import op
from ..kernels import conv3d, conv_transpose
from ..kernels.kernel import Kernel
from ._calling import is_float
from .linear import c_name


def spread(value, n: int, name: str) -> tuple[int, ...]:
    """One number for every spatial dimension, or one each."""
    if isinstance(value, int):
        return (value,) * n
    value = tuple(int(v) for v in value)
    if len(value) == 1:
        return value * n
    if len(value) != n:
        raise RuntimeError(
            f"expected {name} to be a single integer value or a list of {n} values to match the "
            f"convolution dimensions, but got {name}={list(value)}"
        )
    return value


def _batched(name: str, x: mx.array, n: int) -> mx.array:
    if x.ndim not in (n + 1, n + 2):
        raise RuntimeError(
            f"Expected {n + 1}D (unbatched) or {n + 2}D (batched) input to {name}, but got input "
            "of "
            f"size: {list(x.shape)}"
        )
    return x if x.ndim == n + 2 else x[None]


def _check_types(x, weight, bias) -> None:
    for label, other in (("weight", weight), ("bias", bias)):
        if other is not None and other.dtype != x.dtype:
            raise RuntimeError(
                f"Input type ({c_name(x)}) and {label} type ({c_name(other)}) should be the same"
            )


def _check(x, weight, bias, groups: int, channels: int) -> None:
    _check_types(x, weight, bias)
    if weight.shape[0] % groups or weight.shape[0] < groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be at least {groups} at dimension 0, but "
            "got "
            f"weight of size {list(weight.shape)} instead"
        )
    if x.shape[1] != channels:
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected input"
            f"{list(x.shape)} to have {channels} channels, but got {x.shape[1]} channels instead"
        )
    if bias is not None and bias.shape != (weight.shape[0],):
        raise RuntimeError(
            f"Given weight of size {list(weight.shape)}, expected bias to be 1-dimensional with "
            f"{weight.shape[0]} elements, but got bias of size {list(bias.shape)} instead"
        )


def _served(kernel: Kernel, n: int, x, weight, bias, stride, pads, dilation, groups):
    """A kernel over three axes, channels last, for n axes, channels first."""
    more = 3 - n
    image, w = (
        mx.expand_dims(mx.moveaxis(array, 1, -1), tuple(range(1, 1 + more)))
        for array in (x, weight)
    )
    numbers = {
        "stride": (1,) * more + stride,
        "padding": ((0, 0),) * more + tuple(pads),
        "dilation": (1,) * more + dilation,
        "groups": groups,
    }
    if x.dtype == mx.complex64:
        result = kernel.fallback(image, w, bias, **numbers)
    elif is_float(x):
        result = kernel.function(image, w, bias, **numbers)
    else:  # sums below 2^53 are exact
        exact = (a if a is None else a.astype(mx.float64) for a in (image, w, bias))
        result = kernel.function(*exact, **numbers)
    return mx.moveaxis(result.squeeze(tuple(range(1, 1 + more))), -1, 1).astype(x.dtype)


def _empty(x, columns: int, outputs, bias) -> mx.array:
    """The result where there is nothing to add up: the bias."""
    zeros = mx.zeros((x.shape[0], columns, *outputs), x.dtype)
    return zeros if bias is None else zeros + bias.reshape(-1, *(1,) * len(outputs))


def _pads(padding, kernel, dilation, stride) -> list[tuple[int, int]]:
    n = len(kernel)
    if padding == "valid":
        return [(0, 0)] * n
    if padding == "same":
        if any(s != 1 for s in stride):
            raise RuntimeError("padding='same' is not supported for strided convolutions")
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return [(t // 2, t - t // 2) for t in totals]
    if isinstance(padding, str):
        raise RuntimeError("Invalid padding string: '" + padding + "'")
    padding = spread(padding, n, "padding")
    if any(p < 0 for p in padding):
        raise RuntimeError("negative padding is not supported")
    return [(p, p) for p in padding]


def _output_sizes(spatial, pads, kernel, stride, dilation) -> tuple[int, ...]:
    if any(s <= 0 for s in stride):
        raise RuntimeError("non-positive stride is not supported")
    if any(d <= 0 for d in dilation):
        raise RuntimeError("dilation should be greater than zero")
    padded = [n + a + b for n, (a, b) in zip(spatial, pads, strict=True)]
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    if any(p < r for p, r in zip(padded, reach, strict=True)):
        raise RuntimeError(
            f"Calculated padded input size per channel: ({' x '.join(map(str, padded))}). Kernel "
            "size: "
            f"({' x '.join(map(str, reach))}). Kernel size can't be greater than actual input size"
        )
    return tuple((p - r) // s + 1 for p, r, s in zip(padded, reach, stride, strict=True))


def convolve(n: int, input, weight, bias, stride, padding, dilation, groups):
    """Convolution over n spatial dimensions; input [N, C, *spatial] or [C, *spatial]."""
    name = f"conv{n}d"
    x = _batched(name, input, n)
    if weight.ndim != n + 2:
        raise RuntimeError(
            f"Given weight of size {list(weight.shape)}, expected a {n + 2}-dimensional weight"
        )
    _check(x, weight, bias, groups, weight.shape[1] * groups)
    kernel = weight.shape[2:]
    stride, dilation = spread(stride, n, "stride"), spread(dilation, n, "dilation")
    pads = _pads(padding, kernel, dilation, stride)
    outputs = _output_sizes(x.shape[2:], pads, kernel, stride, dilation)
    if 0 in x.shape or 0 in weight.shape:
        result = _empty(x, weight.shape[0], outputs, bias)
    else:
        numbers = (stride, pads, dilation, groups)
        result = _served(conv3d.KERNEL, n, x, weight, bias, *numbers)
    return result if input.ndim == n + 2 else result[0]


def convolve_transposed(
    n: int, input, weight, bias, stride, padding, output_padding, groups, dilation
):
    """The gradient of a convolution as an operation; weight [C, O / groups, *kernel]."""
    x = _batched(f"conv_transpose{n}d", input, n)
    _check_types(x, weight, bias)
    if x.shape[1] != weight.shape[0]:
        raise RuntimeError(
            f"Given transposed=1, weight of size {list(weight.shape)}, expected "
            f"input{list(x.shape)} to "
            f"have {weight.shape[0]} channels, but got {x.shape[1]} channels instead"
        )
    if bias is not None and bias.shape != (weight.shape[1] * groups,):
        raise RuntimeError(
            f"Given transposed=1, weight of size {list(weight.shape)}, expected bias to be "
            f"1-dimensional with {weight.shape[1] * groups} elements, but got bias of size "
            f"{list(bias.shape)} instead"
        )
    kernel = weight.shape[2:]
    stride, dilation = spread(stride, n, "stride"), spread(dilation, n, "dilation")
    padding = spread(padding, n, "padding")
    extra = spread(output_padding, n, "output_padding")
    if any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)):
        raise RuntimeError(
            "output padding must be smaller than either stride or dilation, but got "
            "output_padding: "
            f"{list(extra)}, stride: {list(stride)}, dilation: {list(dilation)}"
        )
    sizes = zip(x.shape[2:], stride, dilation, kernel, strict=True)
    full = tuple((m - 1) * s + d * (k - 1) + 1 for m, s, d, k in sizes)
    outputs = tuple(f - 2 * p + e for f, p, e in zip(full, padding, extra, strict=True))
    if any(o <= 0 for o in outputs):
        raise RuntimeError(
            f"Given input size per channel: ({' x '.join(map(str, x.shape[2:]))}). Calculated "
            "output "
            f"size per channel: ({' x '.join(map(str, outputs))}). Output size is too small"
        )
    if 0 in x.shape or 0 in weight.shape:
        result = _empty(x, weight.shape[1] * groups, outputs, bias)
    else:
        pads = [(p, p - e) for p, e in zip(padding, extra, strict=True)]
        numbers = (stride, pads, dilation, groups)
        result = _served(conv_transpose.KERNEL, n, x, weight, bias, *numbers)
    return result if input.ndim == n + 2 else result[0]


def _register(n: int) -> None:
    @op(f"conv{n}d", at=("torch", "F"))
    def conv(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        return convolve(n, input, weight, bias, stride, padding, dilation, groups)

    @op(f"conv_transpose{n}d", at=("torch", "F"))
    def conv_transpose(
        input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
    ):
        return convolve_transposed(
            n, input, weight, bias, stride, padding, output_padding, groups, dilation
        )

    shape = "[N, C, " + ", ".join("DHW"[3 - n :]) + "]"
    conv.__doc__ = f"Cross-correlation of {shape} with [O, C / groups, ...]. torch.conv{n}d."
    conv_transpose.__doc__ = (
        f"Transposed convolution of {shape} with [C, O / groups, ...]. torch.conv_transpose{n}d."
    )


for _n in (1, 2, 3):
    _register(_n)
