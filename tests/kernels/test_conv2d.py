"""conv2d: torch's values and gradients, errors, the launch it shares with conv3d."""

import mlx.core as mx
import numpy as np
import pytest
import torch

from torchmlx.kernels.accuracy import judge
from torchmlx.kernels.conv2d import KERNEL, conv2d, problem


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("upsample", [False, True])
@pytest.mark.parametrize("stride", [1, 2, (1, 2)])
@pytest.mark.parametrize("padding", [0, 1, ((0, 1), (2, 0))])
def test_values_and_gradients_as_in_torch(padding, stride, upsample):
    given = [normal(0, 2, 5, 6, 7), normal(1, 4, 3, 2, 7), normal(2, 4)]
    x, w, bias = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in given)
    image = x.permute(0, 3, 1, 2)
    if upsample:
        image = torch.nn.functional.interpolate(image, scale_factor=2, mode="nearest")
    (top, bottom), (left, right) = ((padding,) * 2,) * 2 if isinstance(padding, int) else padding
    image = torch.nn.functional.pad(image, (left, right, top, bottom))
    want = torch.nn.functional.conv2d(image, w.permute(0, 3, 1, 2), bias, stride)
    want = want.permute(0, 2, 3, 1)
    weights = normal(4, *want.shape)
    (want * torch.tensor(weights)).sum().backward()

    def function(x, w, bias):
        return conv2d(x, w, bias, stride, padding, upsample)

    results, gradients = mx.vjp(function, [mx.array(a) for a in given], [mx.array(weights)])
    assert judge(results[0], want.detach().numpy(), 1e-12).fault == ""
    for gradient, primal in zip(gradients, (x, w, bias), strict=True):
        assert judge(gradient, primal.grad.numpy(), 1e-12).fault == ""


def test_launch_sees_one_frame():
    x, w = mx.zeros((2, 5, 6, 40), mx.bfloat16), mx.zeros((70, 3, 3, 40), mx.bfloat16)
    call = problem(x, w, stride=(1, 1), padding=((1, 1), (1, 1)), upsample=True)
    (got,) = KERNEL.metal.launch(call, "tile64")
    assert got.inputs == {"x": (2, 1, 5, 6, 40), "w": (70, 1, 3, 3, 40)}
    assert got.outputs == {"out": ((2, 10, 12, 70), mx.bfloat16)}
    assert dict(got.template)["UPSAMPLE"] is True
    assert (got.scalars["first_d"], got.scalars["last_d"]) == (0, 1)


@pytest.mark.parametrize(
    "x, w, keywords, message",
    [
        ((3, 3, 4), (5, 1, 1, 4), {}, "4-d arrays"),
        ((2, 3, 3, 4), (5, 1, 4), {}, "4-d arrays"),
        ((2, 3, 3, 4), (5, 1, 1, 3), {}, r"x \(2, 3, 3, 4\) does not fit weights"),
        ((2, 3, 3, 4), (5, 4, 1, 4), {}, "reach over x"),
        ((2, 3, 3, 4), (5, 1, 1, 4), {"stride": (1, 1, 1)}, "is not one number or 2"),
    ],
)
def test_what_does_not_fit(x, w, keywords, message):
    with pytest.raises(ValueError, match=f"{message}"):
        conv2d(mx.zeros(x), mx.zeros(w), **keywords)


def test_dtypes_that_do_not_fit():
    with pytest.raises(TypeError, match="conv2d takes one floating dtype"):
        conv2d(mx.zeros((1, 2, 2, 3)), mx.zeros((1, 1, 1, 3), mx.float16))
