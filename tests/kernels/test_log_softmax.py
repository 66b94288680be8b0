"""log_softmax: torch's edge cases and gradients, and that it shares softmax's policy."""

import mlx.core as mx
import numpy as np
import pytest
import torch

from torchmlx.kernels import log_softmax as module
from torchmlx.kernels import softmax as plain
from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.dispatch import use
from torchmlx.kernels.log_softmax import launch, log_softmax
from torchmlx.kernels.recording import record

INF, NAN = float("inf"), float("nan")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

SPECIALS = [
    [-INF, -INF, -INF, -INF],
    [1.0, 2.0, -INF, 3.0],
    [INF, 1.0, 2.0, 3.0],
    [NAN, 1.0, 2.0, 3.0],
    [-INF, NAN, -INF, -INF],
    [1e4, -1e4, 65504.0, 0.0],
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("repeats", [1, 600])
def test_special_rows_as_in_torch(dtype, repeats):
    """torch rounds -0.4076 to the wrong neighbour in half types: within an ulp, then."""
    ulp = {"float32": 1e-6, "float16": 2**-10, "bfloat16": 2**-7}[dtype]
    values = np.repeat(np.array(SPECIALS, np.float32), repeats, axis=1)
    want = torch.log_softmax(torch.tensor(values).to(DTYPES[dtype]), -1).float().numpy()
    got = log_softmax(mx.array(values).astype(getattr(mx, dtype)))
    np.testing.assert_allclose(to_numpy(got), want, rtol=ulp, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("shape, axis", [((1, 50_000), 1), ((900, 3), 0), ((4, 9), -1), ((), 0)])
def test_values_and_gradient_as_in_torch(shape, axis):
    rng = np.random.default_rng(4)
    x, cotangent = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    primal = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    want = torch.log_softmax(primal, axis)
    want.backward(torch.tensor(cotangent, dtype=torch.float64))
    function = lambda a: log_softmax(a, axis)  # noqa: E731
    (got,), (gradient,) = mx.vjp(function, [mx.array(x)], [mx.array(cotangent)])
    assert judge(got, want.detach().numpy(), 1e-12).fault == ""
    assert judge(gradient, primal.grad.numpy(), 1e-12).fault == ""


def test_gradient_of_unlikely_values_in_bfloat16():
    """Probabilities of e^-20 keep their share of the gradient, though -20 is rounded."""
    x = mx.array([[0.0, -20.06, -20.06]], mx.bfloat16)
    cotangent = mx.array([[1.0, 0.0, 0.0]], mx.bfloat16)
    (got,) = mx.vjp(log_softmax, [x], [cotangent])[1]
    want = -to_numpy(plain.softmax(x.astype(mx.float32)))
    np.testing.assert_allclose(to_numpy(got)[:, 1:], want[:, 1:], rtol=2**-8)


@pytest.mark.parametrize("shape, axis", [((2, 0), -1), ((0, 3), 1), ((0,), 0)])
def test_empty(shape, axis):
    got = log_softmax(mx.zeros(shape, mx.bfloat16), axis)
    assert (got.shape, got.dtype) == (shape, mx.bfloat16)
    mx.eval(got)


@pytest.mark.parametrize("axis", [2, -3])
def test_axis_out_of_range(axis):
    with pytest.raises(ValueError, match=f"log_softmax: axis {axis} is out of range"):
        log_softmax(mx.zeros((2, 3)), axis)


def test_integers_are_refused():
    with pytest.raises(TypeError, match="log_softmax takes a floating dtype, not .*int32"):
        log_softmax(mx.zeros((2, 3), mx.int32))


def test_policy_and_geometry_are_softmaxs():
    assert module.KERNEL.metal.choose is plain.choose
    for shape, axis, variant in (
        ((3, 40), 1, "row"),
        ((3, 5000), 1, "split"),
        ((4, 9, 2), 1, "strided"),
    ):
        rows = plain.problem(mx.zeros(shape), axis)
        for own, theirs in zip(launch(rows, variant), plain.launch(rows, variant), strict=True):
            assert (own.grid, own.threadgroup) == (theirs.grid, theirs.threadgroup)
    with pytest.raises(ValueError, match="row softmax holds 1024 columns"):
        launch(plain.problem(mx.zeros((2, 1025)), 1), "row")


def test_the_two_passes():
    with use("metal"):
        partial, finalize = record(log_softmax, mx.zeros((1, 151_936), mx.bfloat16))
    assert "softmax_partial" in partial.name
    assert "log_softmax_finalize" in finalize.name
    assert "precise::log" in finalize.source
