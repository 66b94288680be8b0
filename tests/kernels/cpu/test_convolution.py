"""Convolutions in C++ beside torch: numbers of all kinds, memory layouts, blocks, threads."""

import mlx.core as mx
import numpy as np
import pytest
import torch

from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.conv2d import conv2d
from torchmlx.kernels.conv3d import conv3d
from torchmlx.kernels.conv_transpose import conv_transpose
from torchmlx.kernels.dispatch import trace


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def first(x):
    """Channels first, as torch wants them."""
    return torch.tensor(np.moveaxis(np.asarray(x, np.float64), -1, 1))


def numbers(rng):
    """A convolution over three axes, drawn: shapes, and the keywords of torch."""
    groups = int(rng.choice([1, 1, 2, 3, 5]))
    channels, columns = (int(groups * rng.integers(1, 12)) for _ in range(2))
    kernel, stride, padding, dilation = (
        tuple(int(n) for n in rng.integers(*span, size=3))
        for span in ((1, 4), (1, 4), (0, 3), (1, 4))
    )
    least = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    size = tuple(int(n + rng.integers(0, 7)) for n in least)
    keywords = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    batch = int(rng.integers(1, 4))
    return (batch, *size, channels), (columns, *kernel, channels // groups), keywords


@pytest.mark.parametrize("seed", range(24))
def test_drawn_numbers_and_their_gradients(extension, seed):
    rng = np.random.default_rng(seed)
    shape, weights, keywords = numbers(rng)
    arrays = [normal(seed, *s) for s in (shape, weights, weights[:1])]
    leaves = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]
    x, w, bias = leaves
    moved = (x.movedim(-1, 1), w.movedim(-1, 1), bias)
    want = torch.nn.functional.conv3d(*moved, **keywords).movedim(1, -1)
    cotangent = normal(seed + 1, *want.shape)
    want.backward(torch.tensor(cotangent, dtype=torch.float64))

    def function(x, w, bias):
        return conv3d(x, w, bias, **keywords)

    given = [mx.array(a) for a in arrays]
    with trace() as calls:
        (got,), gradients = mx.vjp(function, given, [mx.array(cotangent)])
    assert {call.backend for call in calls} == {"cpu"}
    assert judge(got, want.detach().numpy(), 1e-12).fault == ""
    for gradient, leaf in zip(gradients, leaves, strict=True):
        assert judge(gradient, leaf.grad.numpy(), 1e-12).fault == ""


@pytest.mark.parametrize("seed", range(12))
def test_drawn_transposes(extension, seed):
    rng = np.random.default_rng(100 + seed)
    (batch, *size, _), (columns, *kernel, _), keywords = numbers(rng)
    groups = keywords["groups"]
    reach = [d * (k - 1) for d, k in zip(keywords["dilation"], kernel, strict=True)]
    padding = [min(p, r // 2) for p, r in zip(keywords["padding"], reach, strict=True)]
    more = [min(p, s - 1) for p, s in zip(padding, keywords["stride"], strict=True)]
    x, w = normal(seed, batch, *size, columns), normal(seed, columns, *kernel, 4)
    bias = normal(seed + 1, 4 * groups)
    rest = {"stride": keywords["stride"], "dilation": keywords["dilation"], "groups": groups}
    want = torch.nn.functional.conv_transpose3d(
        *(first(x), first(w), torch.tensor(bias).double()),
        padding=padding, output_padding=more, **rest,
    )  # fmt: skip
    pads = [(p, p - m) for p, m in zip(padding, more, strict=True)]
    got = conv_transpose(mx.array(x), mx.array(w), mx.array(bias), padding=pads, **rest)
    assert judge(got, want.movedim(1, -1).numpy(), 1e-12).fault == ""


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize(
    "shape, columns",
    [((1, 9, 30, 700), 40), ((2, 37, 41, 33), 300), ((1, 60, 70, 5), 12)],
    ids=["channels beyond a block", "columns and pixels beyond a task", "thin"],
)
def test_blocks(extension, dtype, shape, columns):
    x = mx.array(normal(0, *shape)).astype(dtype)
    w = mx.array(normal(1, columns, 3, 3, shape[-1]) * (9 * shape[-1]) ** -0.5).astype(dtype)
    want = torch.nn.functional.conv2d(first(to_numpy(x)), first(to_numpy(w)), None, 1, 1)
    bound = {mx.float32: 1e-11, mx.float16: 1e-9, mx.bfloat16: 1e-8}[dtype]
    assert judge(conv2d(x, w, padding=1), want.movedim(1, -1).numpy(), bound).fault == ""


def test_memory_layouts(extension):
    """Images and weights with channels first in memory, reversed, and one for all of a batch."""
    x, w = normal(0, 2, 5, 6, 20), normal(1, 9, 3, 2, 20)
    moved = mx.moveaxis(mx.array(np.moveaxis(x, -1, 1).copy()), 1, -1)
    turned = mx.moveaxis(mx.array(np.moveaxis(w, -1, 1).copy()), 1, -1)
    want = torch.nn.functional.conv2d(first(x), first(w)).movedim(1, -1).numpy()
    assert judge(conv2d(moved, turned), want, 1e-12).fault == ""
    flipped = conv2d(mx.array(x)[:, ::-1], mx.array(w)[:, ::-1])
    assert judge(flipped[:, ::-1], want, 1e-12).fault == ""
    alike = conv2d(mx.broadcast_to(mx.array(x[:1]), x.shape), mx.array(w))
    assert judge(alike, np.broadcast_to(want[:1], want.shape), 1e-12).fault == ""


def test_results_do_not_depend_on_threads(extension):
    x, w = mx.array(normal(0, 2, 19, 23, 40)), mx.array(normal(1, 70, 3, 3, 40))
    cotangent = mx.array(normal(2, 2, 19, 23, 70))
    results = []
    for threads in (1, 2, 5):
        extension.set_threads(threads)
        outputs, gradients = mx.vjp(lambda x, w: conv2d(x, w, None, 1, 1), [x, w], [cotangent])
        results.append([to_numpy(a) for a in (*outputs, *gradients)])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-3)


def test_no_pixels_give_no_gradient(extension):
    """An empty batch: the weights' gradient is zero, not what was in memory."""
    x, w = mx.zeros((0, 4, 4, 3)), mx.ones((5, 2, 2, 3))
    gradient = mx.grad(lambda w: conv2d(x, w).sum())(w)
    assert not to_numpy(gradient).any()


@pytest.mark.huge
def test_more_than_2_to_31_elements(extension):
    """Results far beyond 2^31: a column of ones over an image whose last rows differ."""
    rows = 2**20 + 3
    x = mx.concatenate(
        [mx.zeros((1, rows - 2, 64, 1), mx.bfloat16), mx.ones((1, 2, 64, 1), mx.bfloat16)], 1
    )
    got = conv2d(x, mx.ones((33, 2, 1, 1), mx.bfloat16))
    assert got.size > 2**31
    assert mx.array_equal(got[0, -3:, 0, 32], mx.array([0, 1, 2], mx.bfloat16)).item()
