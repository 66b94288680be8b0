"""moe_decode against a plain mixture in torch, its gradients, errors, policy and launches."""

import mlx.core as mx
import numpy as np
import pytest
import torch

from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.dispatch import use
from torchmlx.kernels.moe_decode import (
    KERNEL,
    MAX_PLACES,
    choose,
    codes,
    launch,
    moe_decode,
    problem,
    reference,
)
from torchmlx.kernels.recording import record
from torchmlx.kernels.simulator import NoClang, find_clang, simulated
from torchmlx.kernels.spec import OLDEST


def mixture(tokens=3, slots=2, experts=5, inner=6, k=8, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((tokens, k)).astype(np.float32),
        "gate_up": rng.standard_normal((experts, 2 * inner, k)).astype(np.float32),
        "down": rng.standard_normal((experts, k, inner)).astype(np.float32),
        "indices": rng.integers(0, experts, (tokens, slots)).astype(np.int32),
        "weights": rng.uniform(0.1, 1.0, (tokens, slots)).astype(np.float32),
    }


def in_torch(x, gate_up, down, indices, weights):
    """Qwen3MoE's experts, one at a time."""
    out = torch.zeros_like(x)
    for expert in range(gate_up.shape[0]):
        token, slot = torch.where(indices == expert)
        gate, up = (x[token] @ gate_up[expert].T).chunk(2, dim=-1)
        y = (torch.nn.functional.silu(gate) * up) @ down[expert].T
        out = out.index_add(0, token, y * weights[token, slot, None])
    return out


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_as_in_torch(tokens):
    """Also with more places than experts, where the fallback takes another way."""
    arrays = mixture(tokens)
    want = in_torch(*(torch.tensor(a) for a in arrays.values())).numpy()
    got = moe_decode(*map(mx.array, arrays.values()))
    np.testing.assert_allclose(to_numpy(got), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tokens", [2, 40])
def test_gradients_as_in_torch(tokens):
    arrays = mixture(tokens)
    names = ("x", "gate_up", "down", "weights")
    theirs = {name: torch.tensor(a) for name, a in arrays.items()}
    for name in names:
        theirs[name].requires_grad_()
    in_torch(**theirs).square().sum().backward()
    indices = mx.array(arrays["indices"])
    got = mx.grad(
        lambda x, gate_up, down, weights: (
            moe_decode(x, gate_up, down, indices, weights).square().sum()
        ),
        argnums=(0, 1, 2, 3),
    )(*(mx.array(arrays[name]) for name in names))
    for name, gradient in zip(names, got, strict=True):
        want = theirs[name].grad.numpy()
        np.testing.assert_allclose(to_numpy(gradient), want, rtol=1e-3, atol=1e-3 * abs(want).max())


@pytest.mark.parametrize("tokens", [1, 40])
def test_fp8_experts(tokens):
    """192 rows are blocks of 128 and 64, and there is a NaN in one expert that is not chosen."""
    arrays = mixture(tokens, experts=4, inner=96, k=130)
    rng = np.random.default_rng(1)
    stored = [codes(rng, arrays[name].shape) for name in ("gate_up", "down")]
    stored[1][3, 0, 0] = 0x7F
    indices = arrays["indices"] % 3
    scales = [rng.uniform(1e-3, 2e-3, shape).astype(np.float32) for shape in ((4, 2, 2), (4, 2, 1))]
    rest = (indices, arrays["weights"])
    want = reference(arrays["x"], *stored, *rest, *scales)
    assert np.isfinite(want).all()
    ours = [mx.array(a) for a in (arrays["x"], *stored, *rest)]
    got = moe_decode(*ours, tuple(map(mx.array, scales)))
    assert judge(got, want, 1e-11).fault == ""


@pytest.mark.parametrize("tokens", [2, 40])
def test_absent_experts_add_nothing(tokens):
    arrays = mixture(tokens)
    arrays["indices"][:, 0] = [-1, 5][tokens == 40]
    kept = {**arrays, "weights": arrays["weights"].copy(), "indices": arrays["indices"].copy()}
    kept["weights"][:, 0], kept["indices"][:, 0] = 0.0, 0
    got, want = (moe_decode(*map(mx.array, a.values())) for a in (arrays, kept))
    np.testing.assert_allclose(to_numpy(got), to_numpy(want), rtol=1e-6, atol=1e-6)


def test_an_absent_experts_place_spreads_no_nan():
    """Expert 0 stands in for the absent one in the fallback; its NaN must not come through."""
    arrays = mixture(1, 2)
    arrays["indices"][:] = [[7, 2]]
    arrays["down"][0] = np.nan
    assert np.isfinite(to_numpy(moe_decode(*map(mx.array, arrays.values())))).all()


@pytest.mark.parametrize("tokens, slots, k", [(0, 2, 8), (3, 0, 8)])
def test_empty(tokens, slots, k):
    got = moe_decode(*map(mx.array, mixture(tokens, slots, k=k).values()))
    np.testing.assert_array_equal(to_numpy(got), np.zeros((tokens, k)))


@pytest.mark.parametrize("backend", ["metal", "fallback"])
def test_the_routing_is_never_read_on_the_host(backend):
    arrays = [mx.array(a) for a in mixture().values()]
    with use(backend):
        nodes = record(moe_decode, *arrays)
    assert len(nodes) == (2 if backend == "metal" else 0)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"x": mx.zeros((3, 7))}, ValueError, r"x \(3, 7\), down \(5, 8, 6\) are not"),
        ({"gate_up": mx.zeros((5, 6, 8))}, ValueError, r"gate_up \(5, 6, 8\) is not \(5, 12, 8\)"),
        ({"weights": mx.zeros((3, 3))}, ValueError, r"indices \(3, 2\), weights \(3, 3\)"),
        ({"indices": mx.zeros((3, 2))}, TypeError, "int32 or uint32, not .*float32"),
        ({"down": mx.zeros((5, 8, 6), mx.float16)}, TypeError, "float32, down .*float16 differ"),
        ({"x": mx.zeros((3, 8), mx.float16)}, TypeError, "float32 weights and .*float16 x"),
        ({"weights": mx.zeros((3, 2), mx.int32)}, TypeError, "floating x and weights"),
        ({"scales": (mx.ones((5, 1, 1)),) * 2}, TypeError, "for uint8 codes, not for .*float32"),
    ],
)
def test_errors(change, error, message):
    arrays = {name: mx.array(a) for name, a in mixture().items()}
    with pytest.raises(error, match=message):
        moe_decode(**{**arrays, **change})


