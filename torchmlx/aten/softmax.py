"""Softmax and its logarithm: torch.softmax, Tensor.softmax; torch.nn.functional wraps them."""

from __future__ import annotations

import mlx.core as mx

from ..core.layout import wrap_dim
from ..core.op import op
from ..kernels.log_softmax import log_softmax as log_kernel
from ..kernels.softmax import softmax as kernel
from ._calling import cast, is_float, numpy_names, torch_name


def _prepared(name: str, x: mx.array, dim: int, dtype) -> tuple[mx.array, int]:
    x = cast(x, dtype)
    if not is_float(x):
        raise NotImplementedError(
            f"\"{name}_lastdim_kernel_impl\" not implemented for '{torch_name(x)}'"
        )
    return x, wrap_dim(dim, x.ndim)


@op(at=("torch", "Tensor", "special"))
@numpy_names
def softmax(input, dim, dtype=None):
    """exp(input) over its sum along dim, accumulated in float32; `dtype` casts first.

    torch.softmax.
    """
    x, axis = _prepared("softmax", input, dim, dtype)
    return kernel(x, axis) if x.size else x


@op(at=("torch", "Tensor", "special"))
@numpy_names
def log_softmax(input, dim, dtype=None):
    """log(softmax(input)), accumulated in float32; `dtype` casts first. torch.log_softmax."""
    x, axis = _prepared("log_softmax", input, dim, dtype)
    return log_kernel(x, axis) if x.size else x
