"""float8 e4m3 casts: torch's bits for every code, every half, and a sweep of float32."""

import mlx.core as mx
import numpy as np
import pytest
import torch

from torchmlx.kernels import e4m3
from torchmlx.kernels.accuracy import to_numpy
from torchmlx.kernels.fp8_cast import choose, from_fp8, launch, problem, to_fp8
from torchmlx.kernels.spec import OLDEST

TORCH = {mx.float32: torch.float32, mx.float16: torch.float16, mx.bfloat16: torch.bfloat16}
CODES = np.arange(256, dtype=np.uint8)


def torch_codes(x: torch.Tensor) -> np.ndarray:
    return x.to(torch.float8_e4m3fn).view(torch.uint8).numpy()


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_every_half_as_in_torch(dtype):
    bits = np.arange(65536, dtype=np.uint16)
    want = torch_codes(torch.tensor(bits.view(np.int16)).view(TORCH[dtype]))
    x = mx.array(bits).view(dtype)
    np.testing.assert_array_equal(np.array(to_fp8(x)), want)
    np.testing.assert_array_equal(e4m3.narrow(to_numpy(x)), want)


def test_float32_as_in_torch():
    """Random bits, so every exponent, NaN and infinity; and both sides of each tie."""
    rng = np.random.default_rng(0)
    ties = ((e4m3.FINITE[1:] + e4m3.FINITE[:-1]) / 2).astype(np.float32)
    near = [ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(1e9))]
    with np.errstate(invalid="ignore"):
        x = np.concatenate([rng.integers(0, 2**32, 200_000, np.uint32).view(np.float32), *near])
    want = torch_codes(torch.tensor(x))
    np.testing.assert_array_equal(np.array(to_fp8(mx.array(x))), want)
    np.testing.assert_array_equal(e4m3.narrow(x), want)


def test_float64_goes_through_float32_as_in_torch():
    x = np.array([1.0625 + 1e-12, -447.9, np.nan, 2.0**-10])
    with mx.stream(mx.cpu):
        got = np.array(to_fp8(mx.array(x, mx.float64)))
    np.testing.assert_array_equal(got, torch_codes(torch.tensor(x)))


@pytest.mark.parametrize("dtype", TORCH)
def test_every_code_as_in_torch(dtype):
    want = torch.tensor(CODES).view(torch.float8_e4m3fn).to(TORCH[dtype]).double().numpy()
    np.testing.assert_array_equal(to_numpy(from_fp8(mx.array(CODES), dtype)), want)
    np.testing.assert_array_equal(e4m3.widen(CODES), want)


def test_every_code_as_float64():
    with mx.stream(mx.cpu):
        got = np.array(from_fp8(mx.array(CODES), mx.float64))
    np.testing.assert_array_equal(got, e4m3.VALUES)


def test_there_and_back():
    for dtype in TORCH:
        back = np.array(to_fp8(from_fp8(mx.array(CODES), dtype)))
        kept = (CODES & 0x7F) != 0x7F
        np.testing.assert_array_equal(back[kept], CODES[kept])
        np.testing.assert_array_equal(back[~kept] & 0x7F, 0x7F)


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_empty_and_zero_dimensions(shape):
    codes = to_fp8(mx.ones(shape))
    assert (codes.shape, codes.dtype) == (shape, mx.uint8)
    np.testing.assert_array_equal(np.array(from_fp8(codes, mx.float32)), np.ones(shape))


def test_wrong_dtypes():
    with pytest.raises(TypeError, match="to_fp8 takes a floating dtype, not .*int32"):
        to_fp8(mx.zeros((2,), mx.int32))
    with pytest.raises(TypeError, match="from_fp8 takes uint8 .* not .*float32"):
        from_fp8(mx.zeros((2,)))
    with pytest.raises(TypeError, match="gives a floating dtype"):
        from_fp8(mx.zeros((2,), mx.uint8), mx.int32)


def test_choose_and_launch():
    cast = problem(mx.zeros((3, 100)), mx.uint8)
    assert choose(cast, OLDEST) == "flat"
    (flat,) = launch(cast, "flat")
    assert (flat.grid, flat.threadgroup) == ((96, 1, 1), (256, 1, 1))
    empty = problem(mx.zeros((0,)), mx.uint8)
    assert choose(empty, OLDEST) == "fallback"
    assert choose(problem(mx.zeros((2,), mx.uint8), mx.float64), OLDEST) == "fallback"
    with pytest.raises(ValueError, match="1 to 2..31 - 1 elements, not 0"):
        launch(empty, "flat")
