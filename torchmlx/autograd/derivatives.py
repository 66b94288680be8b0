"""Gradients written by hand: those that are used most, and where torch answers otherwise than MLX.

Each takes the cotangent and the operation's own arguments; of tensors that are not saved it gets
shape and dtype. Sums over broadcast dimensions and casts are the tape's.
"""

from __future__ import annotations

import mlx.core as mx

from ..core.record import LINEAR, NAMES, derivative

LINEAR.update(())


@derivative("add")
def add(g, input, other, *, alpha=1):
    return g, g if alpha == 1 else g * alpha


@derivative("_sub")
def sub(g, input, other, alpha=1):
    return g, -g if alpha == 1 else g * -alpha


@derivative("mul", saves="input other")
def mul(g, input, other):
    return g * _conj(other), g * _conj(input)


@derivative("neg")
def neg(g, input):
    return -g


@derivative("exp", saves="result")
def exp(g, input, *, result):
    return g * _conj(result)


@derivative("relu", saves="result")
def relu(g, input, *, result):
    return mx.where(result <= 0, mx.array(0, g.dtype), g)


def _conj(x):
    return mx.conj(x) if isinstance(x, mx.array) and x.dtype == mx.complex64 else x


NAMES.update({
    "_sub": "SubBackward0", "true_divide": "DivBackward0", "div": "DivBackward0",
    "linear": "AddmmBackward0", "_rows": "EmbeddingBackward0", "matmul": "MmBackward0",
    "_concat": "CatBackward0", "_mse_loss": "MseLossBackward0",
    "_attend": "ScaledDotProductAttentionBackward0",
})  # fmt: skip
