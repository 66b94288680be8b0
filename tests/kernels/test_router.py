"""router: transformers' values, torch's gradients, ties, errors, the policy."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as qwen

from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.router import choose, fallback, launch, problem, router
from torchmlx.kernels.spec import OLDEST

INF, NAN = float("inf"), float("nan")


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_in_transformers(dtype):
    """Where no bfloat16 logits are equal, which torch's topk would take in any order."""
    layer = qwen.Qwen3_5MoeTopKRouter(
        qwen.Qwen3_5MoeTextConfig(num_experts=64, num_experts_per_tok=8, hidden_size=64)
    )
    layer.weight.data = torch.eye(64, dtype=dtype)
    row = np.random.default_rng(0).permuted(np.arange(-32, 32).repeat(5).reshape(-1, 5) / 8, axis=0)
    logits, weights, indices = layer(torch.tensor(row.T.copy(), dtype=dtype))
    ours = mx.array(logits.detach().float().numpy())
    got = router(ours.astype(getattr(mx, str(dtype).removeprefix("torch."))), 8)
    np.testing.assert_array_equal(got[1], indices.numpy())
    want = weights.detach().float().numpy()
    np.testing.assert_allclose(to_numpy(got[0]), want, rtol=1e-6 if dtype == torch.float32 else 0)


@pytest.mark.parametrize("normalise", [False, True])
def test_gradient_as_in_torch(normalise):
    x, g = normal(1, 3, 4, 20), normal(2, 3, 4, 6)
    primal = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    want = torch.topk(torch.softmax(primal, -1), 6).values
    if normalise:
        want = want / want.sum(-1, keepdim=True)
    want.backward(torch.tensor(g, dtype=torch.float64))
    function = lambda a: router(a, 6, normalise)[0]  # noqa: E731
    gradient = mx.vjp(function, [mx.array(x)], [mx.array(g)])[1][0]
    assert judge(gradient, primal.grad.numpy(), 1e-12).fault == ""


def test_ties_take_the_lowest_index():
    logits = mx.array([[0.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0]])
    weights, indices = router(logits, 5)
    assert indices.tolist() == [[1, 3, 5, 2, 4]]
    assert weights[0, 0].item() == weights[0, 2].item()
    assert router(mx.zeros((2, 300)), 20)[1].tolist() == [list(range(20))] * 2


def test_the_sort_is_stable_when_long():
    keys = np.random.default_rng(3).integers(0, 4, (50, 512)).astype(np.float32)
    want = np.argsort(-keys, axis=-1, kind="stable")[:, :100]
    np.testing.assert_array_equal(fallback(mx.array(keys), k=100, normalise=True)[1], want)


@pytest.mark.parametrize(
    "row, chosen",
    [
        ([NAN, 1.0, 2.0, 3.0], [0, 1, 2]),
        ([1.0, INF, 2.0, 3.0], [0, 1, 2]),
        ([-INF, -INF, -INF, -INF], [0, 1, 2]),
        ([-INF, -INF, 5.0, -INF], [2, 0, 1]),
    ],
)
def test_special_rows(row, chosen):
    weights, indices = router(mx.array([row]), 3)
    assert indices.tolist() == [chosen]
    if chosen[0] == 2:
        assert weights.tolist() == [[1.0, 0.0, 0.0]]
    else:
        assert np.isnan(weights).all()


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)])
def test_no_rows(shape):
    weights, indices = router(mx.zeros(shape, mx.bfloat16), 3)
    assert (weights.shape, weights.dtype) == ((*shape[:-1], 3), mx.bfloat16)
    assert (indices.shape, indices.dtype) == ((*shape[:-1], 3), mx.int32)
    mx.eval(weights, indices)


@pytest.mark.parametrize("shape, k", [((2, 8), 0), ((2, 8), 9), ((2, 0), 1), ((), 1)])
def test_k_out_of_range(shape, k):
    with pytest.raises(ValueError, match=f"k {k} is out of range for logits"):
        router(mx.zeros(shape), k)


def test_integers_are_refused():
    with pytest.raises(TypeError, match="router takes a floating dtype, not .*int32"):
        router(mx.zeros((2, 8), mx.int32), 2)


@pytest.mark.parametrize(
    "shape, k, variant",
    [
        ((1, 512), 32, "simdgroup"),
        ((1, 513), 8, "fallback"),
        ((1, 512), 33, "fallback"),
        ((0, 64), 8, "fallback"),
    ],
)
def test_choose(shape, k, variant):
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        routing = problem(mx.zeros(shape, dtype), k=k, normalise=True)
        assert choose(routing, OLDEST) == variant
    assert choose(problem(mx.zeros(shape, mx.float64), k=k, normalise=True), OLDEST) == "fallback"


def test_launch():
    routing = problem(mx.zeros((2, 3, 256), mx.bfloat16), k=8, normalise=True)
    (got,) = launch(routing, "simdgroup")
    assert (got.grid, got.threadgroup) == ((32, 6, 1), (32, 4, 1))
    assert got.outputs == {"weights": ((2, 3, 8), mx.bfloat16), "indices": ((2, 3, 8), mx.int32)}
    assert dict(got.template) == {"T": mx.bfloat16, "PER_LANE": 8, "NORMALISE": True}
    with pytest.raises(ValueError, match="512 experts and 32 choices"):
        launch(problem(mx.zeros((2, 600)), k=8, normalise=True), "simdgroup")