def test_scales_that_do_not_fit():
    arrays = {name: mx.array(a) for name, a in mixture().items()}
    for name in ("gate_up", "down"):
        arrays[name] = arrays[name].astype(mx.uint8)
    one = mx.ones((5, 1, 1))
    with pytest.raises(ValueError, match=r"down \(5, 8, 6\) has scales \(5, 2, 1\)"):
        moe_decode(**arrays, scales=(one, mx.ones((5, 2, 1))))
    with pytest.raises(TypeError, match="floating scales, not .*int32"):
        moe_decode(**arrays, scales=(one.astype(mx.int32), one))


def outline(tokens, slots=8, inner=512, k=2048, experts=256, dtype=mx.bfloat16):
    return problem(
        mx.zeros((tokens, k), dtype),
        mx.zeros((experts, 2 * inner, k), dtype),
        mx.zeros((experts, k, inner), dtype),
        mx.zeros((tokens, slots), mx.int32),
        mx.zeros((tokens, slots), dtype),
    )


def test_choose():
    assert choose(outline(1), OLDEST) == "decode"
    assert choose(outline(MAX_PLACES // 8), OLDEST) == "decode"
    assert choose(outline(MAX_PLACES // 8 + 1), OLDEST) == "fallback"
    assert choose(outline(0), OLDEST) == "fallback"
    assert choose(outline(1, dtype=mx.int32), OLDEST) == "fallback"


def test_launch():
    up, down = launch(outline(2), "decode")
    assert (up.grid, up.threadgroup, up.threadgroup_bytes) == ((32, 512, 16), (32, 8, 1), 8192)
    assert up.outputs == {"hidden": ((2, 8, 512), mx.float32)}
    assert (down.grid, down.threadgroup_bytes) == ((32, 2048, 2), 16_384)
    assert launch(outline(1, inner=8192), "decode")[1].template == down.template
    with pytest.raises(ValueError, match="no empty arrays"):
        launch(outline(0), "decode")


def test_more_hidden_values_than_are_staged():
    """4200 values in two stretches; MLX's own sums on the CPU err by more than the bound."""
    try:
        find_clang()
    except NoClang as error:
        pytest.skip(str(error))
    arrays = mixture(1, 2, experts=2, inner=4200, k=8)
    with simulated(strict=False) as seen:
        got = moe_decode(*map(mx.array, arrays.values()))
    assert [str(report) for report in seen.reports] == []
    assert judge(got, reference(*arrays.values()), 4e-12).fault == ""


def test_cost_counts_the_chosen_experts():
    arrays = [mx.array(a) for a in mixture(1, 2).values()]
    assert KERNEL.cost(*arrays).bytes == 2 * 3 * 6 * 8 * 4 + 2 * 8 * 4 + 2 * 4 + 2 * 4
