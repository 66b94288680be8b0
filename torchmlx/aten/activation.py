"""Activation functions. Half precision is computed in float32 and rounded once."""

from __future__ import annotations

import functools
import math

import mlx.core as mx

from ..core.layout import wrap_dim
from ..core.op import composite, op
from ._calling import is_float, torch_name
from .elementary import erf, exp, sigmoid
from .pointwise import in_float32

# The variants that write in place and the keyword `inplace=` are in nn/functional.py.
activation = functools.partial(op, at=(), inplace=True)
in_torch = functools.partial(op, at=("torch",), inplace=True)


def floats(name: str, complex_too: bool = False):
    """Refuse integers as torch's kernel `name` does; compute half precision in float32."""

    def decorate(function):
        computed = in_float32(function)

        @functools.wraps(function)
        def checked(input, *args, **kwargs):
            if not is_float(input) or (input.dtype == mx.complex64 and not complex_too):
                raise NotImplementedError(f"\"{name}\" not implemented for '{torch_name(input)}'")
            return computed(input, *args, **kwargs)

        return checked

    return decorate


@op(inplace=True)
def relu(input):
    """max(input, 0); NaN stays. torch.relu."""
    if input.dtype == mx.bool_:
        raise RuntimeError("Boolean inputs not supported for relu")
    return mx.maximum(input, mx.array(0, input.dtype))


@activation()
@floats("leaky_relu_cpu")
def leaky_relu(input, negative_slope=0.01):
    """input where positive, else negative_slope * input. torch.nn.functional.leaky_relu."""
    return mx.where(input > 0, input, input * negative_slope)


def _elu(x, alpha, scale, input_scale):
    # The exponential does not see positive numbers: an overflow in the branch not taken would spoil
    # gradients.
    negative = mx.expm1(mx.where(x > 0, 0, x) * input_scale) * (alpha * scale)
    return mx.where(x > 0, x * scale, negative)


@activation()
@floats("elu_cpu")
def elu(input, alpha=1.0, scale=1.0, input_scale=1.0):
    """input where positive, else alpha * (exp(input) - 1). torch.nn.functional.elu."""
    return _elu(input, alpha, scale, input_scale)


@in_torch()
@floats("elu_cpu")
def selu(input):
    """The self-normalising exponential linear unit (Klambauer et al. 2017). torch.selu."""
    return _elu(input, 1.6732632423543772, 1.0507009873554805, 1.0)


@in_torch()
@floats("elu_cpu")
def celu(input, alpha=1.0):
    """input where positive, else alpha * (exp(input / alpha) - 1). torch.celu."""
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    return _elu(input, alpha, 1.0, 1.0 / alpha)


@activation()
@floats("GeluKernelImpl")
def gelu(input, *, approximate="none"):
    """input * Phi(input), or its tanh approximation. torch.nn.functional.gelu."""
    if approximate == "none":
        exact = erf if input.dtype == mx.float64 else mx.erf
        return input * (exact(input * math.sqrt(0.5)) + 1) * 0.5
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (input + 0.044715 * input * input * input)
        return 0.5 * input * (1 + mx.tanh(inner))
    raise RuntimeError("approximate argument must be either none or tanh.")


@activation()
@floats("silu_cpu", complex_too=True)
def silu(input):
    """input * sigmoid(input). torch.nn.functional.silu."""
    return input * sigmoid(input)


def _softplus(x, beta, threshold):
    scaled = x * beta
    return mx.where(scaled > threshold, x, mx.log1p(exp(mx.minimum(scaled, threshold))) / beta)


@activation()
@floats("softplus_cpu")
def softplus(input, beta=1, threshold=20):
    """log(1 + exp(beta * input)) / beta, linear above the threshold.

    torch.nn.functional.softplus.
    """
    return _softplus(input, beta, threshold)


@activation()
@floats("mish_cpu")
def mish(input):
    """input * tanh(softplus(input)) (Misra 2019). torch.nn.functional.mish."""
    return input * mx.tanh(_softplus(input, 1, 20))


@op(at=("F",))
@floats("log_sigmoid_cpu")
def logsigmoid(input):
    """log(sigmoid(input)). torch.nn.functional.logsigmoid."""
    return mx.minimum(input, 0) - mx.log1p(exp(-mx.abs(input)))


