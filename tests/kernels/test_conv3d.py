"""conv3d: torch's values and gradients, the cache, pieces, errors, the variant policy."""

from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
import torch

from torchmlx.kernels import convolving as module
from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.conv3d import choose, conv3d, launch, problem
from torchmlx.kernels.dispatch import use
from torchmlx.kernels.simulator import simulated
from torchmlx.kernels.spec import OLDEST

CAUSAL = ((2, 0), (1, 1), (1, 1))


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def by_torch(x, w, bias, stride, padding, cache=None, upsample=False):
    """Channels last in and out, in the dtype given; x, w, bias, cache are tensors."""
    x = x if cache is None else torch.cat([cache, x], 1)
    x = x.permute(0, 4, 1, 2, 3)
    if upsample:
        x = torch.nn.functional.interpolate(x, scale_factor=(1, 2, 2), mode="nearest")
    flat = [n for pair in reversed(padding) for n in pair]
    x = torch.nn.functional.pad(x, flat)
    out = torch.nn.functional.conv3d(x, w.permute(0, 4, 1, 2, 3), bias, stride)
    return out.permute(0, 2, 3, 4, 1)


@pytest.mark.parametrize("upsample", [False, True])
@pytest.mark.parametrize("cached", [0, 2])
@pytest.mark.parametrize("stride", [(1, 1, 1), (2, 1, 2), (1, 3, 2)])
def test_values_and_gradients_as_in_torch(stride, cached, upsample):
    given = [normal(0, 2, 4, 5, 6, 7), normal(1, 5, 2, 3, 3, 7), normal(2, 5)]
    given += [normal(3, 2, cached, 5, 6, 7)] if cached else []
    padding = ((0, 1), (2, 0), (1, 1))
    primals = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in given]
    want = by_torch(*primals[:3], stride, padding, *primals[3:], upsample=upsample)
    weights = normal(4, *want.shape)
    (want * torch.tensor(weights)).sum().backward()

    def function(x, w, bias, cache=None):
        return conv3d(x, w, bias, stride, padding, cache, upsample)

    results, gradients = mx.vjp(function, [mx.array(a) for a in given], [mx.array(weights)])
    assert judge(results[0], want.detach().numpy(), 1e-12).fault == ""
    for gradient, primal in zip(gradients, primals, strict=True):
        assert judge(gradient, primal.grad.numpy(), 1e-12).fault == ""


def test_frame_by_frame_with_a_cache_is_the_whole():
    """Two cached frames stand for the two that a causal kernel looks back to."""
    x, w = mx.array(normal(0, 1, 6, 4, 5, 8)), mx.array(normal(1, 6, 3, 3, 3, 8))
    whole = conv3d(x, w, padding=CAUSAL)
    for first, last in pairwise([0, 1, 2, 3, 6]):
        cache = x[:, max(first - 2, 0) : first]
        part = conv3d(x[:, first:last], w, padding=CAUSAL, cache=cache)
        np.testing.assert_allclose(part, whole[:, first:last], rtol=1e-4, atol=1e-4)


def test_a_cache_takes_the_place_of_padding():
    """Output frames: two cached frames leave none of two in front, one leaves one."""
    x, w = mx.zeros((1, 4, 2, 2, 3)), mx.zeros((5, 3, 1, 1, 3))
    padding = ((2, 0), (0, 0), (0, 0))
    for cached in (0, 1, 2, 3):
        cache = mx.zeros((1, cached, 2, 2, 3))
        assert conv3d(x, w, padding=padding, cache=cache).shape[1] == 4 + max(cached - 2, 0)
    assert conv3d(x, w, stride=(2, 1, 1), cache=mx.zeros((1, 1, 2, 2, 3))).shape[1] == 2


