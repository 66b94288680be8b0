"""Every kernel with a C++ primitive, every case, on every instruction set the machine can run."""

import mlx.core as mx
import numpy as np
import pytest

from torchmlx.kernels import native, registry
from torchmlx.kernels.accuracy import bound, judge, to_numpy
from torchmlx.kernels.dispatch import trace, use

KERNELS = [kernel for name in registry.names() if (kernel := registry.get(name)).cpu]
RUNS = [
    pytest.param(kernel, case, dtype, id=f"{kernel.name}-{case.label}-{dtype}")
    for kernel in KERNELS
    for case in kernel.cases
    for dtype in kernel.nmse
]
MODULE = native.load()[0]
SETS = MODULE.instruction_sets() if MODULE else ["portable"]

# AMX's algorithm too, on whatever machine.
PATHS = [*SETS, "amx-emulated"]


def as_tuple(results):
    return tuple(results) if isinstance(results, tuple | list) else (results,)


def faults(kernel, want, arrays, keywords):
    results = as_tuple(kernel.function(*arrays, **keywords))
    pairs = zip(results, as_tuple(want), strict=True)
    return {judge(got, each, bound(kernel.nmse, got.dtype)).fault for got, each in pairs}


@pytest.mark.parametrize("kernel, case, dtype", RUNS)
def test_every_path_matches_the_reference(extension, kernel, case, dtype):
    arrays = case.make(dtype)
    with np.errstate(invalid="ignore"):
        want = kernel.reference(*map(to_numpy, arrays), **case.keywords)
    for isa in PATHS:
        assert extension.use_instruction_set(isa)
        with use("cpu"), trace() as calls:
            assert faults(kernel, want, arrays, case.keywords) == {""}, isa
        assert {call.backend for call in calls if call.kernel == kernel.name} == {"cpu"}


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("rows", [1, 5, 8, 9, 13, 14, 15, 29])
def test_products_of_all_remainders(extension, isa, rows):
    """Rows, columns and k around the sizes of vectors and tiles, and k beyond a block."""
    extension.use_instruction_set(isa)
    matmul = registry.get("matmul").function
    rng = np.random.default_rng(rows)
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        for columns in (1, 7, 16, 31, 33, 130):
            for k in (1, 2, 15, 17, 63, 1031):
                a = mx.array(rng.standard_normal((rows, k), np.float32)).astype(dtype)
                b = mx.array(rng.standard_normal((columns, k), np.float32)).astype(dtype)
                want = to_numpy(a) @ to_numpy(b).T
                limit = 1e-11 if dtype == mx.float32 else 1e-8
                assert judge(matmul(a, b.T), want, limit).fault == ""
                assert judge(matmul(a, mx.contiguous(b.T)), want, limit).fault == ""


@pytest.mark.parametrize("isa", SETS)
def test_every_half_value_goes_through(extension, isa):
    """All 65,536 bit patterns times one are themselves, NaN and subnormal numbers included."""
    extension.use_instruction_set(isa)
    bits = mx.arange(65_536, dtype=mx.uint32).astype(mx.uint16)
    for dtype in (mx.float16, mx.bfloat16):
        values = bits.view(dtype)[:, None]
        got = to_numpy(registry.get("matmul").function(values, mx.ones((1, 3), dtype)))
        want = to_numpy(values)
        if isa == "avx512bf16" and dtype == mx.bfloat16:
            # vdpbf16ps takes subnormal inputs for zero.
            want = np.where(np.abs(want) < np.finfo(np.float32).tiny, 0.0, want)
        np.testing.assert_array_equal(got, np.broadcast_to(want, got.shape))


@pytest.mark.parametrize("isa", SETS)
def test_results_do_not_depend_on_threads(extension, isa):
    extension.use_instruction_set(isa)
    rng = np.random.default_rng(0)
    x = mx.array(rng.standard_normal((70, 1500), np.float32))
    w = mx.array(rng.standard_normal((400, 1500), np.float32))
    long = mx.array(rng.standard_normal((1, 100_000), np.float32))
    linear, softmax = (registry.get(name).function for name in ("gemv", "softmax"))
    results = []
    for threads in (1, 2, 5):
        extension.set_threads(threads)
        assert extension.threads() == threads
        results.append([to_numpy(y) for y in (linear(x, w), linear(x[:3], w), softmax(long))])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-9)
