"""fp8_linear: scale layouts, every code, errors, the variant policy and its launches."""

import mlx.core as mx
import numpy as np
import pytest

from torchmlx.kernels import e4m3
from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.fp8_matmul import choose, fp8_linear, launch, problem, reference, weights
from torchmlx.kernels.spec import OLDEST


def arrays(leading, n, k, scale=(), dtype=mx.float32):
    rng = np.random.default_rng(n * k)
    x = mx.array(rng.standard_normal((*leading, k), np.float32)).astype(dtype)
    factors = rng.uniform(0.5, 2.0, scale).astype(np.float32)
    return x, mx.array(weights(rng, (n, k))), mx.array(factors)


def test_every_code_is_read():
    """Each row of w holds one code, so each output is that code's value; NaN codes give NaN."""
    codes = mx.broadcast_to(mx.arange(256).astype(mx.uint8)[:, None], (256, 16))
    x = mx.zeros((1, 16)).at[0, 3].add(1.0)
    np.testing.assert_array_equal(to_numpy(fp8_linear(x, codes, mx.array(1.0)))[0], e4m3.VALUES)


@pytest.mark.parametrize("n, k", [(128, 128), (129, 128), (192, 320), (576, 100), (1, 1), (3, 300)])
def test_blocks_are_cut_off_at_the_edges(n, k):
    """192 rows are blocks of 128 and 64; transformers 5.24 takes 96 and 96."""
    grid = (-(-n // 128), -(-k // 128))
    x, w, scale = arrays((4,), n, k, grid)
    padded = np.zeros((grid[0] * 128, grid[1] * 128))
    padded[:n, :k] = e4m3.widen(np.array(w))
    scaled = padded.reshape(grid[0], 128, grid[1], 128) * to_numpy(scale)[:, None, :, None]
    want = to_numpy(x) @ scaled.reshape(padded.shape)[:n, :k].T
    assert judge(fp8_linear(x, w, scale), want, 1e-11).fault == ""


@pytest.mark.parametrize("block", [32, 64])
def test_other_blocks(block):
    x, w, scale = arrays((2, 3), 70, 100, (-(-70 // block), -(-100 // block)))
    want = reference(to_numpy(x), np.array(w), to_numpy(scale), block=block)
    assert judge(fp8_linear(x, w, scale, block), want, 1e-11).fault == ""


def test_one_scale_in_every_shape():
    x, w, scale = arrays((2,), 40, 50)
    want = fp8_linear(x, w, scale)
    for shape in ((1,), (1, 1)):
        assert mx.array_equal(fp8_linear(x, w, scale.reshape(shape)), want).item()
    assert mx.allclose(fp8_linear(x, w, mx.full((40, 1), scale)), want, rtol=1e-5).item()


@pytest.mark.parametrize(
    "leading, n, k", [((0,), 3, 4), ((2, 0), 3, 4), ((2,), 0, 4), ((2,), 3, 0)]
)
def test_empty(leading, n, k):
    x, w, scale = arrays(leading, n, k)
    np.testing.assert_array_equal(fp8_linear(x, w, scale), np.zeros((*leading, n)))
    np.testing.assert_array_equal(
        fp8_linear(x, w, scale, bias=mx.ones((n,))), np.ones((*leading, n))
    )


def test_half_results_are_rounded_once():
    """1 + eps/4 + bias -1 keeps the eps/4 that rounding before the bias would lose."""
    eps = mx.finfo(mx.bfloat16).eps
    x = mx.array([[1.0, eps / 4]], mx.bfloat16)
    w = mx.full((1, 2), 0x38, mx.uint8)
    got = fp8_linear(x, w, mx.array(1.0), bias=-mx.ones((1,), mx.bfloat16))
    assert got.item() == pytest.approx(eps / 4, rel=1e-6)


def test_the_largest_bfloat16_stays_finite():
    """e4m3 weights must not draw x into half's range."""
    x = mx.full((9, 64), 1e34, mx.bfloat16)
    got = fp8_linear(x, mx.full((8, 64), 0x38, mx.uint8), mx.array(1.0))
    np.testing.assert_allclose(to_numpy(got), 64e34, rtol=0.01)


@pytest.mark.parametrize(
    "x, w, scale, bias, message",
    [
        ((2, 3), (4, 5), (), None, r"x \(2, 3\) does not fit weights \(4, 5\)"),
        ((), (4, 5), (), None, r"x \(\) does not fit"),
        ((2, 3), (4, 3), (4,), None, r"scale \(4,\) is not \(\), \(4, 1\) or \(1, 1\)"),
        ((2, 300), (200, 300), (3, 2), None, r"scale \(3, 2\) is not .* \(200, 1\) or \(2, 3\)"),
        ((2, 3), (4, 3), (), (3,), r"bias \(3,\) does not fit"),
    ],
)
def test_shapes_that_do_not_fit(x, w, scale, bias, message):
    bias = None if bias is None else mx.zeros(bias)
    with pytest.raises(ValueError, match=message):
        fp8_linear(mx.zeros(x), mx.zeros(w, mx.uint8), mx.ones(scale), bias=bias)


def test_wrong_dtypes():
    x, w, scale = arrays((2,), 40, 50)
    with pytest.raises(TypeError, match="floating x and uint8 codes, not .*float32, .*float32"):
        fp8_linear(x, w.astype(mx.float32), scale)
    with pytest.raises(TypeError, match="a floating scale and a bias of x's dtype"):
        fp8_linear(x, w, scale, bias=mx.zeros((40,), mx.float16))


@pytest.mark.parametrize(
    "rows, n, k, variant",
    [
        (1, 4095, 64, "1x4"),
        (8, 4096, 64, "2x8"),
        (9, 4096, 64, "tile32"),
        (32, 64, 64, "tile32"),
        (33, 64, 64, "tile64"),
        (0, 64, 64, "fallback"),
        (1, 7, 1, "fallback"),
        (1, 8, 1, "1x4"),
    ],
)
def test_choose(rows, n, k, variant):
    for dtype in (mx.bfloat16, mx.float16, mx.float32):
        product = problem(mx.zeros((rows, k), dtype), mx.zeros((n, k)), mx.array(1.0))
        assert choose(product, OLDEST) == variant


def test_choose_leaves_other_blocks_and_float64_to_mlx():
    x, w, scale = mx.zeros((1, 256)), mx.zeros((256, 256)), mx.ones((4, 4))
    assert choose(problem(x, w, scale, block=64), OLDEST) == "fallback"
    assert choose(problem(mx.zeros((1, 256), mx.float64), w, mx.array(1.0)), OLDEST) == "fallback"


def test_launch():
    x, w = mx.zeros((3, 1, 600), mx.bfloat16), mx.zeros((70, 600))
    (few,) = launch(problem(x, w, mx.ones((1, 5))), "2x8")
    assert (few.program.name, few.grid, few.threadgroup) == ("fp8_few", (32, 40, 1), (32, 8, 1))
    assert (dict(few.template)["M"], few.threadgroup_bytes) == (4, 4 * 512 * 4)
    assert few.scalars == {"row_shift": 7, "column_shift": 7}
    assert few.outputs == {"out": ((3, 1, 70), mx.bfloat16)}
    (tile,) = launch(problem(mx.zeros((65, 600)), w, mx.ones((1, 5)), mx.ones((70,))), "tile64")
    assert (tile.program.name, tile.grid) == ("fp8_tiled_bias", (64, 8, 1))
    assert tile.threadgroup_bytes == 2 * 64 * 36 * 4


@pytest.mark.parametrize(
    "rows, n, block, variant, message",
    [
        (9, 64, 128, "1x4", "1 to 8 rows, not 9"),
        (0, 64, 128, "tile64", "no empty arrays"),
        (1, 64, 64, "1x4", "blocks of 128 weights, not of 64"),
    ],
)
def test_impossible_launch(rows, n, block, variant, message):
    scale = mx.ones((1, 1)) if block == 128 else mx.ones((1, 4))
    product = problem(mx.zeros((rows, 256)), mx.zeros((n, 256)), scale, block=block)
    with pytest.raises(ValueError, match=message):
        launch(product, variant)
