"""MLX's own kernels, which run on real Macs, run right here; from its macOS wheel's headers."""

import mlx.core as mx
import numpy as np
import pytest

from torchmlx.kernels.simulator import SPECIFICATION, published
from torchmlx.kernels.simulator.published import ROW, SIMDGROUPS, UNUSED

pytestmark = pytest.mark.network


@pytest.fixture(scope="module", autouse=True)
def fetched(tmp_path_factory):
    """The headers, fetched anew: a cache may hide that they are no longer to be had."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published, "cache_root", lambda: tmp_path_factory.mktemp("mlx-metal"))
        published.headers.cache_clear()
        yield published.headers()
    published.headers.cache_clear()


@pytest.fixture(scope="module", params=["fast", "checked"])
def values(request):
    """Values of a published kernel run by `function(*arguments)`, after a look at its reports."""

    def values(function, *arguments, allowed=(), **options):
        result = function(*arguments, mode=request.param, **options)
        assert [r for r in result.reports if r.kind not in allowed] == [], str(result.reports[0])
        assert all(r.severity == SPECIFICATION for r in result.reports)
        return wide(result.outputs[0])

    return values


def normal(shape, dtype=mx.float32, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return mx.array(values).astype(dtype)


def wide(x):
    return np.array(x.astype(mx.float32), np.float64)


def output(shape, dtype):
    return {"output_shapes": [shape], "output_dtypes": [dtype]}


def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("dtype, rtol", [(mx.float32, 2e-5), (mx.bfloat16, 5e-3)])
@pytest.mark.parametrize("shape", [(8, 3001), (2, 5001)], ids=["held", "looped"])
def test_softmax(values, shape, dtype, rtol):
    x = normal(shape, dtype)
    np.testing.assert_allclose(values(published.softmax, x), softmax(wide(x)), rtol=rtol)


def test_looped_softmax_needs_the_threads_that_mlx_gives_it(values):
    """With 8 simdgroups it reads 24 slots that nobody wrote: NaN here, garbage on a Mac."""
    with pytest.raises(AssertionError, match="uninitialised at softmax.h line 1\\d\\d|NaN"):
        got = values(published.softmax, normal((2, 5001)), 256)
        assert not np.isnan(got).any(), "NaN"


def test_logsumexp(values):
    x = normal((8, 3001))
    body = f"logsumexp<float, float, 4>(in, out, axis_size, {ROW}, {SIMDGROUPS});"
    got = values(
        *(published.call, ["logsumexp.h"], body, {"in": x, "axis_size": 3001}),
        **output((8,), mx.float32),
        grid=(8 * 768, 1, 1),
        threadgroup=(768, 1, 1),
    )
    np.testing.assert_allclose(got, np.log(np.exp(wide(x)).sum(axis=1)), rtol=1e-6)


@pytest.mark.parametrize("tile", [(4, 1, 1, 32, 4, 4), (1, 8, 1, 32, 4, 4), (2, 2, 4, 8, 4, 4)])
def test_gemv(values, tile):
    """Outside the specification, but no error: with several simdgroups along K it waits in a
    branch, at a barrier without memory; and lanes without a row return before shuffles."""
    w, v = normal((300, 530), mx.bfloat16), normal((530,), mx.bfloat16, seed=1)
    allowed = {"barrier", "race", "divergence", "undefined-lane"}
    got, want = values(published.gemv, w, v, tile, allowed=allowed), wide(w) @ wide(v)
    np.testing.assert_allclose(got, want, atol=4e-3 * np.abs(want).max())


@pytest.mark.parametrize("m, n, k", [(128, 64, 32), (96, 70, 100)])
def test_steel_gemm(values, m, n, k):
    a, b = normal((m, k), mx.float16), normal((k, n), mx.float16, seed=1)
    columns, rows = -(-n // 64), -(-m // 64)
    body = f"""
        GEMMParams p{{{m}, {n}, {k}, {k}, {n}, {n}, {columns}, {rows}, 0, 0, 0, 0, {k // 16}, 1}};
        gemm<float16_t, 64, 64, 16, 2, 2, false, false, float>(
            a, b, nullptr, out, &p, nullptr, nullptr, nullptr, {SIMDGROUPS},
            threadgroup_position_in_grid, thread_position_in_threadgroup);"""
    whole = {200: m % 64 == 0, 201: n % 64 == 0, 202: k % 16 == 0}
    constants = {10: False, 100: False, 110: False, 300: False, **whole}
    includes = ["steel/gemm/gemm.h", "steel/gemm/kernels/steel_gemm_fused.h"]
    got = values(
        *(published.call, includes, body, {"a": a, "b": b}),
        **output((m, n), mx.float16),
        grid=(columns * 32, rows * 2, 2),
        threadgroup=(32, 2, 2),
        function_constants=constants,
    )
    want = wide(a) @ wide(b)
    np.testing.assert_allclose(got, want, atol=2e-3 * np.abs(want).max())


@pytest.fixture(scope="module")
def weights():
    """4-bit weights in groups of 64, as MLX packs them, and their values."""
    w = normal((256, 1024), seed=3)
    packed, scales, biases = mx.quantize(w.astype(mx.float16), group_size=64, bits=4)
    return packed, scales, biases, wide(mx.dequantize(packed, scales, biases, 64, 4))


QUANTIZED = ["steel/gemm/gemm.h", "quantized_utils.h", "quantized.h"]


def test_quantized_matrix_vector_product(values, weights):
    packed, scales, biases, w = weights
    x = normal((1, 1024), mx.float16, seed=4)
    body = """qmv_fast_impl<float16_t, 64, 4>(
        w, s, b, x, out, k, n, threadgroup_position_in_grid, simdgroup_index_in_threadgroup,
        thread_index_in_simdgroup);"""
    inputs = {"w": packed, "s": scales, "b": biases, "x": x, "k": 1024, "n": 256}
    got = values(
        *(published.call, QUANTIZED, body, inputs),
        **output((1, 256), mx.float16),
        grid=(32, 64, 1),
        threadgroup=(32, 2, 1),
        function_constants=UNUSED,
    )
    want = wide(x) @ w.T
    np.testing.assert_allclose(got, want, atol=2e-3 * np.abs(want).max())


def test_quantized_matrix_product(values, weights):
    packed, scales, biases, w = weights
    x = normal((40, 1024), mx.float16, seed=4)
    body = """
        threadgroup float16_t xs[32 * (32 + 16 / sizeof(float16_t))];
        threadgroup float16_t ws[32 * (32 + 16 / sizeof(float16_t))];
        qmm_t_impl<float16_t, 64, 4, true, float16_t, 32, 32, 32>(
            w, s, b, x, out, xs, ws, k, n, m, k, threadgroup_position_in_grid,
            thread_index_in_threadgroup, simdgroup_index_in_threadgroup,
            thread_index_in_simdgroup);"""
    inputs = {"w": packed, "s": scales, "b": biases, "x": x, "k": 1024, "n": 256, "m": 40}
    got = values(
        *(published.call, QUANTIZED, body, inputs),
        **output((40, 256), mx.float16),
        grid=(8 * 32, 4, 2),
        threadgroup=(32, 2, 2),
        function_constants=UNUSED,
    )
    want = wide(x) @ w.T
    np.testing.assert_allclose(got, want, atol=2e-3 * np.abs(want).max())


def test_a_wheel_of_another_hash_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(published, "SHA256", "0" * 64)
    with pytest.raises(published.NotFetched, match="mlx-metal==0.32.4 .* is not the file"):
        published.headers.__wrapped__()
