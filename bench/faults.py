"""What is slow or leaks in torch on Apple GPUs: the reported form against the good one, and growth.

Numbers are those of issues in github.com/pytorch/pytorch. `ours` is the form that was reported
slow, `theirs` the same work as it should be: our own form without the fault, or torch on the CPU.
Memory is what the process holds; of calls that each bring a new shape, all against the first
quarter.
"""

import os
import subprocess
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import torch

import torchmlx

from .table import Work, print_header, print_works

CALLS = 1000
# The time asked for is that of the good form, and no growth; the rest is left to noise.
FAST, FLAT = 0.8, 1.05
# Reported was 0.04x at best. NumPy's LAPACK works in float64, without MKL.
QR = 0.25


def main() -> None:
    """Measure and print both tables."""
    print(f"{'work':54}{'a quarter':>9}{'all MiB':>9}{'ratio':>8}{'bar':>7}  verdict")
    grow("132596 linear layer, 1 to 1000 rows", linear_layer())
    grow("181213 attention, 1 to 1000 keys", attention())
    grow("181213 its training, 1 to 1000 keys", attention(training=True))
    print()
    print_header()
    print_works((single_rows(), channels_last(), tall_qr()), 1.0, "missed")


def grow(name: str, call: Callable[[int], object]) -> None:
    """Print the process's memory after a quarter of the calls and after all; lengths in no order,
    the longest first.
    """
    lengths = [CALLS, *np.random.default_rng(0).permutation(CALLS - 1) + 1]
    held = []
    for part in lengths[: CALLS // 4], lengths[CALLS // 4 :]:
        for length in part:
            call(int(length))
        held.append(resident())
    early, late = held
    verdict = "met" if late <= FLAT * early else "missed"
    print(
        f"{name:54}{early:9.0f}{late:9.0f}{late / early:7.2f}x{FLAT:6.2f}x  {verdict}", flush=True
    )


def resident() -> float:
    """MiB of memory that this process holds."""
    command = ["ps", "-o", "rss=", "-p", str(os.getpid())]
    return int(subprocess.run(command, capture_output=True, check=True).stdout) / 1024


def linear_layer() -> Callable[[int], object]:
    layer = torchmlx.nn.Linear(32, 32)
    return lambda rows: evaluate(layer(torchmlx.randn(rows, 32)))


def attention(training: bool = False) -> Callable[[int], object]:
    layer = torchmlx.nn.MultiheadAttention(64, 4, batch_first=True)

    def call(keys: int) -> None:
        x = torchmlx.randn(1, keys, 64)
        with torchmlx.set_grad_enabled(training):
            y = layer(x, x, x, need_weights=False)[0]
        if training:
            layer.zero_grad()
            y.sum().backward()
            y = layer.in_proj_weight.grad
        evaluate(y)

    return call


def evaluate(*tensors: torchmlx.Tensor | None) -> None:
    mx.eval([t.mx for t in tensors if t is not None])


def single_rows() -> Work:
    """[B, 1, K] through a layer, against [B, K]."""
    x, layer = torchmlx.randn(64, 2048), torchmlx.nn.Linear(2048, 2048)
    rows = x[:, None].contiguous()

    def through(x) -> Callable[[], None]:
        def call() -> None:
            with torchmlx.inference_mode():
                evaluate(layer(x))

        return call

    return Work("189847 linear [64, 1, 2048], against [64, 2048]", through(rows), through(x), FAST)


def channels_last() -> Work:
    """A convolution's gradients in channels_last, against contiguous tensors."""
    x, w = torchmlx.randn(8, 64, 56, 56), torchmlx.randn(64, 64, 3, 3)

    def trained(layout) -> Callable[[], None]:
        tensors = [t.contiguous(memory_format=layout).requires_grad_() for t in (x, w)]
        cotangent = torchmlx.ones(8, 64, 56, 56).contiguous(memory_format=layout)

        def step() -> None:
            for t in tensors:
                t.grad = None
            y = torchmlx.nn.functional.conv2d(*tensors, padding=1)
            y.backward(cotangent)
            evaluate(*(t.grad for t in tensors))

        return step

    return Work(
        "193349 conv2d's gradients channels_last, contiguous",
        trained(torchmlx.channels_last), trained(torchmlx.contiguous_format), FAST,
    )  # fmt: skip


def tall_qr() -> Work:
    """QR of [4000, 36], the size reported, against torch on the CPU."""
    values = np.random.default_rng(0).standard_normal((4000, 36), np.float32)
    ours, theirs = torchmlx.from_numpy(values).clone(), torch.from_numpy(values)
    return Work(
        "187567 qr of [4000, 36], torch", lambda: evaluate(*torchmlx.linalg.qr(ours)),
        lambda: torch.linalg.qr(theirs), QR,
    )  # fmt: skip