@activation()
def hardtanh(input, min_val=-1.0, max_val=1.0):
    """input limited to [min_val, max_val]. torch.nn.functional.hardtanh."""
    if input.dtype == mx.bool_:
        raise RuntimeError("Bool inputs not supported for hardtanh")
    if input.dtype == mx.uint8 and (min_val < 0 or max_val < 0):
        raise RuntimeError("cannot do hardtanh on an unsigned type with negative limits")
    bounds = [
        mx.array(int(v) if not is_float(input) else v, input.dtype) for v in (min_val, max_val)
    ]
    return mx.minimum(mx.maximum(input, bounds[0]), bounds[1])


@activation()
@floats("hardswish_cpu")
def hardswish(input):
    """input * relu6(input + 3) / 6. torch.nn.functional.hardswish."""
    return input * mx.clip(input + 3, 0, 6) / 6


@activation()
@floats("hardsigmoid_cpu")
def hardsigmoid(input):
    """relu6(input + 3) / 6. torch.nn.functional.hardsigmoid."""
    return mx.clip(input + 3, 0, 6) / 6


@in_torch()
def threshold(input, threshold, value):
    """input where it exceeds the threshold, else value. torch.threshold."""
    return mx.where(input <= threshold, mx.array(value, input.dtype), input)


@op(at=("torch", "Tensor", "F"), pointwise=True)
@floats("hardshrink_cpu")
def hardshrink(input, lambd=0.5):
    """Zero within [-lambd, lambd], else input. torch.hardshrink."""
    return mx.where(mx.abs(input) <= lambd, mx.array(0, input.dtype), input)


@op(at=("F",), pointwise=True)
@floats("softshrink_cpu")
def softshrink(input, lambd=0.5):
    """input moved towards zero by lambd, zero within [-lambd, lambd].

    torch.nn.functional.softshrink.
    """
    if lambd < 0:
        raise RuntimeError(f"lambda must be greater or equal to 0, but found to be {lambd}.")
    inside = input * 0  # keeps NaN
    return mx.where(input > lambd, input - lambd, mx.where(input < -lambd, input + lambd, inside))


@op(at=("F",))
def softsign(input):
    """input / (1 + |input|). torch.nn.functional.softsign."""
    if not is_float(input):
        input = input.astype(mx.float32)
    return in_float32(lambda x: x / (mx.abs(x) + 1))(input)


@op(at=("F",))
@in_float32
def tanhshrink(input):
    """input - tanh(input). torch.nn.functional.tanhshrink."""
    if not is_float(input):
        input = input.astype(mx.float32)
    return input - mx.tanh(input)


@composite(at=("F",))
def glu(input, dim=-1):
    """The first half of a dimension times the sigmoid of the second. torch.nn.functional.glu."""
    if input.ndim == 0:
        raise RuntimeError("glu does not support 0-dimensional tensors")
    d = wrap_dim(dim, input.ndim)
    if input.shape[d] % 2:
        raise RuntimeError(
            f"Halving dimension must be even, but dimension {d} is size {input.shape[d]}"
        )
    half = input.shape[d] // 2
    return _glu(input.narrow(d, 0, half), input.narrow(d, half, half))


@op("_glu", at=(), pointwise=True)
@floats("glu_cpu")
def _glu(input, gate):
    return input * sigmoid(gate)


@composite(at=("torch", "Tensor", "F"))
def prelu(input, weight):
    """input where positive, else weight (one number, or one a channel) * input. torch.prelu."""
    if input.dtype is not weight.dtype:
        raise RuntimeError(
            f"prelu: Type promoting not supported. Got {input.dtype.torch_name} and "
            f"{weight.dtype.torch_name}"
        )
    if weight.ndim > 1:
        raise RuntimeError(
            f"prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = {weight.ndim}"
        )
    if weight.ndim == 1 and weight.numel() != 1:
        channels = input.shape[1] if input.ndim > 1 else 1
        if input.ndim == 0:
            raise RuntimeError("Not allow zero-dim input tensor.")
        if weight.numel() != channels:
            raise RuntimeError(
                "Mismatch of parameter numbers and input channel size. Found parameter numbers = "
                f"{weight.numel()} and channel size = {channels}."
            )
        weight = weight.reshape((-1,) + (1,) * max(input.ndim - 2, 0))
    elif weight.ndim == 1:
        weight = weight.reshape(())
    return _prelu(input, weight)


@op("_prelu", at=(), pointwise=True)
def _prelu(input, weight):
    return in_float32(lambda x, w: mx.where(x > 0, x, x * w))(input, weight)
