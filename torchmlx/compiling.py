"""mx.compile for steps that are repeated: traced once a shape, replayed without Python."""

import os
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from .core.device import device as Device
from .kernels import native
from .kernels.kernel import bare


def compiled(function: Callable[..., Any], where: Device) -> Callable[..., Any]:
    """`function` on trees of mx.arrays, traced at its first call with each set of shapes.

    On the CPU nothing is fused, since MLX would start a C++ compiler for each fused kernel; without
    the C++ extension, which has the switch, or with MLX_DISABLE_COMPILE, it stays as it is. Nothing
    is differentiated through it: kernels leave out the nodes that gradients need, of which a token
    of SmolLM2-135M had 362.
    """
    if os.environ.get("MLX_DISABLE_COMPILE"):
        return function

    def trace(*arguments):
        with bare():
            return function(*arguments)

    replay = mx.compile(trace)
    if where.type != "cpu":
        return replay
    module, _ = native.load()
    if module is None or not hasattr(module, "fuse"):
        return function
    fuse = module.fuse

    def call(*arguments):
        fuse(False)
        try:
            return replay(*arguments)
        finally:
            fuse(True)

    return call
