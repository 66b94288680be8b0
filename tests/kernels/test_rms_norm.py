"""rms_norm: torch's values and gradients, the residual, errors, the variant policy."""

import mlx.core as mx
import numpy as np
import pytest
import torch

from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.rms_norm import choose, launch, problem, rms_norm
from torchmlx.kernels.spec import OLDEST

INF, NAN = float("inf"), float("nan")


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def by_torch(x, w, eps, offset):
    out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return out if w is None else out * (offset + w)


@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("summed", [False, True])
def test_values_and_gradients_as_in_torch(offset, weighted, summed, silu):
    given = [normal(0, 3, 4, 70), normal(1, 70), normal(2, 3, 4, 70)]
    keep = [0, *([1] if weighted else []), *([2] if summed else [])]
    weights = [normal(3, 3, 4, 70), normal(4, 3, 4, 70)]

    primals = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in given]
    total = primals[0] + primals[2] if summed else primals[0]
    want = by_torch(total, primals[1] if weighted else None, 1e-5, offset)
    want = torch.nn.functional.silu(want) if silu else want
    loss = (want * torch.tensor(weights[0])).sum()
    (loss + (total * torch.tensor(weights[1])).sum() if summed else loss).backward()

    def function(*arrays):
        full = [None, None, None]
        for position, array in zip(keep, arrays, strict=True):
            full[position] = array
        return rms_norm(*full, eps=1e-5, offset=offset, silu=silu)

    arrays = [mx.array(given[i]) for i in keep]
    cotangents = [mx.array(weight) for weight in weights][: 2 if summed else 1]
    results, gradients = mx.vjp(function, arrays, cotangents)
    assert judge(results[0], want.detach().numpy(), 1e-12).fault == ""
    if summed:
        np.testing.assert_array_equal(results[1], given[0] + given[2])
    for position, gradient in zip(keep, gradients, strict=True):
        assert judge(gradient, primals[position].grad.numpy(), 1e-12).fault == ""


def test_only_the_norm_is_used():
    """The gradient when nothing reads the sum."""
    x, residual = mx.array(normal(5, 2, 9)), mx.array(normal(6, 2, 9))
    got = mx.grad(lambda x: rms_norm(x, None, residual)[0].square().sum())(x)
    want = mx.grad(lambda x: rms_norm(x + residual).square().sum())(x)
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_equals_torch_in_bfloat16():
    """torch's rms_norm too computes in float32 and rounds once."""
    x, w = (torch.tensor(normal(i, *s)).bfloat16() for i, s in ((0, (5, 300)), (1, (300,))))
    want = torch.nn.functional.rms_norm(x, (300,), w, 1e-6).float().numpy()
    arrays = [mx.array(a.float().numpy()).astype(mx.bfloat16) for a in (x, w)]
    got = to_numpy(rms_norm(*arrays, eps=1e-6))
    # Where float32 rounds differently, a bfloat16 may land on the neighbour.
    assert np.mean(got != want) < 0.01
    np.testing.assert_allclose(got, want, rtol=2**-7)


def test_the_rounded_sum_is_normed():
    """256 + 1 is 256 in bfloat16; the norm of (256, 3) is that of what is returned as the sum."""
    x, residual = mx.array([256.0, 3.0], mx.bfloat16), mx.array([1.0, 0.0], mx.bfloat16)
    out, total = rms_norm(x, None, residual)
    assert total.tolist() == [256.0, 3.0]
    assert out.tolist() == rms_norm(total).tolist()


def test_special_values_as_in_torch():
    x = np.array([[INF, 1.0, 2.0], [NAN, 1.0, 2.0], [-INF, INF, 0.0], [0.0, 0.0, 0.0]], np.float32)
    want = torch.nn.functional.rms_norm(torch.tensor(x), (3,), eps=1e-6).numpy()
    np.testing.assert_allclose(np.array(rms_norm(mx.array(x))), want, equal_nan=True)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0,)])
def test_empty(shape):
    x = mx.zeros(shape, mx.bfloat16)
    out, total = rms_norm(x, mx.zeros(shape[-1:]), x)
    assert (out.shape, out.dtype, total.shape) == (shape, mx.bfloat16, shape)
    mx.eval(out, total)


def test_float64_on_the_cpu():
    with mx.stream(mx.cpu):
        x = mx.array(np.linspace(-3, 3, 400), dtype=mx.float64)
        got = np.array(rms_norm(x, eps=0.0))
    np.testing.assert_allclose((got**2).mean(), 1.0, rtol=1e-14)


@pytest.mark.parametrize(
    "x, w, residual, error, message",
    [
        ((2, 3), (2,), None, ValueError, r"weight \(2,\) does not fit x \(2, 3\)"),
        ((), None, None, ValueError, "does not fit x"),
        ((2, 3), (3,), (3,), ValueError, r"residual \(3,\) does not fit x \(2, 3\)"),
    ],
)
def test_shapes_that_do_not_fit(x, w, residual, error, message):
    arrays = [shape if shape is None else mx.zeros(shape) for shape in (x, w, residual)]
    with pytest.raises(error, match=message):
        rms_norm(*arrays)


def test_dtypes_that_do_not_fit():
    with pytest.raises(TypeError, match="floating dtype, not .*int32"):
        rms_norm(mx.zeros((2, 3), mx.int32))
    with pytest.raises(TypeError, match="floating weight, not .*int32"):
        rms_norm(mx.zeros((2, 3)), mx.zeros((3,), mx.int32))
    with pytest.raises(TypeError, match="residual is .*bfloat16, x is .*float32"):
        rms_norm(mx.zeros((2, 3)), None, mx.zeros((2, 3), mx.bfloat16))


@pytest.mark.parametrize(
    "rows, n, variant",
    [
        (1, 512, "row"),
        (1, 513, "block"),
        (1023, 1024, "block"),
        (1024, 1024, "row"),
        (1024, 1025, "block"),
        (1, 8192, "block"),
        (1, 8193, "looped"),
        (0, 8, "fallback"),
        (3, 0, "fallback"),
    ],
)
def test_choose(rows, n, variant):
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        call = problem(mx.zeros((rows, n), dtype), eps=1e-6, offset=0.0)
        assert choose(call, OLDEST) == variant
    call = problem(mx.zeros((rows, n), mx.float64), eps=1e-6, offset=0.0)
    assert choose(call, OLDEST) == "fallback"


@pytest.mark.parametrize(
    "variant, n, per_lane, threadgroup",
    [("row", 33, 2, (32, 4, 1)), ("block", 2048, 8, (256, 1, 1)), ("block", 8192, 32, (256, 1, 1))],
)
def test_launch(variant, n, per_lane, threadgroup):
    x = mx.zeros((3, n), mx.bfloat16)
    (got,) = launch(problem(x, mx.zeros((n,)), x, eps=1e-5, offset=1.0), variant)
    assert (got.grid, got.threadgroup) == ((threadgroup[0], 3, 1), threadgroup)
    assert dict(got.template)["PER_LANE"] == per_lane
    assert got.scalars == {"eps": 1e-5, "offset": 1.0}
    assert list(got.outputs) == ["out", "total"]


def test_impossible_launch():
    with pytest.raises(ValueError, match="row holds 1024 columns, not 1025"):
        launch(problem(mx.zeros((2, 1025)), eps=1e-6, offset=0.0), "row")
