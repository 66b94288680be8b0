"""A batch norm in evaluation folded into the layer before it. torch.nn.utils.fusion."""

from __future__ import annotations

import copy

from ..parameter import Parameter

__all__ = [
    "fuse_conv_bn_eval",
    "fuse_conv_bn_weights",
    "fuse_linear_bn_eval",
    "fuse_linear_bn_weights",
]


def _fold(weight, bias, mean, var, eps, scale, shift, channels: int):
    """(weight, bias) of layer and norm in one; `channels` is the weight's dimension of outputs."""
    factor = (var + eps).rsqrt()
    factor = factor if scale is None else factor * scale
    shape = [1] * weight.ndim
    shape[channels] = -1
    folded = (weight * factor.reshape(shape)).to(weight.dtype)
    bias = mean.new_zeros(mean.shape) if bias is None else bias
    new_bias = (bias - mean) * factor
    new_bias = new_bias if shift is None else new_bias + shift
    return (
        Parameter(folded, weight.requires_grad),
        Parameter(new_bias.to(weight.dtype), bias.requires_grad),
    )


def fuse_conv_bn_weights(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, transpose=False):
    """(weight, bias) of a convolution followed by a batch norm of these statistics."""
    return _fold(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, 1 if transpose else 0)


def fuse_linear_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b):
    """(weight, bias) of a linear layer followed by a batch norm of these statistics."""
    return _fold(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, 0)


def _fused(layer, bn, fold, *more):
    if layer.training or bn.training:
        raise AssertionError("Fusion only for eval!")
    fused = copy.deepcopy(layer)
    fused.weight, fused.bias = fold(
        fused.weight, fused.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, *more
    )
    return fused


def fuse_conv_bn_eval(conv, bn, transpose=False):
    """One convolution that does what `conv` and then `bn`, both in evaluation, do."""
    return _fused(conv, bn, fuse_conv_bn_weights, transpose)


def fuse_linear_bn_eval(linear, bn):
    """One linear layer that does what `linear` and then `bn`, both in evaluation, do."""
    if linear.out_features != bn.num_features and bn.num_features != 1:
        raise AssertionError(
            "To fuse, linear.out_features == bn.num_features or bn.num_features == 1"
        )
    return _fused(linear, bn, fuse_linear_bn_weights)
