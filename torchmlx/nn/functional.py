"""torch.nn.functional: filled from the op table (torchmlx/aten); here are the functions whose arguments differ
from those of the torch function of the same name (`inplace=`, `training=`, another order)."""

from __future__ import annotations

from ..aten import embedding as _embedding
from ..core.op import TABLE as _TABLE
from .dropout import (
    alpha_dropout,
    dropout,
    dropout1d,
    dropout2d,
    dropout3d,
    feature_alpha_dropout,
)


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


def rrelu(input, lower=1.0 / 8, upper=1.0 / 3, training=False, inplace=False):
    """leaky_relu with a slope drawn from [lower, upper) while training, their mean otherwise."""
    if training:
        raise NotImplementedError("torch.nn.functional.rrelu with training=True is not implemented")
    return _run("leaky_relu", inplace, input, (lower + upper) / 2)


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
    if "softmax" not in _TABLE:  # INTERIM
        x = input if dtype is None else input.to(dtype)
        return _TABLE["_interim_softmax"].call(x, _softmax_dim(dim, x.ndim))
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