@pytest.mark.parametrize("limit", [1, 150, 1000])
def test_pieces_are_the_whole(monkeypatch, limit):
    arrays = [mx.array(a) for a in (normal(0, 2, 3, 5, 4, 6), normal(1, 7, 2, 3, 2, 6))]
    stride, padding = (1, 2, 1), ((1, 0), (1, 2), (0, 1))
    whole = conv3d(*arrays, mx.ones((7,)), stride, padding)
    monkeypatch.setattr(module, "PIECE", limit)
    got = conv3d(*arrays, mx.ones((7,)), stride, padding)
    np.testing.assert_allclose(got, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_depth_taps_are_summed_in_float32(dtype):
    """2048 + 1 - 2048: MLX's conv3d sums depth taps in the half type and returns 0."""
    x = mx.array([2048.0, 1.0, -2048.0]).astype(dtype).reshape(1, 3, 1, 1, 1)
    assert conv3d(x, mx.ones((1, 3, 1, 1, 1), dtype)).item() == 1.0


def test_many_outputs_of_wide_channels_are_not_zero():
    """The shape of mlx#3979 (channels multiples of 32, together over 256), in small."""
    x = mx.array(normal(0, 3, 1, 6, 6, 128))
    w = mx.array(normal(1, 160, 1, 3, 3, 128))
    want = by_torch(*(torch.tensor(np.array(a)).double() for a in (x, w)), None, 1, ((0, 0),) * 3)
    assert judge(conv3d(x, w), want.numpy(), 1e-11).fault == ""


@pytest.mark.parametrize(
    "x, w, out",
    [((0, 2, 3, 3, 4), (5, 1, 1, 1, 4), (0, 2, 3, 3, 5))]
    + [((1, 2, 3, 3, 4), (0, 1, 1, 1, 4), (1, 2, 3, 3, 0))]
    + [((1, 2, 3, 3, 0), (5, 1, 1, 1, 0), (1, 2, 3, 3, 5))],
)
def test_empty(x, w, out):
    got = conv3d(mx.zeros(x), mx.zeros(w), mx.ones(w[:1]))
    assert got.shape == out
    np.testing.assert_array_equal(got, np.ones(out))


def test_float64_on_the_cpu():
    with mx.stream(mx.cpu):
        x = mx.array(normal(0, 1, 2, 3, 4, 5)).astype(mx.float64)
        w = mx.array(normal(1, 3, 2, 2, 2, 5)).astype(mx.float64)
        got = conv3d(x, w)
        want = by_torch(*(torch.tensor(np.array(a)) for a in (x, w)), None, 1, ((0, 0),) * 3)
        np.testing.assert_allclose(np.array(got), want.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "x, w, keywords, message",
    [
        ((2, 3, 3, 4), (5, 1, 1, 4), {}, r"x as \[B, D, H, W, C\], not \(2, 3, 3, 4\)"),
        ((1, 2, 3, 3, 4), (5, 1, 1, 1, 3), {}, r"does not fit weights \(5, 1, 1, 1, 3\)"),
        ((1, 2, 3, 3, 4), (5, 1, 1, 4), {}, "does not fit weights"),
        ((1, 2, 3, 3, 4), (5, 3, 1, 1, 4), {}, "reach over x"),
        ((1, 2, 3, 3, 4), (5, 1, 1, 1, 4), {"bias": (4,)}, r"bias \(4,\) does not fit"),
        ((1, 2, 3, 3, 4), (5, 1, 1, 1, 4), {"cache": (1, 1, 3, 2, 4)}, "cache .* does not fit x"),
        ((1, 2, 3, 3, 4), (5, 1, 1, 1, 4), {"cache": (2, 3, 3, 4)}, "cache .* does not fit x"),
        ((1, 2, 3, 3, 4), (5, 1, 1, 1, 4), {"stride": 0}, "stride"),
        ((1, 2, 3, 3, 4), (5, 1, 1, 1, 4), {"stride": (1, 2)}, "is not one number or 3"),
        ((1, 2, 3, 3, 4), (5, 1, 1, 1, 4), {"padding": (1, 2)}, "is not one number or 3"),
        ((1, 2, 3, 3, 4), (5, 1, 1, 1, 4), {"padding": (0, (-1, 0), 0)}, "padding"),
    ],
)
def test_what_does_not_fit(x, w, keywords, message):
    arrays = {n: mx.zeros(v) if n in ("bias", "cache") else v for n, v in keywords.items()}
    with pytest.raises(ValueError, match=message):
        conv3d(mx.zeros(x), mx.zeros(w), **arrays)


def test_dtypes_that_do_not_fit():
    x, w = mx.zeros((1, 1, 1, 1, 2)), mx.zeros((1, 1, 1, 1, 2))
    with pytest.raises(TypeError, match="one floating dtype"):
        conv3d(x, w.astype(mx.bfloat16))
    with pytest.raises(TypeError, match="one floating dtype, not .*int32"):
        conv3d(x.astype(mx.int32), w.astype(mx.int32))


def describe(x, w, dtype=mx.bfloat16, cached=0, stride=(1, 1, 1), padding=((0, 0),) * 3):
    cache = mx.zeros((x[0], cached, *x[2:]), dtype) if cached else None
    arrays = (mx.zeros(x, dtype), mx.zeros(w, dtype), None, cache)
    return problem(*arrays, stride=stride, padding=padding, upsample=False)


@pytest.mark.parametrize(
    "channels, variant",
    [
        (0, "fallback"),
        (1, "tile16"),
        (16, "tile16"),
        (17, "tile32"),
        (32, "tile32"),
        (33, "tile64"),
    ],
)
def test_choose(channels, variant):
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        conv = describe((1, 1, 4, 4, 8), (channels, 1, 1, 1, 8), dtype)
        assert choose(conv, OLDEST) == variant
    conv = describe((1, 1, 4, 4, 8), (channels, 1, 1, 1, 8), mx.float64)
    assert choose(conv, OLDEST) == "fallback"


def test_more_pixels_than_32_bits_count_go_to_the_fallback():
    small = describe((1, 4, 2**15, 2**15 - 1, 1), (1, 1, 1, 1, 1))
    large = describe((1, 4, 2**15, 2**15, 1), (1, 1, 1, 1, 1))
    assert (choose(small, OLDEST), choose(large, OLDEST)) == ("tile16", "fallback")
    with pytest.raises(ValueError, match="fewer pixels"):
        launch(large, "tile16")


def test_launch_of_a_decoder_layer():
    conv = describe((1, 4, 9, 10, 256), (130, 3, 3, 3, 256), cached=2, padding=CAUSAL)
    (got,) = launch(conv, "tile64")
    assert got.program.name == "conv_cache"
    assert (got.grid, got.threadgroup) == ((32 * 3, 4 * 6, 1), (32, 4, 1))
    assert got.outputs == {"out": ((1, 4, 9, 10, 130), mx.bfloat16)}
    assert got.scalars == {
        **{"out_d": 4, "out_h": 9, "out_w": 10, "stride_d": 1, "stride_h": 1, "stride_w": 1},
        **{"front": 2, "top": 1, "left": 1, "cache_d": 2, "first_d": 0, "last_d": 3},
    }


def test_taps_that_see_only_padding_are_left_out():
    """A first frame meets the last of three taps along time."""
    conv = describe((1, 1, 4, 4, 8), (8, 3, 3, 3, 8), padding=CAUSAL)
    scalars = launch(conv, "tile16")[0].scalars
    assert (scalars["first_d"], scalars["last_d"]) == (2, 3)


def test_the_fallback_takes_no_part_of_the_graph_to_the_host():
    """It records with shapes alone: nothing is evaluated."""
    x = mx.zeros((1, 2, 64, 64, 256), mx.bfloat16)
    out = conv3d(x, mx.zeros((256, 3, 3, 3, 256), mx.bfloat16), padding=CAUSAL)
    assert (out.shape, out.dtype) == ((1, 2, 64, 64, 256), mx.bfloat16)


@pytest.mark.parametrize("channels, out", [(64, 128), (160, 64), (64, 12)])
def test_traffic_of_a_tile(clang, channels, out):
    """At most a tenth over what tiles of 64 x 64, or 64 x O, must read; whole lines at a time."""
    pads, dtype = ((2, 0), (1, 1), (1, 1)), mx.bfloat16
    x, w = mx.zeros((1, 2, 8, 8, channels), dtype), mx.zeros((out, 3, 3, 3, channels), dtype)
    with simulated("fast", traffic=True) as run:
        conv3d(x, w, padding=pads, cache=x)
    (traffic,) = (result.traffic for result in run.results)
    m, n, k = 128, out, 27 * channels
    least = (m * n * k * (1 / 64 + 1 / min(n, 64)) + m * n) * 2
    assert traffic.requested <= 1.1 * least
    assert traffic.coalesced_share >= 0.9


@pytest.mark.huge
@pytest.mark.parametrize("simulator", [False, True])
def test_more_elements_than_31_bits_count(clang, simulator):
    """The four corners of an image of 2^31 + 2^16 values."""
    height, width = 2**16, 2**15 + 1
    values = np.zeros((1, 1, height, width, 1), np.float16)
    values[0, 0, :: height - 1, :: width - 1, 0] = [[1, 2], [3, 4]]
    x, w = mx.array(values), mx.ones((1, 1, 1, 1, 1), mx.float16)
    with simulated("fast") if simulator else use("fallback"):
        got = conv3d(x, w, stride=(1, height - 1, width - 1))
    assert got.flatten().tolist() == [1, 2, 3, 4]


def test_overflow_of_half_becomes_infinity():
    x = mx.full((1, 1, 1, 1, 2), 60000.0, mx.float16)
    assert to_numpy(conv3d(x, mx.ones((1, 1, 1, 1, 2), mx.float16))).item() == np.inf
