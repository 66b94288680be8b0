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
from torchmlx.kernels import native, registry
from torchmlx.kernels.accuracy import judge, to_numpy

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
