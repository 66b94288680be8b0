"""Products with weights in few bits, and of experts: what the registry's cases leave out."""

import mlx.core as mx
import numpy as np
import pytest

from torchmlx.kernels import e4m3, moe_decode, native
from torchmlx.kernels import quantized_matmul as quantized
from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.dispatch import trace, use
from torchmlx.kernels.fp8_matmul import fp8_linear, reference
from torchmlx.kernels.grouped_matmul import grouped_matmul
from torchmlx.kernels.grouped_matmul import reference as grouped_reference

MODULE = native.load()[0]
SETS = [*MODULE.instruction_sets(), "amx-emulated"] if MODULE else ["portable"]
DTYPES = {mx.float32: 1e-12, mx.float16: 1e-9, mx.bfloat16: 1e-8}


def random_codes(rng, shape):
    return mx.array(e4m3.narrow(100 * rng.standard_normal(shape)))


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("rows", [1, 3, 8, 20])
def test_every_code_has_its_value(extension, isa, rows):
    """Each of the 256 alone in its row, at another place of a vector: exact in every dtype."""
    extension.use_instruction_set(isa)
    codes = np.zeros((256, 67), np.uint8)
    codes[np.arange(256), np.arange(256) % 67] = np.arange(256)
    want = np.broadcast_to(e4m3.VALUES, (rows, 256))
    for dtype in DTYPES:
        for scale in (mx.array(1.0), mx.ones((256, 1)), mx.ones((2, 1))):
            got = fp8_linear(mx.ones((rows, 67), dtype), mx.array(codes), scale)
            np.testing.assert_array_equal(to_numpy(got), want)


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 9, 29])
def test_fp8_products_of_all_remainders(extension, isa, rows):
    """Rows, columns and k around the sizes of vectors, tiles, stretches and blocks."""
    extension.use_instruction_set(isa)
    rng = np.random.default_rng(rows)
    sizes = ((1, 1, 128), (7, 63, 64), (33, 200, 64), (130, 1100, 128), (64, 2050, 1024))
    for n, k, block in sizes:
        w = random_codes(rng, (n, k))
        grid = (-(-n // block), -(-k // block))
        for dtype, limit in DTYPES.items():
            x = mx.array(rng.standard_normal((rows, k), np.float32)).astype(dtype)
            for shape in ((), (n, 1), grid):
                scale = mx.array(rng.uniform(0.001, 0.01, shape).astype(np.float32))
                want = reference(to_numpy(x), np.array(w), np.array(scale), block=block)
                with trace() as calls:
                    got = fp8_linear(x, w, scale, block)
                assert judge(got, want, limit).fault == "", (n, k, shape, dtype)
                assert calls[-1].backend == "cpu"


def test_blocks_of_odd_length_go_to_mlx(extension):
    rng = np.random.default_rng(0)
    w, x = random_codes(rng, (20, 100)), mx.array(rng.standard_normal((2, 100), np.float32))
    scale = mx.array(rng.uniform(0.001, 0.01, (1, 2)).astype(np.float32))
    with trace() as calls:
        got = fp8_linear(x, w, scale, 50)
    # The fallback multiplies by a kernel of its own.
    assert [call.backend for call in calls if call.kernel == "fp8_matmul"] == ["fallback"]
    want = reference(to_numpy(x), np.array(w), np.array(scale), block=50)
    assert judge(got, want, 1e-12).fault == ""


@pytest.mark.parametrize("isa", SETS)
def test_fp8_does_not_depend_on_threads(extension, isa):
    extension.use_instruction_set(isa)
    rng = np.random.default_rng(0)
    w = random_codes(rng, (700, 520))
    scale = mx.array(rng.uniform(0.001, 0.01, (6, 5)).astype(np.float32))
    x = mx.array(rng.standard_normal((40, 520), np.float32)).astype(mx.bfloat16)
    results = []
    for threads in (1, 3):
        extension.set_threads(threads)
        results.append([to_numpy(fp8_linear(x[:rows], w, scale)) for rows in (1, 6, 40)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("isa", SETS)
def test_groups_of_all_sizes(extension, isa):
    """Empty groups, one row, more rows than a part; offsets computed in the same lazy graph."""
    extension.use_instruction_set(isa)
    rng = np.random.default_rng(0)
    sizes = [0, 1, 9, 0, 300, 2, 0]
    for threads in (1, 2, 5):
        extension.set_threads(threads)
        for dtype, limit in DTYPES.items():
            a = mx.array(rng.standard_normal((320, 70), np.float32)).astype(dtype)
            b = mx.array(rng.standard_normal((7, 70, 33), np.float32)).astype(dtype)
            got = grouped_matmul(a, b, mx.cumsum(mx.array(sizes, mx.int32)))
            want = grouped_reference(to_numpy(a), to_numpy(b), np.cumsum(sizes))
            assert judge(got, want, limit).fault == ""
            assert not to_numpy(got)[312:].any()


def test_offsets_out_of_range_write_nothing_else(extension):
    """Negative, beyond the end, or falling: clamped; what is computed stays in the result."""
    a, b = mx.ones((6, 5)), mx.ones((4, 5, 3))
    for offs in ([-7, 99, 3, 2**31 - 1], [-3, -2, -1, -5], [6, 2, 0, 1]):
        out = to_numpy(grouped_matmul(a, b, mx.array(offs, mx.int32)))
        assert np.isin(out, (0.0, 5.0)).all()
        inner = to_numpy(grouped_matmul(a.T, mx.ones((6, 3)), mx.array(offs, mx.int32)))
        assert ((inner >= 0) & (inner <= 6)).all()


@pytest.mark.parametrize("isa", SETS)
def test_many_tokens_share_experts(extension, isa):
    """More places an expert than rows at a time, experts that nobody chose; any threads."""
    extension.use_instruction_set(isa)
    case = moe_decode.KERNEL.cases[4]
    rng = np.random.default_rng(0)
    for dtype, limit in (("float32", 4e-12), ("bfloat16", 1e-8)):
        _, gate_up, down, _, _ = case.make(dtype)
        x = mx.array(rng.standard_normal((50, 150), np.float32)).astype(gate_up.dtype)
        indices = mx.array(rng.integers(-1, 3, (50, 3)).astype(np.int32))
        weights = mx.array(rng.uniform(0.1, 1.0, (50, 3)).astype(np.float32))
        arrays = (x, gate_up, down, indices, weights)
        want = moe_decode.reference(*map(to_numpy, arrays))
        for threads in (1, 3):
            extension.set_threads(threads)
            with use("cpu"):
                assert judge(moe_decode.moe_decode(*arrays), want, limit).fault == ""


def test_other_bits_go_to_mlx(extension):
    rng = np.random.default_rng(0)
    x = mx.array(rng.standard_normal((2, 192), np.float32))
    for bits in (2, 3, 5, 6):
        form = {"group_size": 64, "bits": bits, "mode": "affine"}
        w = mx.quantize(mx.array(rng.standard_normal((16, 192), np.float32)), **form)
        with trace() as calls:
            got = quantized.quantized_matmul(x, *w, **form)
        assert calls[-1].backend == "fallback"
        assert judge(got, quantized.reference(*map(to_numpy, (x, *w)), **form), 1e-11).fault == ""


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("mode", quantized.DEFAULTS)
def test_quantised_products_of_all_remainders(extension, isa, mode):
    """Weights that MLX quantised: k in whole and broken steps, rows in whole and broken runs."""
    extension.use_instruction_set(isa)
    rng = np.random.default_rng(0)
    group = quantized.DEFAULTS[mode][0]
    for n, groups in ((1, 1), (5, 3), (33, 9), (70, 34)):
        k = max(group, 32) * groups
        w = mx.quantize(mx.array(rng.standard_normal((n, k), np.float32)), mode=mode)
        form = dict(zip(("group_size", "bits"), quantized.DEFAULTS[mode], strict=True), mode=mode)
        for dtype, limit in DTYPES.items():
            for rows in (1, 2, 4, 7, 9, 25):
                x = mx.array(rng.standard_normal((rows, k), np.float32)).astype(dtype)
                want = quantized.reference(*map(to_numpy, (x, *w)), **form)
                got = quantized.quantized_matmul(x, *w, mode=mode)
                assert judge(got, want, 5 * limit).fault == "", (n, k, rows, dtype)


@pytest.mark.parametrize("isa", SETS)
def test_nan_and_infinite_scales(extension, isa):
    """e4m3 codes and scales that are NaN; an exponent of 255 is infinity, as MLX has it."""
    extension.use_instruction_set(isa)
    for rows in (1, 30):
        x = mx.ones((rows, 64))
        words = mx.full((3, 16), 0x38383838, mx.uint32)
        words[1, 5] = mx.array(0xFF383838, mx.uint32)
        scales = mx.full((3, 2), 127, mx.uint8)
        got = to_numpy(quantized.quantized_matmul(x, words, scales, mode="mxfp8"))
        np.testing.assert_array_equal(got, np.tile([64.0, np.nan, 64.0], (rows, 1)))
        words, scales = mx.full((3, 8), 0x22222222, mx.uint32), mx.full((3, 2), 127, mx.uint8)
        scales[2, 1] = mx.array(255, mx.uint8)
        got = to_numpy(quantized.quantized_matmul(x, words, scales, mode="mxfp4"))
        np.testing.assert_array_equal(got, np.tile([64.0, 64.0, np.inf], (rows, 1)))
        scales = mx.full((3, 4), 0x38, mx.uint8)
        scales[0, 3] = mx.array(0x7F, mx.uint8)
        got = to_numpy(quantized.quantized_matmul(x, words, scales, mode="nvfp4"))
        np.testing.assert_array_equal(got, np.tile([np.nan, 64.0, 64.0], (rows, 1)))
