"""Autocast: which operations run in half precision, which in float32, while it is on.

The lists are torch 2.13's, seen by calling every operation of op_db under torch.autocast; the GPU's
is longer than the CPU's.
"""

from __future__ import annotations

from . import dtype as dtypes
from . import modes
from .tensor import Tensor

HALF = {
    "_attend", "_attention_weights", "addbmm", "addmm", "baddbmm", "bmm", "conv1d", "conv2d",
    "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linalg.vecdot",
    "linear", "matmul", "mm", "prelu",
}  # fmt: skip
FLOAT = {
    "_bce", "_bce_with_logits", "_cosine_embedding", "_cross_entropy", "_huber_loss", "_kl_div",
    "_l1_loss", "_mse_loss", "_nll_loss", "_smooth_l1_loss", "_soft_cross_entropy", "grid_sample",
    "prod",
}  # fmt: skip
GPU_HALF = HALF | {"addmv", "addr", "mv"}
GPU_FLOAT = FLOAT | {
    "acos", "asin", "cosh", "cumprod", "cumsum", "erfinv", "exp", "expm1", "group_norm",
    "layer_norm", "log", "log10", "log1p", "log2", "log_softmax", "logsumexp", "pow", "reciprocal",
    "rms_norm", "rsqrt", "sinh", "softmax", "softplus", "sum", "tan",
}  # fmt: skip


def cast(name: str, args, kwargs, on: modes.Autocast):
    """The arguments of an operation as autocast wants them."""
    half, full = (HALF, FLOAT) if on.device_type == "cpu" else (GPU_HALF, GPU_FLOAT)
    target = on.dtype if name in half else dtypes.float32 if name in full else None
    if target is None:
        return args, kwargs
    with modes.autocast_set(None):
        args = tuple(_cast(a, target, on.device_type) for a in args)
        return args, {k: _cast(v, target, on.device_type) for k, v in kwargs.items()}


def _cast(value, target, device_type: str):
    if isinstance(value, Tensor):
        kind = value.dtype
        fits = kind.is_floating_point and not kind.opaque and kind is not dtypes.float64
        here = value.device.type == device_type
        return value.to(target) if fits and here else value
    if type(value) in (tuple, list):
        return type(value)(_cast(v, target, device_type) for v in value)
    return value
