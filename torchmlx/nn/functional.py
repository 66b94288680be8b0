"""torch.nn.functional: filled from the op table (torchmlx/aten).

Here are the functions whose arguments differ from those of the torch function of the same name
(`inplace=`, `training=`, another order).
"""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from ..aten import embedding as _embedding
from ..aten import pool as _pool
from ..aten import resize as _resize
from ..aten.scaled import ScalingType as ScalingType
from ..aten.scaled import SwizzleType as SwizzleType
from ..core import outs as _outs
from ..core.op import TABLE as _TABLE
from . import dropout as _dropout
from . import heads as _heads  # noqa: F401  (fills the table)

if _TYPE_CHECKING:  # what the op table adds

    def __getattr__(name: str) -> _Any: ...


def _run(name: str, inplace: bool, *args, **kwargs):
    entry = _TABLE[name]
    return (entry.inplace if inplace else entry.call)(*args, **kwargs)  # type: ignore[misc]


def relu(input, inplace=False):
    """max(input, 0)."""
    return _run("relu", inplace, input)


def leaky_relu(input, negative_slope=0.01, inplace=False):
    """input where positive, else negative_slope * input."""
    return _run("leaky_relu", inplace, input, negative_slope)


def elu(input, alpha=1.0, inplace=False):
    """input where positive, else alpha * (exp(input) - 1)."""
    return _run("elu", inplace, input, alpha)


def selu(input, inplace=False):
    """The self-normalising exponential linear unit."""
    return _run("selu", inplace, input)


def celu(input, alpha=1.0, inplace=False):
    """input where positive, else alpha * (exp(input / alpha) - 1)."""
    return _run("celu", inplace, input, alpha)


def silu(input, inplace=False):
    """input * sigmoid(input)."""
    return _run("silu", inplace, input)


def mish(input, inplace=False):
    """input * tanh(softplus(input))."""
    return _run("mish", inplace, input)


def hardtanh(input, min_val=-1.0, max_val=1.0, inplace=False):
    """input limited to [min_val, max_val]."""
    if min_val > max_val:
        raise ValueError("min_val cannot be greater than max_val")
    return _run("hardtanh", inplace, input, min_val, max_val)


def relu6(input, inplace=False):
    """input limited to [0, 6]."""
    return _run("hardtanh", inplace, input, 0.0, 6.0)


def hardswish(input, inplace=False):
    """input * relu6(input + 3) / 6."""
    return _run("hardswish", inplace, input)


def hardsigmoid(input, inplace=False):
    """relu6(input + 3) / 6."""
    return _run("hardsigmoid", inplace, input)


def threshold(input, threshold, value, inplace=False):
    """input where it exceeds the threshold, else value."""
    return _run("threshold", inplace, input, threshold, value)


rrelu_ = _dropout.rrelu_


def rrelu(input, lower=1.0 / 8, upper=1.0 / 3, training=False, inplace=False):
    """leaky_relu with a slope drawn from [lower, upper) while training, their mean otherwise."""
    if not training:
        return _run("leaky_relu", inplace, input, (lower + upper) / 2)
    result = input * _dropout.random_slopes(input, lower, upper)
    return input.copy_(result) if inplace else result


def _inplace_only(name: str):
    def function(input, *args, **kwargs):
        return _TABLE[name].inplace(input, *args, **kwargs)  # type: ignore[misc]

    function.__name__ = name + "_"
    function.__doc__ = f"`{name}`, in place."
    return function


relu_, leaky_relu_, elu_, selu_, celu_, hardtanh_, threshold_ = map(
    _inplace_only, ("relu", "leaky_relu", "elu", "selu", "celu", "hardtanh", "threshold")
)
gelu, softplus = _TABLE["gelu"].call, _TABLE["softplus"].call


alpha_dropout, feature_alpha_dropout = _dropout.alpha_dropout, _dropout.feature_alpha_dropout
dropout, dropout1d = _dropout.dropout, _dropout.dropout1d
dropout2d, dropout3d = _dropout.dropout2d, _dropout.dropout3d


