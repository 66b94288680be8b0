"""linear: shapes, errors, the variant policy and its launches."""

import mlx.core as mx
import numpy as np
import pytest
import torch

from torchmlx.kernels.accuracy import to_numpy
from torchmlx.kernels.gemv import COPY_ROWS, choose, launch, linear, problem
from torchmlx.kernels.spec import OLDEST


def arrays(leading, n, k, dtype=mx.float32, bias=True):
    rng = np.random.default_rng(n * k)
    shapes = [(*leading, k), (n, k), (n,)][: 3 if bias else 2]
    return [mx.array(rng.standard_normal(shape, np.float32)).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("leading", [(), (1,), (7,), (COPY_ROWS,), (2, 3), (2, 1, 9)])
def test_leading_axes_as_in_torch(leading, bias):
    inputs = arrays(leading, 12, 37, bias=bias)
    want = torch.nn.functional.linear(*(torch.tensor(np.array(a)) for a in inputs)).numpy()
    np.testing.assert_allclose(np.array(linear(*inputs)), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "leading, n, k", [((0,), 3, 4), ((2, 0), 3, 4), ((2,), 0, 4), ((0,), 0, 4)]
)
def test_empty_results(leading, n, k):
    for bias in (False, True):
        got = linear(*arrays(leading, n, 4, bias=bias))
        assert got.shape == (*leading, n)
        mx.eval(got)


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
def test_an_empty_inner_axis_leaves_the_bias(leading):
    x, w, bias = arrays(leading, 3, 0)
    np.testing.assert_array_equal(linear(x, w), np.zeros((*leading, 3)))
    np.testing.assert_array_equal(linear(x, w, bias), np.broadcast_to(bias, (*leading, 3)))


def test_gradients_of_an_empty_batch():
    x, w, bias = arrays((0,), 3, 4)
    gradients = mx.grad(lambda *a: linear(*a).sum(), argnums=(0, 1, 2))(x, w, bias)
    assert [g.shape for g in gradients] == [(0, 4), (3, 4), (3,)]
    np.testing.assert_array_equal(gradients[1], np.zeros((3, 4)))


def test_a_gradient_of_nothing_by_rows_apart_comes_back():
    """MLX's Reduce on the CPU does not from such a sum (0.32.4)."""
    x, w, bias = arrays((0,), 3, 4)
    columns = mx.zeros((3, 0)).T
    _, gradients = mx.vjp(linear, [x, w, bias], [columns])
    np.testing.assert_array_equal(gradients[2], np.zeros(3))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_bias_is_added_before_rounding(dtype):
    """1 + eps/4 + bias -1 keeps the eps/4 that rounding before the bias would lose."""
    eps = mx.finfo(dtype).eps
    x = mx.array([[1.0, eps / 4]], dtype)
    got = linear(x, mx.ones((1, 2), dtype), -mx.ones((1,), dtype))
    assert got.item() == pytest.approx(eps / 4, rel=1e-6)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_types_accumulate_in_float32(dtype):
    """4096 ones and 4096 halves: sums in the half type stop growing at 256 (bf16) or 2048."""
    x = mx.concatenate([mx.ones((1, 4096), dtype), mx.full((1, 4096), 0.5, dtype)], axis=1)
    assert linear(x, mx.ones((1, 8192), dtype)).item() == 6144.0
    gradient = mx.grad(lambda b: linear(mx.ones((8192, 1), dtype), mx.ones((1, 1), dtype), b).sum())
    assert gradient(mx.zeros((1,), dtype)).item() == 8192.0


def test_nan_and_infinity_stay_in_their_row():
    x = mx.array([[1.0, 2.0], [float("nan"), 0.0], [float("inf"), 1.0]])
    got = to_numpy(linear(x, mx.array([[1.0, 1.0], [0.0, 1.0]])))
    np.testing.assert_array_equal(got, [[3.0, 2.0], [np.nan, np.nan], [np.inf, np.nan]])


@pytest.mark.parametrize(
    "x, w, bias, message",
    [
        ((2, 3), (4, 5), None, r"x \(2, 3\) does not fit weights \(4, 5\)"),
        ((2, 3), (3,), None, r"does not fit weights \(3,\)"),
        ((), (4, 1), None, r"x \(\) does not fit"),
        ((2, 3), (4, 3), (3,), r"bias \(3,\) does not fit weights \(4, 3\)"),
        ((2, 3), (4, 3), (1, 4), r"bias \(1, 4\) does not fit"),
    ],
)
def test_shapes_that_do_not_fit(x, w, bias, message):
    with pytest.raises(ValueError, match=message):
        linear(mx.zeros(x), mx.zeros(w), None if bias is None else mx.zeros(bias))


def test_mixed_dtypes_are_refused():
    with pytest.raises(TypeError, match="one dtype, not .*float32.*bfloat16"):
        linear(mx.zeros((2, 3)), mx.zeros((4, 3), mx.bfloat16))


@pytest.mark.parametrize(
    "rows, n, half, full",
    [
        (1, 8192, "1x8", "1x4"),
        (1, 8191, "1x4", "1x4"),
        (1, 2048, "1x4", "1x4"),
        (1, 2047, "1x4", "1x16"),
        (2, 8192, "4x8", "4x8"),
        (8, 8191, "4x4", "4x4"),
        (2, 2047, "1x4", "1x16"),
        (9, 4096, "fallback", "fallback"),
        (0, 4096, "fallback", "fallback"),
        (1, 0, "fallback", "fallback"),
    ],
)
def test_choose(rows, n, half, full):
    for dtype, variant in ((mx.bfloat16, half), (mx.float16, half), (mx.float32, full)):
        product = problem(mx.zeros((rows, 64), dtype), mx.zeros((n, 64), dtype))
        assert choose(product, OLDEST) == variant
    assert choose(problem(mx.zeros((1, 64), mx.int32), mx.zeros((8, 64))), OLDEST) == "fallback"


def test_launch():
    product = problem(mx.zeros((3, 1, 64), mx.bfloat16), mx.zeros((10, 64)), mx.zeros((10,)))
    (wide,) = launch(product, "4x8")
    assert (wide.program.name, wide.grid, wide.threadgroup) == (
        "gemv_bias",
        (32, 3, 1),
        (32, 8, 1),
    )
    assert wide.outputs == {"out": ((3, 1, 10), mx.bfloat16)}
    assert dict(wide.template) == {
        "T": mx.bfloat16,
        "M": 3,
        "COLUMNS": 4,
        "VEC": 8,
        "UNROLL": 1,
    }


def test_impossible_launch():
    with pytest.raises(ValueError, match="1 to 8 rows"):
        launch(problem(mx.zeros((9, 64)), mx.zeros((10, 64))), "1x4")
