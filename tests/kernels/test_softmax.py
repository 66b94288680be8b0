"""Softmax: torch's edge cases, the variant policy, and the Metal that MLX generates."""

import mlx.core as mx
import numpy as np
import pytest
import torch

from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.softmax import choose, launch, problem, reference, softmax
from torchmlx.kernels.spec import OLDEST

INF, NAN = float("inf"), float("nan")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

SPECIALS = [
    [-INF, -INF, -INF, -INF],
    [1.0, 2.0, -INF, 3.0],
    [INF, 1.0, 2.0, 3.0],
    [NAN, 1.0, 2.0, 3.0],
    [INF, INF, -INF, 0.0],
    [-INF, NAN, -INF, -INF],
    [1e4, -1e4, 65504.0, 0.0],
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("repeats", [1, 100, 600])
def test_special_rows_as_in_torch(dtype, repeats):
    """Short rows, and rows long enough for every path."""
    values = np.repeat(np.array(SPECIALS, np.float32), repeats, axis=1)
    want = torch.softmax(torch.tensor(values).to(DTYPES[dtype]), -1).float().numpy()
    got = softmax(mx.array(values).astype(getattr(mx, dtype)))
    np.testing.assert_allclose(to_numpy(got), want, rtol=1e-5, atol=1e-9, equal_nan=True)
    np.testing.assert_array_equal(np.isnan(reference(values, 1)), np.isnan(want))


@pytest.mark.parametrize("shape, axis", [((2, 0), -1), ((2, 0), 0), ((0, 3), 1), ((0,), 0)])
def test_empty(shape, axis):
    got = softmax(mx.zeros(shape, mx.bfloat16), axis)
    assert (got.shape, got.dtype) == (shape, mx.bfloat16)
    mx.eval(got)


@pytest.mark.parametrize("axis", [0, -1])
def test_zero_dimensions(axis):
    got = softmax(mx.array(3.0), axis)
    assert (got.shape, got.item()) == ((), 1.0)
    assert np.isnan(softmax(mx.array(INF), axis).item())


def test_float64_on_the_cpu():
    with mx.stream(mx.cpu):
        x = mx.array(np.linspace(-3, 3, 400), dtype=mx.float64)
        got = np.array(softmax(x))
    np.testing.assert_allclose(got, reference(np.linspace(-3, 3, 400), 0), rtol=1e-13)


def test_long_rows_sum_to_one():
    """MLX's own CPU softmax misses 1 by 8e-5 here."""
    x = mx.array(4 * np.random.default_rng(0).standard_normal((1, 49_152), np.float32))
    assert to_numpy(softmax(x)).sum() == pytest.approx(1.0, abs=1e-6)
    along_first = softmax(x.T, 0)
    np.testing.assert_allclose(to_numpy(along_first).T, to_numpy(softmax(x)), rtol=1e-5)


@pytest.mark.parametrize("shape, axis", [((1, 151_936), 1), ((5000, 3), 0), ((4, 9), -1)])
def test_gradient_as_in_torch(shape, axis):
    rng = np.random.default_rng(4)
    x, cotangent = rng.standard_normal((2, *shape), np.float32)
    primal = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    torch.softmax(primal, axis).backward(torch.tensor(cotangent, dtype=torch.float64))
    (got,) = mx.vjp(lambda a: softmax(a, axis), [mx.array(x)], [mx.array(cotangent)])[1]
    assert judge(got, primal.grad.numpy(), 1e-12).fault == ""


@pytest.mark.parametrize("axis", [2, -3])
def test_axis_out_of_range(axis):
    with pytest.raises(ValueError, match=f"axis {axis} is out of range for 2 dimensions"):
        softmax(mx.zeros((2, 3)), axis)


def test_integers_are_refused():
    with pytest.raises(TypeError, match="floating dtype, not .*int32"):
        softmax(mx.zeros((2, 3), mx.int32))


@pytest.mark.parametrize(
    "shape, axis, variant",
    [
        ((1, 151_936), 1, "split"),
        ((255, 2049), 1, "split"),
        ((1, 2048), 1, "looped"),
        ((256, 2049), 1, "looped"),
        ((1, 1025), 1, "looped"),
        ((1, 1024), 1, "row"),
        ((8, 12, 77, 77), 3, "row"),
        ((5,), 0, "row"),
        ((4, 9, 1, 1), 1, "row"),
        ((4, 9, 2), 1, "strided"),
        ((151_936, 2), 0, "strided"),
        ((3, 0), 1, "fallback"),
    ],
)
def test_choose(shape, axis, variant):
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        assert choose(problem(mx.zeros(shape, dtype), axis), OLDEST) == variant
    assert choose(problem(mx.zeros(shape, mx.float64), axis), OLDEST) == "fallback"


def geometry(shape, axis, variant, dtype=mx.float32):
    launches = launch(problem(mx.zeros(shape, dtype), axis), variant)
    return [(each.program.name, each.grid, each.threadgroup) for each in launches]


def test_launch():
    assert geometry((10, 40), 1, "row") == [("softmax_row", (32, 10, 1), (32, 4, 1))]
    assert geometry((3, 5000), 1, "looped") == [("softmax_looped", (256, 3, 1), (256, 1, 1))]
    assert geometry((3, 5000), 1, "split") == [
        ("softmax_partial", (768, 3, 1), (256, 1, 1)),
        ("softmax_finalize", (768, 3, 1), (256, 1, 1)),
    ]
    assert geometry((2, 7, 33), 1, "strided") == [("softmax_strided", (64, 8, 2), (32, 8, 1))]


@pytest.mark.parametrize("n, per_lane", [(1, 1), (32, 1), (33, 2), (65, 4), (512, 16), (1024, 32)])
def test_row_registers(n, per_lane):
    (row,) = launch(problem(mx.zeros((2, n)), 1), "row")
    assert dict(row.template) == {"T": mx.float32, "PER_LANE": per_lane}


@pytest.mark.parametrize(
    "shape, axis, variant, message",
    [
        ((2, 1025), 1, "row", "row softmax holds 1024 columns, not 1025"),
        ((4, 9, 2), 1, "row", "row softmax cannot serve 2 values after the axis"),
        ((4, 9), 1, "strided", "strided softmax cannot serve 1 values after the axis"),
    ],
)
def test_impossible_launch(shape, axis, variant, message):
    with pytest.raises(ValueError, match=message):
        launch(problem(mx.zeros(shape), axis), variant)
