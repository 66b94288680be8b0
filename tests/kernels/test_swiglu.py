"""swiglu: torch's values and gradients, errors, the variant policy and its launches."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch.nn.functional import linear, silu

from torchmlx.kernels.accuracy import judge
from torchmlx.kernels.spec import OLDEST
from torchmlx.kernels.swiglu import choose, launch, problem, swiglu

INF, NAN = float("inf"), float("nan")


def arrays(leading, n, k, dtype=mx.float32):
    rng = np.random.default_rng(n * k + 1)
    shapes = [(*leading, k), (2 * n, k)]
    return [mx.array(rng.standard_normal(shape, np.float32)).astype(dtype) for shape in shapes]


def by_torch(x, gate_up):
    gate, up = linear(x, gate_up).chunk(2, -1)
    return silu(gate) * up


@pytest.mark.parametrize("leading", [(), (1,), (8,), (9,), (2, 3), (0,), (2, 0)])
def test_values_and_gradients_as_in_torch(leading):
    inputs = arrays(leading, 12, 37)
    primals = [torch.tensor(np.array(a), dtype=torch.float64, requires_grad=True) for a in inputs]
    want = by_torch(*primals)
    want.sum().backward()
    assert judge(swiglu(*inputs), want.detach().numpy(), 1e-12).fault == ""
    gradients = mx.grad(lambda *a: swiglu(*a).sum(), argnums=(0, 1))(*inputs)
    for gradient, primal in zip(gradients, primals, strict=True):
        assert judge(gradient, primal.grad.numpy(), 1e-12).fault == ""


@pytest.mark.parametrize("leading", [(1,), (9,), (2, 3), (0,)])
def test_weights_apart_give_values_and_gradients_too(leading):
    x, both = arrays(leading, 12, 37)
    inputs = [x, both[:12], both[12:]]
    primals = [torch.tensor(np.array(a), dtype=torch.float64, requires_grad=True) for a in inputs]
    want = silu(linear(primals[0], primals[1])) * linear(primals[0], primals[2])
    want.sum().backward()
    assert judge(swiglu(*inputs), want.detach().numpy(), 1e-12).fault == ""
    gradients = mx.grad(lambda *a: swiglu(*a).sum(), argnums=(0, 1, 2))(*inputs)
    for gradient, primal in zip(gradients, primals, strict=True):
        assert judge(gradient, primal.grad.numpy(), 1e-12).fault == ""


def test_weights_apart_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"gate \(4, 3\) and up \(5, 3\) are not alike"):
        swiglu(mx.zeros((2, 3)), mx.zeros((4, 3)), mx.zeros((5, 3)))
    with pytest.raises(TypeError, match="one dtype, not .*float32.*float16"):
        swiglu(mx.zeros((2, 3)), mx.zeros((4, 3)), mx.zeros((4, 3), mx.float16))


@pytest.mark.parametrize("leading, n, k", [((2,), 0, 4), ((), 0, 4), ((0,), 0, 4), ((2,), 3, 0)])
def test_empty_weights(leading, n, k):
    np.testing.assert_array_equal(swiglu(*arrays(leading, n, k)), np.zeros((*leading, n)))


def test_saturation_and_special_values_as_in_torch():
    x = np.array([[1.0], [200.0], [-200.0], [INF], [-INF], [NAN]], np.float32)
    weights = np.array([[1.0], [0.5]], np.float32)
    got = swiglu(mx.array(x), mx.array(weights))
    want = by_torch(torch.tensor(x), torch.tensor(weights)).numpy()
    np.testing.assert_allclose(np.array(got), want, rtol=1e-6, equal_nan=True)


@pytest.mark.parametrize(
    "x, weights, message",
    [
        ((2, 3), (4, 5), r"x \(2, 3\) does not fit weights \(4, 5\)"),
        ((2, 3), (3,), r"does not fit weights \(3,\)"),
        ((), (4, 1), r"x \(\) does not fit"),
        ((2, 3), (5, 3), "5 rows are no gate and up rows"),
    ],
)
def test_shapes_that_do_not_fit(x, weights, message):
    with pytest.raises(ValueError, match=message):
        swiglu(mx.zeros(x), mx.zeros(weights))


def test_mixed_dtypes_are_refused():
    with pytest.raises(TypeError, match="one dtype, not .*float32.*bfloat16"):
        swiglu(mx.zeros((2, 3)), mx.zeros((4, 3), mx.bfloat16))


@pytest.mark.parametrize(
    "rows, n, variant",
    [
        (1, 512, "1x4"),
        (1, 4095, "1x4"),
        (1, 4096, "1x8"),
        (2, 1023, "1x4"),
        (2, 1024, "2x4"),
        (8, 8192, "2x4"),
        (9, 4096, "fallback"),
        (0, 4096, "fallback"),
        (1, 0, "fallback"),
    ],
)
def test_choose(rows, n, variant):
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        pair = problem(mx.zeros((rows, 64), dtype), mx.zeros((2 * n, 64), dtype))
        assert choose(pair, OLDEST) == variant


def test_launch():
    pair = problem(mx.zeros((3, 1, 64), mx.bfloat16), mx.zeros((22, 64)))
    (wide,) = launch(pair, "2x4")
    assert (wide.grid, wide.threadgroup) == ((32, 6, 1), (32, 4, 1))
    assert wide.outputs == {"out": ((3, 1, 11), mx.bfloat16)}
    assert dict(wide.template) == {"T": mx.bfloat16, "M": 3, "COLUMNS": 2, "VEC": 4}


def test_impossible_launch():
    with pytest.raises(ValueError, match="1 to 8 rows"):
        launch(problem(mx.zeros((9, 64)), mx.zeros((10, 64))), "1x4")
