"""scaled_matmul against torch 2.13's F.scaled_mm, and what torch's CPU does not do: blocks."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch.nn.functional import ScalingType, scaled_mm

from torchmlx.kernels import e4m3
from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.fp8_matmul import nan_weights, weights
from torchmlx.kernels.scaled_matmul import choose, launch, problem, scaled_matmul
from torchmlx.kernels.spec import OLDEST

TORCH = {mx.float32: torch.float32, mx.float16: torch.float16, mx.bfloat16: torch.bfloat16}


def codes(m, n, k, fill=weights):
    rng = np.random.default_rng(m * n + k)
    return fill(rng, (m, k)), fill(rng, (n, k))


def fp8(values):
    return torch.tensor(values).view(torch.float8_e4m3fn)


@pytest.mark.parametrize("rowwise", [False, True])
@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("m", [1, 16, 48])
def test_as_in_torch(m, dtype, rowwise):
    n, k = 32, 64
    a, b = codes(m, n, k, nan_weights if m > 1 else weights)
    rng = np.random.default_rng(3)
    shapes = ((m, 1), (n, 1)) if rowwise else ((), ())
    sa, sb = (np.asarray(rng.uniform(1e-3, 2e-3, shape), np.float32) for shape in shapes)
    bias = rng.standard_normal(n).astype(np.float32)
    recipe = ScalingType.RowWise if rowwise else ScalingType.TensorWise
    want = scaled_mm(
        fp8(a),
        fp8(b).T,
        torch.tensor(sa),
        recipe,
        torch.tensor(sb).T if rowwise else torch.tensor(sb),
        recipe,
        bias=torch.tensor(bias).to(TORCH[dtype]),
        output_dtype=TORCH[dtype],
    )
    got = scaled_matmul(
        *map(mx.array, (a, b, sa, sb)), bias=mx.array(bias).astype(dtype), out_dtype=dtype
    )
    ulp = {mx.float32: 1e-5, mx.float16: 2e-3, mx.bfloat16: 1e-2}[dtype]
    np.testing.assert_allclose(
        to_numpy(got), want.double().numpy(), rtol=ulp, atol=ulp, equal_nan=True
    )


@pytest.mark.parametrize("m, n, k", [(3, 200, 300), (20, 64, 128), (2, 5, 100)])
def test_blocks(m, n, k):
    """Each product of 128 along K is scaled by the row's and the block's factor."""
    a, b = codes(m, n, k)
    blocks = -(-k // 128)
    rng = np.random.default_rng(0)
    sa = rng.uniform(0.5, 2.0, (m, blocks)).astype(np.float32)
    sb = rng.uniform(0.5, 2.0, (-(-n // 128), blocks)).astype(np.float32)
    want = np.zeros((m, n))
    for i in range(blocks):
        part = slice(128 * i, 128 * (i + 1))
        product = e4m3.widen(a[:, part]) @ e4m3.widen(b[:, part]).T
        want += product * sa[:, i, None] * np.repeat(sb[:, i], 128)[None, :n]
    got = scaled_matmul(*map(mx.array, (a, b, sa, sb)), out_dtype=mx.float32)
    assert judge(got, want, 1e-12).fault == ""


@pytest.mark.parametrize("m, n, k", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_empty(m, n, k):
    got = scaled_matmul(
        mx.zeros((m, k), mx.uint8), mx.zeros((n, k), mx.uint8), mx.array(1.0), mx.array(1.0)
    )
    assert got.dtype == mx.bfloat16
    np.testing.assert_array_equal(to_numpy(got), np.zeros((m, n)))


def test_codes_saturate():
    one = mx.full((1, 16), 0x7E, mx.uint8)
    got = scaled_matmul(one, one, mx.array(1.0), mx.array(-1.0), out_dtype=mx.uint8)
    assert got.item() == 0xFE


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"b": mx.zeros((4, 5), mx.uint8)}, ValueError, r"a \(2, 3\) and b \(4, 5\) are not"),
        ({"scale_a": mx.zeros((2,))}, ValueError, r"scale_a \(2,\) is not \(\), \(2, 1\)"),
        ({"scale_b": mx.zeros((1, 4))}, ValueError, r"scale_b \(1, 4\) is not \(\), \(4, 1\)"),
        ({"bias": mx.zeros((3,))}, ValueError, r"bias \(3,\) is not \(4,\)"),
        ({"a": mx.zeros((2, 3))}, TypeError, "takes uint8 codes, not .*float32"),
        ({"scale_a": mx.array(1)}, TypeError, "takes a floating scale_a, not .*int32"),
        ({"out_dtype": mx.int32}, TypeError, "half types or codes, not .*int32"),
    ],
)
def test_errors(change, error, message):
    right = {
        "a": mx.zeros((2, 3), mx.uint8),
        "b": mx.zeros((4, 3), mx.uint8),
        "scale_a": mx.array(1.0),
        "scale_b": mx.array(1.0),
    }
    with pytest.raises(error, match=message):
        scaled_matmul(**{**right, **change})


@pytest.mark.parametrize(
    "m, n, variant",
    [(1, 64, "1x4"), (8, 4096, "2x8"), (9, 64, "tile32"), (33, 64, "tile64"), (0, 64, "fallback")],
)
def test_choose(m, n, variant):
    x, w, one = mx.zeros((m, 64)), mx.zeros((n, 64)), mx.array(1.0)
    assert choose(problem(x, w, one, one, dtype=mx.uint8), OLDEST) == variant


def test_tiles_are_floats_where_x_has_blocks():
    x, w = mx.zeros((40, 256)), mx.zeros((70, 256))
    for scale, tile in ((mx.ones((40, 2)), mx.float32), (mx.ones((40, 1)), mx.float16)):
        (got,) = launch(problem(x, w, scale, mx.ones((70, 1)), dtype=mx.float16), "tile64")
        assert dict(got.template)["TILE"] == tile


def test_impossible_launch():
    x, one = mx.zeros((0, 64)), mx.array(1.0)
    with pytest.raises(ValueError, match="no empty arrays"):
        launch(problem(x, mx.zeros((70, 64)), one, one, dtype=mx.float16), "tile64")
