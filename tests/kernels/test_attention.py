"""attention: torch's values, masks and gradients, positions with lengths, pieces, errors."""

import mlx.core as mx
import numpy as np
import pytest
import torch

from torchmlx.kernels import attention as module
from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.attention import attention

INF, NAN = float("inf"), float("nan")


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def qkv(batch, heads, kv_heads, queries, keys, d):
    kv = (batch, kv_heads, keys, d)
    return [normal(0, batch, heads, queries, d), normal(1, *kv), normal(2, *kv)]


def by_torch(q, k, v, mask=None, causal=False, scale=None):
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=True
    )


@pytest.mark.parametrize("queries, keys", [(5, 5), (3, 8), (8, 3), (1, 6)])
@pytest.mark.parametrize("heads, kv_heads", [(2, 2), (6, 2), (4, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients_as_in_torch(causal, heads, kv_heads, queries, keys):
    given = qkv(2, heads, kv_heads, queries, keys, 10)
    primals = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in given]
    want = by_torch(*primals, causal=causal)
    weights = normal(4, *want.shape)
    (want * torch.tensor(weights)).sum().backward()

    def function(q, k, v):
        return attention(q, k, v, causal=causal)

    results, gradients = mx.vjp(function, [mx.array(a) for a in given], [mx.array(weights)])
    assert judge(results[0], want.detach().numpy(), 1e-12).fault == ""
    for gradient, primal in zip(gradients, primals, strict=True):
        # Not relative: a query that sees one key has gradients of 0.
        np.testing.assert_allclose(gradient, primal.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 4, 3, 7), (1, 4, 1, 7), (2, 1, 3, 1), (3, 7), (1, 7)])
@pytest.mark.parametrize("boolean", [False, True])
def test_masks_as_in_torch(boolean, shape):
    given = qkv(2, 4, 2, 3, 7, 8)
    mask = normal(5, *shape) > 0 if boolean else normal(5, *shape)
    want = by_torch(*map(torch.tensor, given), torch.tensor(mask), scale=0.5)
    got = attention(*map(mx.array, given), mx.array(mask), scale=0.5)
    assert judge(got, want.numpy(), 1e-12).fault == ""


@pytest.mark.parametrize("boolean", [False, True])
def test_a_row_masked_everywhere_is_zero_and_so_is_its_gradient(boolean):
    """torch's CPU gives 0, its Apple GPU backend NaN (pytorch#156707)."""
    arrays = [mx.array(a) for a in qkv(1, 2, 1, 3, 4, 8)]
    seen = mx.array(np.arange(3)[:, None] != 1)
    mask = seen if boolean else mx.where(seen, 0.0, -INF)
    np.testing.assert_array_equal(attention(*arrays, mask)[:, :, 1], 0.0)
    gradient = mx.grad(lambda q: attention(q, *arrays[1:], mask).square().sum())(arrays[0])
    np.testing.assert_array_equal(gradient[:, :, 1], 0.0)
    assert np.isfinite(np.array(gradient)).all()
    assert np.abs(np.array(gradient[:, :, 0])).max() > 0


def test_not_a_number_stays_in_its_row_as_in_torch():
    q, k, v = qkv(1, 2, 2, 4, 5, 8)
    q[0, 0, 1, 2], q[0, 1, 2, 3], k[0, 1, 2, 0] = NAN, INF, INF
    want = by_torch(*map(torch.tensor, (q, k, v)), causal=True).numpy()
    got = np.array(attention(*map(mx.array, (q, k, v)), causal=True))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_what_lies_beyond_the_valid_keys_has_no_influence():
    q, k, v = qkv(3, 2, 1, 2, 6, 8)
    lengths = [4, 6, 2]
    want = []
    for b, n in enumerate(lengths):
        one = (q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n])
        want.append(by_torch(*(torch.tensor(a) for a in one)))
        k[b, :, n:], v[b, :, n:] = NAN, INF
    got = attention(*map(mx.array, (q, k, v)), lengths=mx.array(lengths))
    assert judge(got, torch.cat(want).numpy(), 1e-12).fault == ""
    one = attention(*(mx.array(a[:1]) for a in (q, k, v)), lengths=mx.array(4))
    np.testing.assert_array_equal(one, got[:1])


def test_a_prompt_in_parts_is_the_whole():
    """With lengths the last query is at the last valid key: what a cache of fixed size needs."""
    q, k, v = map(mx.array, qkv(1, 4, 2, 9, 9, 8))
    whole = attention(q, k, v, causal=True)
    parts = [
        attention(q[:, :, a:b], k, v, lengths=mx.array([b]), causal=True)
        for a, b in ((0, 4), (4, 5), (5, 9))
    ]
    np.testing.assert_allclose(mx.concatenate(parts, axis=2), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [1, 3, 20])
def test_window(window):
    q, k, v = qkv(1, 2, 1, 9, 9, 8)
    i, j = np.arange(9)[:, None], np.arange(9)
    mask = torch.tensor((j <= i) & (j > i - window))
    want = by_torch(*map(torch.tensor, (q, k, v)), mask).numpy()
    got = attention(*map(mx.array, (q, k, v)), causal=True, window=window)
    assert judge(got, want, 1e-12).fault == ""
    last = attention(*(mx.array(a) for a in (q[:, :, 6:], k, v)), None, mx.array([9]), True, window)
    np.testing.assert_allclose(last, got[:, :, 6:], rtol=1e-5, atol=1e-6)