def sigmoid(input):
    """1 / (1 + exp(-input))."""
    return input.sigmoid()


def tanh(input):
    """The hyperbolic tangent."""
    return input.tanh()


def _softmax_dim(dim, ndim: int) -> int:
    # torch's historic choice where none is given.
    return dim if dim is not None else 0 if ndim in (0, 1, 3) else 1


def softmax(input, dim=None, _stacklevel=3, dtype=None):
    """exp(input) over its sum along dim."""
    return _TABLE["softmax"].call(input, _softmax_dim(dim, input.ndim), dtype=dtype)


def softmin(input, dim=None, _stacklevel=3, dtype=None):
    """softmax of -input."""
    return softmax(-input, dim, dtype=dtype)


def log_softmax(input, dim=None, _stacklevel=3, dtype=None):
    """log(softmax(input))."""
    return _TABLE["log_softmax"].call(input, _softmax_dim(dim, input.ndim), dtype=dtype)


def embedding(
    input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False,
    sparse=False,
):  # fmt: skip
    """Rows of weight [N, D] at integer indices [...]: [..., D]. IndexError out of range."""
    padding_idx = _embedding.padding_index(padding_idx, weight.shape[0])
    if max_norm is not None:
        _embedding.renormalise(weight, input, max_norm, norm_type)
    return _embedding.embedding(weight, input, padding_idx, scale_grad_by_freq, sparse)


def _pooled(n: int):
    name = f"max_pool{n}d"

    def max_pool(
        input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False,
        return_indices=False,
    ):  # fmt: skip
        which = f"{name}_with_indices" if return_indices else name
        return _TABLE[which].call(input, kernel_size, stride, padding, dilation, ceil_mode)

    def adaptive_max_pool(input, output_size, return_indices=False):
        found = _TABLE[f"adaptive_{name}_with_indices"].call(input, output_size)
        return found if return_indices else found[0]

    for function, own in ((max_pool, name), (adaptive_max_pool, f"adaptive_{name}")):
        function.__name__ = function.__qualname__ = own
        function.__doc__ = f"{own}, with the positions of the maxima if return_indices."
    return max_pool, adaptive_max_pool


max_pool1d, adaptive_max_pool1d = _pooled(1)
max_pool2d, adaptive_max_pool2d = _pooled(2)
max_pool3d, adaptive_max_pool3d = _pooled(3)


def interpolate(
    input, size=None, scale_factor=None, mode="nearest", align_corners=None,
    recompute_scale_factor=None, antialias=False,
):  # fmt: skip
    """input [N, C, *spatial] resized to `size`, or by `scale_factor`."""
    if mode in ("nearest", "area", "nearest-exact"):
        if align_corners is not None:
            raise ValueError(
                "align_corners option can only be set with the interpolating modes: linear | "
                "bilinear "
                "| bicubic | trilinear"
            )
    elif mode not in _resize.MODES:
        raise NotImplementedError(
            "Input Error: Only 3D, 4D and 5D input Tensors supported (got "
            f"{input.ndim}D) for the modes: nearest | linear | bilinear | bicubic | trilinear | "
            "area | "
            f"nearest-exact (got {mode})"
        )
    elif input.ndim != _resize.MODES[mode]:
        raise NotImplementedError(
            f"Got {input.ndim}D input, but {mode} mode needs {_resize.MODES[mode]}D input"
        )
    if antialias:
        raise NotImplementedError("torch.nn.functional.interpolate with antialias=True")
    if input.ndim not in (3, 4, 5):
        raise NotImplementedError(
            f"Input Error: Only 3D, 4D and 5D input Tensors supported (got {input.ndim}D)"
        )
    if recompute_scale_factor and size is not None:
        raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
    sizes, scales = _resize.output_sizes(
        input.shape[2:], size, scale_factor, recompute_scale_factor
    )
    if min(sizes) <= 0 or 0 in input.shape[1:]:
        raise RuntimeError(
            "Input and output sizes should be greater than 0, but got input "
            f"{list(input.shape[2:])} and output {list(sizes)}"
        )
    if mode == "area":
        return _TABLE[f"adaptive_avg_pool{len(sizes)}d"].call(input, sizes)
    return _resize.resize(input, sizes, mode, scales, bool(align_corners))


