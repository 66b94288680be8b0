"""Layouts of convolutions' weights. torch.nn.utils.memory_format."""

from __future__ import annotations

from ...aten.convert import channels_last, channels_last_3d, contiguous_format
from ..modules.conv import Conv2d, Conv3d, ConvTranspose2d, ConvTranspose3d

__all__ = ["convert_conv2d_weight_memory_format", "convert_conv3d_weight_memory_format"]


def _converted(module, kinds, memory_format):
    if isinstance(module, kinds):
        module.weight.data = module.weight.detach().clone(memory_format=memory_format)
    for child in module.children():
        _converted(child, kinds, memory_format)
    return module


def convert_conv2d_weight_memory_format(module, memory_format):
    """Give the weights of all Conv2d and ConvTranspose2d in `module` a layout. Returns it."""
    _refuse_other(memory_format, channels_last)
    return _converted(module, (Conv2d, ConvTranspose2d), memory_format)


def convert_conv3d_weight_memory_format(module, memory_format):
    """Give the weights of all Conv3d and ConvTranspose3d in `module` a layout. Returns it."""
    _refuse_other(memory_format, channels_last_3d)
    return _converted(module, (Conv3d, ConvTranspose3d), memory_format)


def _refuse_other(memory_format, *known) -> None:
    if memory_format not in (*known, contiguous_format):
        raise ValueError(f"Unsupported memory format: {memory_format}")
