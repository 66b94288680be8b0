"""gated_delta: transformers' values, torch's gradients, continuation, errors, the policy."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as qwen

from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.delta import choose, launch
from torchmlx.kernels.gated_delta import gated_delta, problem, reference
from torchmlx.kernels.spec import OLDEST

KEYWORDS = {"normalise": True, "scale": None}


def inputs(tokens, batch=2, key_heads=2, heads=4, dk=16, dv=12, seed=0):
    """q, k, v, g, beta and state as NumPy float32."""
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, batch, tokens, key_heads, dk), np.float32)
    v = rng.standard_normal((batch, tokens, heads, dv), np.float32)
    g = -rng.exponential(0.5, (batch, tokens, heads)).astype(np.float32)
    beta = rng.random((batch, tokens, heads), np.float32)
    return q, k, v, g, beta, rng.standard_normal((batch, heads, dk, dv), np.float32)


def by_torch(function, arrays, state=True):
    *rest, initial = (a if isinstance(a, torch.Tensor) else torch.tensor(a) for a in arrays)
    return function(
        *rest,
        initial_state=initial if state else None,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("tokens", [1, 15, 16, 32, 65, 130])
def test_as_in_transformers(tokens, state):
    arrays = inputs(tokens)
    given = [mx.array(a) for a in (arrays if state else arrays[:5])]
    got = gated_delta(*given)
    for function in (
        qwen.torch_chunk_gated_delta_rule,
        qwen.torch_recurrent_gated_delta_rule,
    ):
        for ours, theirs in zip(got, by_torch(function, arrays, state), strict=True):
            np.testing.assert_allclose(np.array(ours), theirs.numpy(), rtol=2e-5, atol=2e-6)


def test_bfloat16_as_in_transformers():
    """Both compute in float32 and round the output once; the state stays float32."""
    arrays = inputs(40)
    halves = [
        torch.tensor(a).bfloat16() if i in (0, 1, 2, 4) else torch.tensor(a)
        for i, a in enumerate(arrays)
    ]
    want, state = by_torch(qwen.torch_chunk_gated_delta_rule, halves)
    given = [mx.array(a.float().numpy()) for a in halves]
    given = [a.astype(mx.bfloat16) if i in (0, 1, 2, 4) else a for i, a in enumerate(given)]
    out, kept = gated_delta(*given)
    assert (out.dtype, kept.dtype) == (mx.bfloat16, mx.float32)
    np.testing.assert_allclose(to_numpy(out), want.float().numpy(), rtol=2**-7, atol=1e-6)
    np.testing.assert_allclose(kept, state.numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("tokens", [3, 40])
def test_gradients_as_in_torch(tokens):
    arrays = inputs(tokens, batch=1, heads=2, key_heads=1, dk=6, dv=5)
    rng = np.random.default_rng(1)
    primals = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]
    with np.errstate(all="ignore"):
        results = torch_rule(*primals)
    weights = [rng.standard_normal(tuple(r.shape)).astype(np.float32) for r in results]
    sum((r * torch.tensor(w)).sum() for r, w in zip(results, weights, strict=True)).backward()
    gradients = mx.vjp(gated_delta, [mx.array(a) for a in arrays], [mx.array(w) for w in weights])[
        1
    ]
    for gradient, primal in zip(gradients, primals, strict=True):
        assert judge(gradient, primal.grad.numpy(), 1e-11).fault == ""


def torch_rule(q, k, v, g, beta, state):
    """The recurrence in float64, which transformers' functions leave for float32."""
    repeat = v.shape[2] // q.shape[2]
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q, k = (x.repeat_interleave(repeat, 2) for x in (q * q.shape[-1] ** -0.5, k))
    outs = []
    for t in range(q.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        memory = (k[:, t, :, :, None] * state).sum(-2)
        delta = beta[:, t, :, None] * (v[:, t] - memory)
        state = state + k[:, t, :, :, None] * delta[:, :, None]
        outs.append((q[:, t, :, :, None] * state).sum(-2))
    return torch.stack(outs, 1), state


@pytest.mark.parametrize("cuts", [(97, 53), (1, 1, 148), (64, 0, 86), (150,)])
def test_pieces_continue(cuts):
    arrays = [mx.array(a) for a in inputs(150)]
    want = reference(*(to_numpy(a) for a in arrays), **KEYWORDS)
    *rest, state = arrays
    outs, start = [], 0
    for length in cuts:
        piece = [a[:, start : start + length] for a in rest]
        out, state = gated_delta(*piece, state)
        outs.append(out)
        start += length
    assert judge(mx.concatenate(outs, axis=1), want[0], 1e-12).fault == ""
    assert judge(state, want[1], 1e-12).fault == ""


def test_no_times_keep_the_state():
    arrays = [mx.array(a) for a in inputs(0)]
    out, state = gated_delta(*arrays)
    assert out.shape == (2, 0, 4, 12)
    np.testing.assert_array_equal(state, arrays[5])
    assert not np.array(gated_delta(*arrays[:5])[1]).any()


@pytest.mark.parametrize("tokens", [4, 40])
def test_nan_stays_in_its_head(tokens):
    arrays = inputs(tokens)
    arrays[2][0, 2, 1, 3] = np.nan
    got = [np.array(a) for a in gated_delta(*(mx.array(a) for a in arrays))]
    want = reference(*arrays, **KEYWORDS)
    clean = np.ones(4, bool)
    clean[1] = False
    for ours, theirs, axis in zip(got, want, (2, 1), strict=True):
        assert not np.isnan(ours.take(np.flatnonzero(clean), axis)).any()
        assert np.isnan(theirs).sum() <= np.isnan(ours).sum()


def test_strong_decay_forgets_without_overflow():
    q, k, v, g, beta, state = inputs(70)
    g = np.full_like(g, -80.0)
    arrays = (q, k, v, g, beta, state)
    got = gated_delta(*(mx.array(a) for a in arrays))
    for ours, theirs in zip(got, reference(*arrays, **KEYWORDS), strict=True):
        assert judge(ours, theirs, 1e-12).fault == ""


@pytest.mark.parametrize(
    "change, message",
    [
        ({1: (2, 5, 2, 8)}, "q .* k .* and v .* do not fit"),
        ({2: (2, 6, 4, 12)}, "q .* k .* and v .* do not fit"),
        ({2: (2, 5, 3, 12)}, "2 key heads cannot serve 3 value heads"),
        ({3: (2, 5, 2)}, r"g is \(2, 5, 2\), not \(2, 5, 4\)"),
        ({4: (2, 5)}, r"beta is \(2, 5\), not \(2, 5, 4\)"),
        ({5: (2, 4, 12, 16)}, r"state is \(2, 4, 12, 16\), not \(2, 4, 16, 12\)"),
    ],
)
def test_shapes_that_do_not_fit(change, message):
    shapes = [a.shape for a in inputs(5)]
    for position, shape in change.items():
        shapes[position] = shape
    with pytest.raises(ValueError, match=message):
        gated_delta(*(mx.zeros(shape) for shape in shapes))


@pytest.mark.parametrize(
    "position, dtype, message",
    [
        (1, mx.float16, "q, k, v are .*float32, .*float16, .*float32"),
        (3, mx.int32, "g and beta are .*int32"),
        (5, mx.bfloat16, "state is .*bfloat16, not .*float32"),
    ],
)
def test_dtypes_that_do_not_fit(position, dtype, message):
    arrays = [mx.array(a) for a in inputs(3)]
    arrays[position] = arrays[position].astype(dtype)
    with pytest.raises(TypeError, match=message):
        gated_delta(*arrays)


@pytest.mark.parametrize(
    "tokens, dk, variant",
    [
        (1, 128, "steps"),
        (63, 128, "steps"),
        (64, 128, "chunks"),
        (64, 176, "chunks"),
        (64, 177, "steps"),
        (64, 257, "fallback"),
        (0, 128, "fallback"),
    ],
)
def test_choose(tokens, dk, variant):
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        arrays = [mx.array(a).astype(dtype) for a in inputs(tokens, dk=dk)]
        assert choose(problem(*arrays, **KEYWORDS), OLDEST) == variant


def test_launch():
    arrays = [mx.array(a).astype(mx.bfloat16) for a in inputs(70, dk=100, dv=40)]
    rule = problem(*arrays[:5], **KEYWORDS)
    (steps,) = launch(rule, "steps")
    assert (steps.grid, steps.threadgroup) == ((32, 8, 16), (32, 8, 1))
    assert dict(steps.template)["ROWS"] == 13
    prepare, systems, scan = launch(rule, "chunks")
    assert prepare.outputs["keys"] == ((2, 2, 12, 13, 64), mx.float32)
    assert prepare.grid == (32, 2 * 96 * 2, 1)
    assert systems.outputs["inverse"] == ((2, 4, 3, 32, 32), mx.float32)
    assert (systems.grid, systems.threadgroup) == ((32, 4, 24), (32, 4, 1))
    assert (scan.grid, scan.threadgroup_bytes) == ((32, 8, 16), (104 + 4 + 72) * 128)
    assert scan.scalars == {"dk": 100}


def test_impossible_launch():
    arrays = [mx.array(a) for a in inputs(70, dk=200)]
    with pytest.raises(ValueError, match="chunks holds 176 rows of state, not 200"):
        launch(problem(*arrays, **KEYWORDS), "chunks")
