"""F.pad of ranks above 4 and planes around 65,536 elements, where Metal garbled PyTorch's.

Source of the cases: pytorch/pytorch#194922 (FB24527244), QwenLM/Qwen-Image-2.1#6.
"""

import numpy as np
import pytest
import torch as real

import torchmlx as torch
from torchmlx.nn import functional as F

# Sizes at both sides of the boundary: it is wrong there from 65,536 elements behind the axis on.
PLANES = [(1, 2, 1, 256, 256), (1, 2, 1, 255, 256), (1, 2, 4, 64, 1024), (1, 2, 4, 64, 1023)]
IN_TIME = [(0, 0, 0, 0, 1, 0), (0, 0, 0, 0, 2, 0)]
ALL_AXES = (1, 2, 0, 3, 2, 1)


def numbers(shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def widths(pads, ndim):
    """torch's pads, last axis first, as numpy's."""
    pairs = list(zip(pads[::2], pads[1::2], strict=True))[::-1]
    return [(0, 0)] * (ndim - len(pairs)) + pairs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [0.0, -1.5])
@pytest.mark.parametrize("pads", [*IN_TIME, ALL_AXES])
@pytest.mark.parametrize("shape", PLANES)
def test_constant(shape, pads, value, dtype):
    x = torch.tensor(numbers(shape)).to(dtype)
    expected = np.pad(x.float().numpy(), widths(pads, 5), constant_values=value)
    np.testing.assert_array_equal(F.pad(x, pads, value=value).float().numpy(), expected)


@pytest.mark.parametrize("pads", [(0, 0, 0, 0, 0, 0, 2, 1), (1, 0, 0, 1, 2, 0, 0, 2)])
def test_rank_6(pads):
    x = numbers((1, 2, 2, 1, 256, 257))
    expected = np.pad(x, widths(pads, 6), constant_values=3)
    np.testing.assert_array_equal(F.pad(torch.tensor(x), pads, value=3).numpy(), expected)


@pytest.mark.parametrize("mode", ["replicate", "reflect"])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0, 2, 0), (1, 2, 3, 0, 2, 1)])
@pytest.mark.parametrize("shape", [(1, 2, 3, 256, 256), (1, 2, 4, 64, 1023)])
def test_three_axes(shape, pads, mode):
    """Forward and backward."""
    x = numbers(shape)
    ours, theirs = torch.tensor(x, requires_grad=True), real.tensor(x, requires_grad=True)
    got, expected = F.pad(ours, pads, mode), real.nn.functional.pad(theirs, pads, mode)
    np.testing.assert_array_equal(got.detach().numpy(), expected.detach().numpy())
    weight = numbers(expected.shape)
    (got * torch.tensor(weight)).sum().backward()
    (expected * real.tensor(weight)).sum().backward()
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pads", [(-1, 0, 0, -2, 0, -1), (-3, 2, 1, -1, -1, 2)])
def test_negative_pads_crop(pads):
    x = numbers((1, 2, 3, 256, 257))
    expected = real.nn.functional.pad(real.tensor(x), pads, value=0.5).numpy()
    np.testing.assert_array_equal(F.pad(torch.tensor(x), pads, value=0.5).numpy(), expected)
