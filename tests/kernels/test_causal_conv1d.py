"""causal_conv1d: torch's values and gradients, continuation, padding, errors, the policy."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch.nn.functional import conv1d, pad, silu

from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.causal_conv1d import causal_conv1d, choose, launch, problem
from torchmlx.kernels.spec import OLDEST


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def by_torch(x, w, state, bias):
    """As Qwen's layer: channels first, the state before x."""
    full = torch.cat([state, x], 1).transpose(1, 2)
    return silu(conv1d(full, w, bias, groups=w.shape[0])).transpose(1, 2)


@pytest.mark.parametrize("tokens", [1, 2, 7, 20])
def test_values_and_gradients_as_in_torch(tokens):
    shapes = [(2, tokens, 6), (6, 1, 4), (2, 3, 6), (6,)]
    arrays = [normal(i, *shape) for i, shape in enumerate(shapes)]
    weights = [normal(8, 2, tokens, 6), normal(9, 2, 3, 6)]
    primals = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]
    want = by_torch(*primals)
    kept = torch.cat([primals[2], primals[0]], 1)[:, -3:]
    ((want * torch.tensor(weights[0])).sum() + (kept * torch.tensor(weights[1])).sum()).backward()

    function = lambda *a: causal_conv1d(*a, silu=True)  # noqa: E731
    results, gradients = mx.vjp(
        function, [mx.array(a) for a in arrays], [mx.array(a) for a in weights]
    )
    assert judge(results[0], want.detach().numpy(), 1e-12).fault == ""
    np.testing.assert_array_equal(results[1], kept.detach().float().numpy())
    for gradient, primal in zip(gradients, primals, strict=True):
        assert judge(gradient, primal.grad.numpy(), 1e-12).fault == ""


@pytest.mark.parametrize("cuts", [(1, 1, 18), (2, 9, 9), (0, 20, 0), (5, 0, 15)])
def test_pieces_continue_exactly(cuts):
    x, w = mx.array(normal(1, 2, 20, 5)).astype(mx.bfloat16), mx.array(normal(2, 5, 4))
    w = w.astype(mx.bfloat16)
    want, last = causal_conv1d(x, w)
    state, outs, start = None, [], 0
    for length in cuts:
        out, state = causal_conv1d(x[:, start : start + length], w, state)
        outs.append(out)
        start += length
    np.testing.assert_array_equal(to_numpy(mx.concatenate(outs, axis=1)), to_numpy(want))
    np.testing.assert_array_equal(to_numpy(state), to_numpy(last))


def test_left_padding_is_as_if_absent():
    x, w, bias = mx.array(normal(3, 3, 9, 4)), mx.array(normal(4, 4, 4)), mx.array(normal(5, 4))
    out, state = causal_conv1d(x, w, None, bias, mx.array([0, 4, 9]))
    for row, padded in enumerate((0, 4)):
        alone, kept = causal_conv1d(x[row : row + 1, padded:], w, None, bias)
        np.testing.assert_array_equal(out[row, padded:], alone[0])
        np.testing.assert_array_equal(state[row], kept[0])
    np.testing.assert_array_equal(out[2], np.broadcast_to(bias, (9, 4)))
    assert not np.array(state[2]).any()


def test_state_as_in_transformers():
    """transformers keeps K inputs with channels first, of which the last K - 1 are ours."""
    x = normal(6, 2, 9, 4)
    theirs = pad(torch.tensor(x).transpose(1, 2), (4 - 9, 0))
    _, state = causal_conv1d(mx.array(x), mx.array(normal(7, 4, 4)))
    np.testing.assert_array_equal(state, theirs[:, :, 1:].transpose(1, 2).numpy())


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_empty(shape):
    out, state = causal_conv1d(mx.zeros(shape), mx.zeros((shape[2], 3)))
    assert (out.shape, state.shape) == (shape, (shape[0], 2, shape[2]))
    mx.eval(out, state)


@pytest.mark.parametrize(
    "x, w, rest, message",
    [
        ((2, 3), (3, 4), (), r"w \(3, 4\) does not fit x \(2, 3\)"),
        ((2, 3, 5), (4, 4), (), r"w \(4, 4\) does not fit x \(2, 3, 5\)"),
        ((2, 3, 5), (5, 2, 4), (), r"w \(5, 2, 4\) does not fit"),
        ((2, 3, 5), (5, 9), (), "2 to 8 taps, not 9"),
        ((2, 3, 5), (5, 1), (), "2 to 8 taps, not 1"),
        ((2, 3, 5), (5, 4), ((2, 4, 5),), r"state is \(2, 4, 5\), not \(2, 3, 5\)"),
        ((2, 3, 5), (5, 4), (None, (4,)), r"bias is \(4,\), not \(5,\)"),
        ((2, 3, 5), (5, 4), (None, None, (3,)), r"padding is \(3,\), not \(2,\)"),
    ],
)
def test_shapes_that_do_not_fit(x, w, rest, message):
    arrays = [None if shape is None else mx.zeros(shape) for shape in rest]
    with pytest.raises(ValueError, match=message):
        causal_conv1d(mx.zeros(x), mx.zeros(w), *arrays)


def test_mixed_dtypes_are_refused():
    with pytest.raises(TypeError, match="one floating dtype, not .*float32.*bfloat16"):
        causal_conv1d(mx.zeros((1, 2, 3)), mx.zeros((3, 4), mx.bfloat16))
    with pytest.raises(TypeError, match="one floating dtype, not .*int32"):
        causal_conv1d(mx.zeros((1, 2, 3), mx.int32), mx.zeros((3, 4), mx.int32))


@pytest.mark.parametrize("tokens, variant", [(1, "step"), (7, "step"), (8, "run"), (0, "fallback")])
def test_choose(tokens, variant):
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        x = mx.zeros((2, tokens, 40), dtype)
        assert choose(problem(x, mx.zeros((40, 4)), silu=True), OLDEST) == variant
    conv = problem(mx.zeros((2, tokens, 40), mx.float64), mx.zeros((40, 4)), silu=True)
    assert choose(conv, OLDEST) == "fallback"


def test_launch():
    x, w = mx.zeros((2, 19, 40), mx.bfloat16), mx.zeros((40, 1, 4))
    (got,) = launch(problem(x, w, None, mx.zeros((40,)), silu=True), "run")
    assert (got.grid, got.threadgroup) == ((64, 3, 2), (128, 1, 1))
    assert got.program.name == "causal_conv1d_bias"
    assert got.inputs["w"] == (40, 4)
    assert got.outputs == {"out": ((2, 19, 40), mx.bfloat16), "next": ((2, 3, 40), mx.bfloat16)}
    assert dict(got.template) == {"T": mx.bfloat16, "K": 4, "RUN": 8, "SILU": True}
    with pytest.raises(ValueError, match="no times, channels or rows"):
        launch(problem(x[:, :0], w, silu=True), "run")
