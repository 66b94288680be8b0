"""MLX's own kernels, which run on real Macs, run right here: from the headers of its macOS wheel.

The wheel is fetched, checked against its hash and unpacked into a temporary folder.
"""

import hashlib
import subprocess
import sys
import zipfile

import mlx.core as mx
import numpy as np
import pytest

from torchmlx.kernels.simulator import SPECIFICATION, simulate

pytestmark = pytest.mark.network

WHEEL = "mlx_metal-0.32.4-py3-none-macosx_15_0_arm64.whl"
SHA256 = "9f0a3cc26d89724434d9684932fc6f3e4e83669d2a895d858ed2c8a55eb84e8b"
KERNELS = "mlx/backend/metal/kernels/"


@pytest.fixture(scope="module")
def headers(tmp_path_factory):
    """The folder that MLX's #includes start from."""
    folder = tmp_path_factory.mktemp("mlx-metal")
    platform = ("--platform", "macosx_15_0_arm64", "--python-version", "3.11")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, *platform, "mlx-metal==0.32.4", "-d", folder], check=True)
    wheel = folder / WHEEL
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == SHA256
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if f"include/{KERNELS}" in n and n.endswith(".h")]
        archive.extractall(folder, names)
    return folder / "mlx" / "include"


@pytest.fixture(scope="module", params=["fast", "checked"])
def call(headers, request):
    """Call a published function from a body; returns the output, after looking at reports."""

    def call(includes, body, inputs, shape, dtype, grid, threadgroup, constants=None, allowed=()):
        result = simulate(
            body,
            name="published",
            header="".join(f'#include "{KERNELS}{name}"\n' for name in includes),
            input_names=list(inputs),
            output_names=["out"],
            inputs=list(inputs.values()),
            output_shapes=[shape],
            output_dtypes=[dtype],
            grid=grid,
            threadgroup=threadgroup,
            mode=request.param,
            include=[headers],
            function_constants=constants,
            syntax=False,
        )
        assert [r for r in result.reports if r.kind not in allowed] == [], str(result.reports[0])
        assert all(r.severity == SPECIFICATION for r in result.reports)
        return np.array(result.outputs[0].astype(mx.float32), np.float64)

    return call


