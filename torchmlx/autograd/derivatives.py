"""Gradients written by hand: those that are used most, and where torch answers otherwise than MLX.

Each takes the cotangent and the operation's own arguments; of tensors that are not saved it gets
shape and dtype. Sums over broadcast dimensions and casts are the tape's.
"""

from __future__ import annotations

import math

import mlx.core as mx

from ..core.op import TABLE
from ..core.record import NAMES, derivative


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


@derivative("complex")
def complex_(g, real, imag):
    return mx.real(g), mx.imag(g)


@derivative("_div_rounded")
def div_rounded(g, input, other, rounding_mode):
    zero = mx.zeros(g.shape, g.dtype)
    return zero, zero


@derivative("remainder", saves="input other")
def remainder(g, input, other):
    return g, -g * mx.floor(input / other)


@derivative("fmod", saves="input other")
def fmod(g, input, other):
    quotient = input / other
    return g, -g * mx.where(quotient < 0, mx.ceil(quotient), mx.floor(quotient))


@derivative("copysign", saves="input result")
def copysign(g, input, other, *, result):
    zero = input == 0
    return mx.where(zero, 0, g * (result / mx.where(zero, 1, input))), mx.zeros(g.shape, g.dtype)


@derivative("ndtri", saves="result")
def ndtri(g, input, *, result):
    return g * math.sqrt(2 * math.pi) * mx.exp(mx.square(result) / 2)


@derivative("erfcx", saves="input result")
def erfcx(g, input, *, result):
    return g * (2 * input * result - 2 / math.sqrt(math.pi))


@derivative("_ctc", saves="log_probs labels skip input_lengths target_lengths")
def ctc(g, log_probs, labels, skip, input_lengths, target_lengths):
    """torch's: for logarithms of probabilities that add up to one, whose share it adds."""
    rest = (labels, skip, input_lengths, target_lengths)
    function = TABLE["_ctc"].function
    _, (slope,) = mx.vjp(lambda x: function(x, *rest), [log_probs], [g])
    steps = mx.arange(log_probs.shape[0])[:, None, None]
    alive = mx.isfinite(function(log_probs, *rest))[None, :, None] & (
        steps < input_lengths[None, :, None]
    )
    share = mx.exp(log_probs) * g[None, :, None]
    return slope + mx.where(alive, share, 0), None, None, None, None


def _conj(x):
    return mx.conj(x) if isinstance(x, mx.array) and x.dtype == mx.complex64 else x


NAMES.update({
    "_sub": "SubBackward0", "true_divide": "DivBackward0", "div": "DivBackward0",
    "linear": "AddmmBackward0", "_rows": "EmbeddingBackward0", "matmul": "MmBackward0",
    "_concat": "CatBackward0", "_mse_loss": "MseLossBackward0",
    "_attend": "ScaledDotProductAttentionBackward0",
})  # fmt: skip