def upsample(input, size=None, scale_factor=None, mode="nearest", align_corners=None):
    """`interpolate` under its old name."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input, size=None, scale_factor=None):
    """`interpolate` to the nearest element, under its old name."""
    return interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(input, size=None, scale_factor=None):
    """Bilinear `interpolate` with aligned corners, under its old name."""
    return interpolate(input, size, scale_factor, "bilinear", True)


def batch_norm(
    input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1,
    eps=1e-5,
):  # fmt: skip
    """Each channel of [N, C, ...] normalised by the batch's or the running statistics."""
    if training:
        _more_than_one("training", input.shape[:1].numel() * input.shape[2:].numel(), input)
    return _TABLE["batch_norm"].call(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )


def instance_norm(
    input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True,
    momentum=0.1, eps=1e-5,
):  # fmt: skip
    """Each channel of each sample of [N, C, ...] normalised on its own."""
    if use_input_stats and input.shape[2:].numel() == 1:
        raise ValueError(
            f"Expected more than 1 spatial element when training, got input size {input.shape}"
        )
    return _TABLE["instance_norm"].call(
        input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps
    )


def _more_than_one(when: str, values: int, input) -> None:
    if values == 1:
        raise ValueError(
            f"Expected more than 1 value per channel when {when}, got input size {input.shape}"
        )


def normalize(input, p=2.0, dim=1, eps=1e-12, out=None):
    """input over the larger of its p-norm along dim and eps."""
    call = _TABLE["_normalize"].call
    if out is None:
        return call(input, p, dim, eps)
    return _outs.into(out, "div", call, (input, p, dim, eps), {})


def unfold(input, kernel_size, dilation=1, padding=0, stride=1):
    """Windows of [N, C, H, W] as columns [N, C kh kw, L]."""
    return _TABLE["_unfold_windows"].call(input, kernel_size, dilation, padding, stride)


def local_response_norm(input, size, alpha=1e-4, beta=0.75, k=1.0):
    """input / (k + alpha * mean of squares over `size` neighbouring channels) ** beta."""
    if input.ndim < 3:
        raise ValueError(
            f"Expected 3D or higher dimensionality input (got {input.ndim} dimensions)"
        )
    if input.numel() == 0:
        return input
    squares = (input * input).reshape(input.shape[0], 1, input.shape[1], -1)
    squares = _TABLE["pad"].call(squares, (0, 0, size // 2, (size - 1) // 2))
    mean = _TABLE["avg_pool2d"].call(squares, (size, 1), stride=1).reshape(input.shape)
    return input / (mean * alpha + k).pow(beta)


def gumbel_softmax(logits, tau=1, hard=False, eps=1e-10, dim=-1):
    """Samples of the Gumbel-softmax distribution; `hard`: one-hot (Jang et al. 2016)."""
    drawn = -_TABLE["empty_like"].call(logits).exponential_().log()
    soft = softmax((logits + drawn) / tau, dim)
    if not hard:
        return soft
    index = soft.max(dim, keepdim=True)[1]
    one_hot = _TABLE["zeros_like"].call(logits).scatter_(dim, index, 1.0)
    return one_hot - soft.detach() + soft


def _unpooled(n: int):
    def max_unpool(input, indices, kernel_size, stride=None, padding=0, output_size=None):
        sizes = _pool.unpooled_sizes(
            input.shape[-n:], kernel_size, stride or kernel_size, padding, output_size
        )
        return _pool.max_unpool(input, indices, n, sizes)

    max_unpool.__name__ = max_unpool.__qualname__ = f"max_unpool{n}d"
    max_unpool.__doc__ = f"The inverse of max_pool{n}d: maxima at their indices, zero elsewhere."
    return max_unpool


max_unpool1d, max_unpool2d, max_unpool3d = map(_unpooled, (1, 2, 3))
