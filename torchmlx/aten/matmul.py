"""Products of matrices and vectors."""

from __future__ import annotations

import mlx.core as mx

from ..core.op import op


def _half(x: mx.array) -> bool:
    return x.dtype in (mx.float16, mx.bfloat16)


@op(promote="input other")
def matmul(input, other):
    """Matrix product with broadcast batch dimensions; vectors as in torch. torch.matmul."""
    if input.ndim == 0 or other.ndim == 0:
        raise RuntimeError(
            f"both arguments to matmul need to be at least 1D, but they are {input.ndim}D and {other.ndim}D"
        )
    inner = other.shape[-2] if other.ndim > 1 else other.shape[0]
    if input.shape[-1] != inner:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({'x'.join(map(str, input.shape))} and "
            f"{'x'.join(map(str, other.shape))})"
        )
    return mx.matmul(input, other)