def test_gate_is_applied_before_rounding():
    q, k, v = (mx.array(a).astype(mx.bfloat16) for a in qkv(1, 2, 1, 3, 4, 8))
    gate = mx.array(normal(7, 1, 2, 3, 8)).astype(mx.bfloat16)
    plain = attention(*(x.astype(mx.float32) for x in (q, k, v)))
    want = to_numpy(plain) / (1 + np.exp(-to_numpy(gate)))
    assert judge(attention(q, k, v, gate=gate), want, 1e-10).fault == ""


@pytest.mark.parametrize("mask", [(1, 1, 7, 9), (2, 4, 1, 9), (1, 1, 1, 1)])
@pytest.mark.parametrize("window", [None, 3])
def test_gradients_of_pieces_are_those_of_autodiff(monkeypatch, mask, window):
    arrays = [
        mx.array(a) for a in (*qkv(2, 4, 2, 7, 9, 8), normal(5, *mask), normal(6, 2, 4, 7, 8))
    ]
    lengths, cotangent = mx.array([9, 5], mx.int32), [mx.array(normal(7, 2, 4, 7, 8))]
    options = {"causal": True, "window": window, "scale": 0.3}

    def gradients(function):
        call = lambda q, k, v, m, g: function(q, k, v, m, lengths, g, **options)  # noqa: E731
        return mx.vjp(call, arrays, cotangent)[1]

    want = gradients(module.fallback)
    monkeypatch.setattr(module, "SCORES", 2 * 4 * 9 * 2)
    for got, expected in zip(gradients(module.KERNEL), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("limit", [1, 2 * 4 * 9 * 2, 2 * 4 * 9 * 5])
def test_pieces_are_the_whole(monkeypatch, limit):
    arrays = [mx.array(a) for a in qkv(2, 4, 2, 7, 9, 8)]
    masks = [mx.array(normal(5, 2, 1, 7, 9)), mx.array(normal(5, 1, 9) > -1)]
    options = {"causal": True, "window": 4, "lengths": mx.array([9, 8])}
    whole = [attention(*arrays, mask, **options) for mask in masks]
    monkeypatch.setattr(module, "SCORES", limit)
    for mask, want in zip(masks, whole, strict=True):
        got = attention(*arrays, mask, **options)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_keys_and_values_of_other_head_dimensions():
    q, k, _ = qkv(1, 2, 1, 3, 5, 8)
    v = normal(3, 1, 1, 5, 12)
    want = by_torch(*map(torch.tensor, (q, k, v))).numpy()
    assert judge(attention(*map(mx.array, (q, k, v))), want, 1e-12).fault == ""


def test_float64_on_the_cpu():
    with mx.stream(mx.cpu):
        arrays = [mx.array(a).astype(mx.float64) for a in qkv(1, 2, 1, 3, 5, 8)]
        got = np.array(attention(*arrays, causal=True))
        want = by_torch(*(torch.tensor(np.array(a)) for a in arrays), causal=True).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize(
    "q, kv",
    [((0, 2, 3, 8), (0, 1, 5, 8)), ((1, 2, 0, 8), (1, 1, 5, 8)), ((1, 2, 3, 8), (1, 1, 0, 8))],
)
def test_empty(q, kv):
    got = attention(mx.ones(q), mx.ones(kv), mx.ones(kv), causal=True)
    np.testing.assert_array_equal(got, np.zeros(q))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"q": (2, 4, 8)}, r"takes \[B, H, L, D\]"),
        ({"k": (1, 2, 5, 7)}, "do not fit"),
        ({"v": (1, 2, 6, 8)}, "do not fit"),
        ({"q": (1, 3, 3, 8)}, "do not fit"),
        ({"mask": (1, 4, 3, 4)}, r"mask .* does not fit scores \(1, 4, 3, 5\)"),
        ({"mask": (1, 1, 4, 3, 5)}, "does not fit scores"),
        ({"gate": (1, 4, 3, 1)}, "gate"),
        ({"window": 0}, "window of 0"),
        ({"lengths": (2,)}, r"lengths \(2,\) is not \(\) or \(1,\)"),
    ],
)
def test_shapes_that_do_not_fit(changes, message):
    shapes = {"q": (1, 4, 3, 8), "k": (1, 2, 5, 8), "v": (1, 2, 5, 8), **changes}
    arrays = {n: mx.zeros(s) if isinstance(s, tuple) else s for n, s in shapes.items()}
    if "lengths" in arrays:
        arrays["lengths"] = arrays["lengths"].astype(mx.int32)
    with pytest.raises(ValueError, match=message):
        attention(**arrays)


def test_dtypes_that_do_not_fit():
    q, k = mx.zeros((1, 2, 3, 8)), mx.zeros((1, 1, 5, 8))
    with pytest.raises(TypeError, match="one floating dtype"):
        attention(q, k.astype(mx.bfloat16), k)
    with pytest.raises(TypeError, match="bool or floating mask, not .*int32"):
        attention(q, k, k, mx.zeros((3, 5), mx.int32))
    with pytest.raises(TypeError, match="integer lengths, not .*float32"):
        attention(q, k, k, lengths=mx.zeros(()))
