"""Weights that MLX has quantised: groups of integers or small floats with a scale each.

Two kinds: "affine", 2 to 8 bits, weight = q * scale + bias; and the microscaling formats "mxfp4",
"mxfp8" (groups of 32, scales e8m0) and "nvfp4" (groups of 16, scales e4m3), without bias. Weights
[.., N, K] are packed into uint32 [.., N, K * bits / 32]; scales and biases are [.., N, K / group].
"""

from __future__ import annotations

import mlx.core as mx

from ..core.op import op
from ..kernels.quantized_matmul import quantized_matmul as product
from .fused import speaking_torch


def _matching(x: mx.array, *parameters: mx.array | None) -> list[mx.array | None]:
    """Floating scales and biases in x's dtype: MLX multiplies in one; bytes stay."""
    return [
        p.astype(x.dtype) if p is not None and mx.issubdtype(p.dtype, mx.floating) else p
        for p in parameters
    ]


@op("ops.quantized_matmul", at=("ops",))
@speaking_torch
def quantized_matmul(x, weight, scales, biases=None, *, group_size, bits, mode="affine"):
    """x [.., K] times the transposed quantised weight [N, K]: [.., N] of x's dtype.

    Accumulated in float32; K is a multiple of 32. mlx.core.quantized_matmul.
    """
    scales, biases = _matching(x, scales, biases)
    return product(x, weight, scales, biases, group_size, bits, mode)


@op("ops.gather_quantized_matmul", at=("ops",))
def gather_quantized_matmul(
    x, weight, scales, biases, indices, *, group_size, bits, mode="affine", sorted_indices=False
):
    """Row x[i], [R, K], times the transposed quantised weight of expert indices[i]: [R, N].

    weight is of [E, N, K]; `sorted_indices` says that the indices ascend. mlx.core.gather_qmm.
    """
    scales, biases = _matching(x, scales, biases)
    product = mx.gather_qmm(
        x[:, None, :],
        weight,
        scales,
        biases,
        rhs_indices=indices,
        transpose=True,
        group_size=group_size,
        bits=bits,
        mode=mode,
        sorted_indices=sorted_indices,
    )
    return product[:, 0, :]


@op("ops.dequantize", at=("ops",))
def dequantize(weight, scales, biases=None, *, group_size, bits, mode="affine", like=None):
    """The values of a quantised weight, in the dtype of `like` (by default of its scales).

    mlx.core.dequantize.
    """
    if like is not None:
        scales, biases = _matching(like, scales, biases)
    values = mx.dequantize(weight, scales, biases, group_size=group_size, bits=bits, mode=mode)
    return values if like is None else values.astype(like.dtype)
