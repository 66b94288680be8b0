"""Products in AMX's tiles: its algorithm by the emulated instructions, and by AMX where that is."""

import os
import platform
import shutil
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest

from tests.bounded import run, started
from torchmlx.kernels import fp8_matmul, native, registry
from torchmlx.kernels import quantized_matmul as quantized
from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.attention import attention, reference

# Products of up to 8 rows are not for tiles.
ROWS = (9, 16, 17, 32, 45)
MODULE = native.load()[0]
PATHS = ["amx-emulated", *(["amx"] if MODULE and "amx" in MODULE.instruction_sets() else [])]

matmul = registry.get("matmul").function


@pytest.fixture(params=PATHS)
def tiles(extension, request):
    assert extension.use_instruction_set(request.param)
    assert extension.instruction_set() == request.param
    return extension


def random(*shape, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return mx.array(values).astype(mx.bfloat16)


@pytest.mark.parametrize("rows", ROWS)
def test_products_of_all_remainders(tiles, rows):
    """Rows, columns and k around the sizes of tiles; k beyond a block of 1024."""
    for columns in (1, 16, 31, 98):
        for k in (1, 2, 31, 33, 1027):
            a, b = random(rows, k), random(columns, k, seed=1)
            turned = mx.contiguous(a.T).T
            want = to_numpy(a) @ to_numpy(b).T
            for left in (a, turned):
                for right in (b.T, mx.contiguous(b.T)):
                    assert judge(matmul(left, right), want, 1e-5).fault == "", (columns, k)


def test_any_strides_batches_and_bias(tiles):
    a, b, bias = random(3, 50, 140), random(140, 80, seed=1), random(40, seed=2)
    left, right = a[:, ::-2, 3::3], b[3::3, 1::2]
    linear = registry.get("gemv").function
    want = to_numpy(left) @ to_numpy(right)
    assert judge(matmul(left, right), want, 1e-5).fault == ""
    got = linear(left, mx.contiguous(right.T), bias)
    assert judge(got, want + to_numpy(bias), 1e-5).fault == ""
    assert matmul(mx.zeros((20, 0), mx.bfloat16), mx.zeros((0, 3), mx.bfloat16)).sum().item() == 0


def test_nan_and_infinity(tiles):
    a = random(20, 70)
    a[3, 69], a[5, 0], a[7, 1] = mx.nan, mx.inf, -mx.inf
    got = to_numpy(matmul(a, mx.ones((70, 40), mx.bfloat16)))
    assert np.isnan(got[3]).all() and (got[5] == np.inf).all() and (got[7] == -np.inf).all()
    assert np.isfinite(np.delete(got, (3, 5, 7), axis=0)).all()


def test_sums_as_documented(tiles):
    """Intel's manual, volume 2, TDPBF16PS: first and second values of pairs are summed apart."""
    a = mx.zeros((16, 32), mx.bfloat16)
    a[:, :4] = mx.array([2.0**24, 1, -(2.0**24), 1], mx.bfloat16)
    assert (matmul(a, mx.ones((32, 16), mx.bfloat16)) == 2).all().item()


def test_convolution_by_tiles(tiles):
    """The same sums, which no other path has, in the middle of three taps; whole tiles of zeros
    beside them are no part of a result, whatever was in memory."""
    x = mx.zeros((1, 1, 1, 4), mx.bfloat16)
    x[..., :] = mx.array([2.0**24, 1, -(2.0**24), 1], mx.bfloat16)
    conv2d = registry.get("conv2d").function
    nan = mx.full((40, 3, 3, 40), mx.nan, mx.bfloat16)
    mx.eval(conv2d(nan[:1], nan))
    assert (conv2d(x, mx.ones((16, 1, 3, 4), mx.bfloat16), padding=(0, 1)) == 2).all().item()
    for channels in (1, 3, 33, 70):
        for columns in (1, 16, 33):
            x, w = random(2, 7, 9, channels), random(columns, 3, 3, channels, seed=1)
            want = conv2d(x.astype(mx.float32), w.astype(mx.float32), padding=1)
            assert judge(conv2d(x, w, padding=1), to_numpy(want), 1e-5).fault == ""


def test_attention_by_tiles(tiles):
    """The same sums for scores; weights times values are tiles' too, as subnormal ones are 0."""
    q, k = mx.zeros((1, 1, 16, 4), mx.bfloat16), mx.zeros((1, 1, 2, 4), mx.bfloat16)
    q[..., :] = mx.array([2.0**24, 1, -(2.0**24), 1], mx.bfloat16)
    k[:, :, 0] = 1
    v = mx.array([[[[1.0, 2.0**-127], [0.0, 2.0**-127]]]], mx.bfloat16)
    got = to_numpy(attention(q, k, v, scale=1.0))[0, 0]
    assert np.allclose(got[:, 0], 1 / (1 + np.exp(-2)), rtol=4e-3) and (got[:, 1] == 0).all()


def attended(q, k, v, *, mask=None, lengths=None, **keywords):
    """What is wrong with attention of these, or ""."""
    arrays = (q, k, v, mask, lengths)
    want = reference(*map(to_numpy, arrays), scale=q.shape[3] ** -0.5, **keywords)
    return judge(attention(*arrays, **keywords), want, 1e-8).fault


@pytest.mark.parametrize("d", [40, 80, 96, 128])
def test_attention_of_all_remainders(tiles, d):
    """Queries, keys and values around the sizes of tiles, blocks and units; heads that share keys;
    masks with rows of nothing, windows, fewer keys than there is room for."""
    sizes = ((9, 1, d), (33, 33, 20), (45, 64, 33), (70, 130, d), (300, 65, 8))
    for queries, keys, values in sizes:
        q, k = random(2, 4, queries, d), random(2, 2, keys, d, seed=1)
        v = random(2, 2, keys, values, seed=2)
        rng = np.random.default_rng(3)
        some = rng.random((2, 1, queries, keys)) < 0.5
        some[:, :, ::3] = False
        added = random(1, 4, queries, keys, seed=4)
        lengths = mx.array([keys, keys // 2], mx.int32)
        for keywords in (
            {},
            {"causal": True},
            {"causal": True, "window": 7},
            {"mask": mx.array(some), "lengths": lengths},
            {"mask": added, "lengths": lengths, "causal": True},
        ):
            assert attended(q, k, v, **keywords) == "", (queries, keys, values, keywords)


def test_attention_to_nan_and_infinity(tiles):
    """Infinite values stay infinite, whatever part of a weight has no digits; NaN stays where it
    is, and what is not valid has no influence."""
    q, k = random(1, 2, 20, 40), random(1, 1, 50, 40, seed=1)
    v = random(1, 1, 50, 33, seed=2)
    v[0, 0, 3, 0], v[0, 0, 4, 1], v[0, 0, 5, 32] = mx.inf, -mx.inf, mx.nan
    k[0, 0, 40:], v[0, 0, 40:] = mx.nan, mx.nan
    assert attended(q, k, v, lengths=mx.array([40], mx.int32)) == ""
    one = mx.full((1, 1, 1, 3), -mx.inf, mx.bfloat16)
    assert (attention(q, k[:, :, :1], one) == -mx.inf).all().item()  # of weight 1
    q[0, 0, 2, 3], k[0, 0, 7, 1] = mx.nan, mx.inf
    v = random(1, 1, 50, 33, seed=2)
    assert attended(q, k, v, lengths=mx.array([40], mx.int32)) == ""


# Where in a row two pairs of codes lie that are multiplied together, and codes and scales of 1.
FORMS = {
    ("affine", 64, 4): ((0, 4, 1, 5), 0x11111111, 1.0, mx.bfloat16),
    ("affine", 32, 8): ((0, 1, 2, 3), 0x01010101, 1.0, mx.bfloat16),
    ("mxfp4", 32, 4): ((0, 4, 1, 5), 0x22222222, 127, mx.uint8),
    ("nvfp4", 16, 4): ((0, 4, 1, 5), 0x22222222, 0x38, mx.uint8),
    ("mxfp8", 32, 8): ((0, 1, 2, 3), 0x38383838, 127, mx.uint8),
}


def test_weights_in_few_bits_by_tiles(tiles):
    """The same sums where codes become pairs of bf16, as on processors with AMX."""
    if "avx512bf16" not in tiles.instruction_sets():
        pytest.skip("platform: needs AVX-512 with bf16")

    def row(*places):
        x = mx.zeros((40, 64), mx.bfloat16)
        for place, value in zip(places, (2.0**24, 1, -(2.0**24), 1), strict=True):
            x[:, place] = value
        return x

    codes = mx.full((33, 64), 0x38, mx.uint8)
    assert (fp8_matmul.fp8_linear(row(0, 1, 2, 3), codes, mx.array(1.0)) == 2).all().item()
    for (mode, group, bits), (places, words, scale, dtype) in FORMS.items():
        w = mx.full((33, 64 * bits // 32), words, mx.uint32)
        scales = mx.full((33, 64 // group), scale, dtype)
        biases = mx.zeros_like(scales) if mode == "affine" else None
        form = {"group_size": group, "bits": bits, "mode": mode}
        got = quantized.quantized_matmul(row(*places), w, scales, biases, **form)
        assert (got == 2).all().item(), (mode, bits)


@pytest.mark.parametrize("threads", [1, 3])
def test_weights_in_few_bits_of_several_strips(tiles, threads):
    """Strips that share rows, the last of them broken; rows and k in whole and broken tiles."""
    tiles.set_threads(threads)
    rng = np.random.default_rng(0)
    for n, k, rows in ((300, 384, 45), (450, 1120, 33)):
        x = random(rows, k)
        w = mx.array(rng.standard_normal((n, k), np.float32))
        codes = mx.to_fp8(w)
        for shape in ((), (n, 1), (-(-n // 128), -(-k // 128))):
            scale = mx.array(rng.uniform(0.5, 1.0, shape).astype(np.float32))
            want = fp8_matmul.reference(to_numpy(x), np.array(codes), np.array(scale), block=128)
            assert judge(fp8_matmul.fp8_linear(x, codes, scale), want, 1e-8).fault == ""
        for mode, group, bits in FORMS:
            if k % group:
                continue
            form = {"group_size": group, "bits": bits, "mode": mode}
            parts = mx.quantize(w, **form)
            want = quantized.reference(*map(to_numpy, (x, *parts)), **form)
            got = quantized.quantized_matmul(x, *parts, **form)
            assert judge(got, want, 5e-8).fault == "", (mode, bits)


def test_subnormal_numbers_are_zero(tiles):
    ones = mx.ones((2, 16), mx.bfloat16)
    for tiny, want in ((2.0**-127, 0.0), (2.0**-126, 2.0**-126)):
        a = mx.zeros((16, 2), mx.bfloat16)
        a[:, 0] = tiny
        np.testing.assert_array_equal(to_numpy(matmul(a, ones)), np.full((16, 16), want))
    a[:, 0] = mx.array([1.5 * 2.0**-126], mx.bfloat16)  # less 2^-126: 2^-127
    a[:, 1] = mx.array([-(2.0**-126)], mx.bfloat16)
    assert (to_numpy(matmul(a, ones)) == 0).all()


def test_results_do_not_depend_on_threads(tiles):
    a, b = random(40, 1100), random(1100, 100, seed=1)
    results = []
    for threads in (1, 3):
        tiles.set_threads(threads)
        results.append(to_numpy(matmul(a, b)))
    np.testing.assert_array_equal(*results)


def test_other_types_are_as_ever(extension):
    """Tiles multiply bfloat16 alone."""
    a, b = random(20, 70), random(70, 40, seed=1)
    for dtype in (mx.float32, mx.float16):
        results = []
        for isa in (extension.instruction_sets()[-1], "amx-emulated"):
            extension.use_instruction_set(isa)
            results.append(to_numpy(matmul(a.astype(dtype), b.astype(dtype))))
        np.testing.assert_allclose(*results, rtol=2e-3, atol=2e-2)


def test_chosen_by_the_environment(extension):
    code = "from torchmlx.kernels import native; print(native.load()[0].instruction_set())"
    environment = {**os.environ, "TORCHMLX_CPU_ISA": "amx-emulated"}
    command = [sys.executable, "-c", code]
    done = run(command, env=environment)
    assert done.stdout.strip() == "amx-emulated", done.stderr


def test_the_extension_has_the_instructions(extension):
    if platform.machine() != "x86_64" or not shutil.which("objdump"):
        pytest.skip("platform: needs x86-64 and objdump")
    wanted = {"tdpbf16ps", "tileloadd", "tilestored", "tilezero", "ldtilecfg", "tilerelease"}
    command = ["objdump", "-d", "--no-show-raw-insn", extension.__file__]
    with started(command, stdout=subprocess.PIPE, text=True) as objdump:
        for line in objdump.stdout or ():
            wanted -= set(line.split())
            if not wanted:
                break  # the rest would take seconds
    assert not wanted