def normal(shape, dtype=mx.float32, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return mx.array(values).astype(dtype)


def wide(x):
    return np.array(x.astype(mx.float32), np.float64)


def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


# Values for function constants of functions that the tests do not call.
UNUSED = dict.fromkeys(range(400), False)

SIMDGROUPS = "thread_index_in_simdgroup, simdgroup_index_in_threadgroup"
ROW = "threadgroup_position_in_grid.x, thread_position_in_threadgroup.x"


def test_softmax_of_one_row_a_threadgroup(call):
    x = normal((8, 3001))
    body = f"softmax_single_row<float, float, 4>(in, out, axis_size, {ROW}, {SIMDGROUPS});"
    inputs = {"in": x, "axis_size": 3001}
    got = call(["softmax.h"], body, inputs, x.shape, mx.float32, (8 * 768, 1, 1), (768, 1, 1))
    np.testing.assert_allclose(got, softmax(wide(x)), rtol=2e-5)


def looped(call, threads):
    x = normal((4, 3001), mx.bfloat16)
    arguments = f"in, out, axis_size, {ROW}, threads_per_threadgroup.x, {SIMDGROUPS}"
    body = f"softmax_looped<bfloat16_t, float, 4>({arguments});"
    inputs = {"in": x, "axis_size": 3001}
    grid, group = (4 * threads, 1, 1), (threads, 1, 1)
    return call(["softmax.h"], body, inputs, x.shape, mx.bfloat16, grid, group), softmax(wide(x))


def test_looped_softmax(call):
    got, want = looped(call, 1024)
    np.testing.assert_allclose(got, want, rtol=5e-3)


def test_looped_softmax_needs_the_threads_that_mlx_gives_it(call):
    """With 8 simdgroups it reads 24 slots that nobody wrote: NaN here, garbage on a Mac."""
    with pytest.raises(AssertionError, match="uninitialised at softmax.h line 1\\d\\d|NaN"):
        got, _ = looped(call, 256)
        assert not np.isnan(got).any(), "NaN"


def test_logsumexp(call):
    x = normal((8, 3001))
    body = f"logsumexp<float, float, 4>(in, out, axis_size, {ROW}, {SIMDGROUPS});"
    inputs = {"in": x, "axis_size": 3001}
    got = call(["logsumexp.h"], body, inputs, (8,), mx.float32, (8 * 768, 1, 1), (768, 1, 1))
    np.testing.assert_allclose(got, np.log(np.exp(wide(x)).sum(axis=1)), rtol=1e-6)


@pytest.mark.parametrize("tile", [(4, 1, 1, 32, 4, 4), (1, 8, 1, 32, 4, 4), (2, 2, 4, 8, 4, 4)])
def test_gemv(call, tile):
    """Outside the specification, but no error: with several simdgroups along K it waits in a
    branch, at a barrier without memory; and lanes without a row return before shuffles."""
    bm, bn, sm, _, tm, _ = tile
    rows, k = 300, 530
    w, v = normal((rows, k), mx.bfloat16), normal((k,), mx.bfloat16, seed=1)
    numbers = ", ".join(map(str, tile))
    body = f"""
        using G = GEMVKernel<bfloat16_t, {numbers}, false>;
        threadgroup float shared[G::tgp_mem_size == 0 ? 1 : G::tgp_mem_size];
        G::run(mat, v, v, out, k, n, ld, alpha, alpha, k,
               G::tgp_mem_size == 0 ? nullptr : shared, threadgroup_position_in_grid,
               thread_position_in_threadgroup, simdgroup_index_in_threadgroup,
               thread_index_in_simdgroup);"""
    inputs = {"mat": w, "v": v, "k": k, "n": rows, "ld": k, "alpha": 1.0}
    groups = -(-rows // (bm * sm * tm))
    got = call(
        ["gemv.h"], body, inputs, (rows,), mx.bfloat16, (groups * 32, bn, bm), (32, bn, bm),
        constants=UNUSED, allowed={"barrier", "race", "divergence", "undefined-lane"},
    )  # fmt: skip
    want = wide(w) @ wide(v)
    np.testing.assert_allclose(got, want, atol=4e-3 * np.abs(want).max())


@pytest.mark.parametrize("m, n, k", [(128, 64, 32), (96, 70, 100)])
def test_steel_gemm(call, m, n, k):
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
    grid = (columns * 32, rows * 2, 2)
    got = call(
        includes, body, {"a": a, "b": b}, (m, n), mx.float16, grid, (32, 2, 2), constants
    )  # fmt: skip
    want = wide(a) @ wide(b)
    np.testing.assert_allclose(got, want, atol=2e-3 * np.abs(want).max())


@pytest.fixture(scope="module")
def weights():
    """4-bit weights in groups of 64, as MLX packs them, and their values."""
    w = normal((256, 1024), seed=3)
    packed, scales, biases = mx.quantize(w.astype(mx.float16), group_size=64, bits=4)
    return packed, scales, biases, wide(mx.dequantize(packed, scales, biases, 64, 4))


QUANTIZED = ["steel/gemm/gemm.h", "quantized_utils.h", "quantized.h"]


def test_quantized_matrix_vector_product(call, weights):
    packed, scales, biases, values = weights
    x = normal((1, 1024), mx.float16, seed=4)
    body = """qmv_fast_impl<float16_t, 64, 4>(
        w, s, b, x, out, k, n, threadgroup_position_in_grid, simdgroup_index_in_threadgroup,
        thread_index_in_simdgroup);"""
    inputs = {"w": packed, "s": scales, "b": biases, "x": x, "k": 1024, "n": 256}
    got = call(QUANTIZED, body, inputs, (1, 256), mx.float16, (32, 64, 1), (32, 2, 1), UNUSED)
    want = wide(x) @ values.T
    np.testing.assert_allclose(got, want, atol=2e-3 * np.abs(want).max())


def test_quantized_matrix_product(call, weights):
    packed, scales, biases, values = weights
    x = normal((40, 1024), mx.float16, seed=4)
    body = """
        threadgroup float16_t xs[32 * (32 + 16 / sizeof(float16_t))];
        threadgroup float16_t ws[32 * (32 + 16 / sizeof(float16_t))];
        qmm_t_impl<float16_t, 64, 4, true, float16_t, 32, 32, 32>(
            w, s, b, x, out, xs, ws, k, n, m, k, threadgroup_position_in_grid,
            thread_index_in_threadgroup, simdgroup_index_in_threadgroup,
            thread_index_in_simdgroup);"""
    inputs = {"w": packed, "s": scales, "b": biases, "x": x, "k": 1024, "n": 256, "m": 40}
    got = call(QUANTIZED, body, inputs, (40, 256), mx.float16, (8 * 32, 4, 2), (32, 2, 2), UNUSED)
    want = wide(x) @ values.T
    np.testing.assert_allclose(got, want, atol=2e-3 * np.abs(want).max())
