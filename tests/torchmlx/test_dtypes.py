"""dtypes as objects, their limits, float8 bits, and what is refused."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest

import torchmlx


def test_a_dtype_is_one_object(torch):
    assert torch.half is torch.float16
    assert torch.long is torch.int64
    assert pickle.loads(pickle.dumps(torch.bfloat16)) is torch.bfloat16
    assert copy.deepcopy(torch.int8) is torch.int8
    assert (str(torch.float32), repr(torch.bool)) == ("torch.float32", "torch.bool")


def test_what_a_dtype_knows(torch):
    assert torch.float16.is_floating_point
    assert not torch.int8.is_floating_point
    assert torch.complex64.is_complex
    assert [d.itemsize for d in (torch.int8, torch.bfloat16, torch.float64)] == [1, 2, 8]
    assert torch.int8.is_signed
    assert not torch.uint8.is_signed
    assert torch.float32.to_complex() is torch.complex64


def test_limits(torch):
    assert torch.finfo(torch.bfloat16).eps == 2.0**-7
    assert torch.finfo(torch.float16).max == 65504
    assert torch.finfo(torch.float32).tiny == 2.0**-126
    assert torch.finfo(torch.float8_e4m3fn).max == 448
    assert (torch.iinfo(torch.int16).min, torch.iinfo(torch.uint8).max) == (-32768, 255)
    with pytest.raises(TypeError):
        torch.finfo(torch.int32)
    with pytest.raises(TypeError):
        torch.iinfo(torch.float32)


def test_casting_rules(torch):
    assert torch.can_cast(torch.int32, torch.float16)
    assert not torch.can_cast(torch.float32, torch.int64)
    assert not torch.can_cast(torch.int8, torch.bool)
    assert torch.tensor([2.7, -2.7]).int().tolist() == [2, -2]
    assert torch.tensor([0.5, 0.0]).bool().tolist() == [True, False]
    assert torch.tensor([300]).to(torch.uint8).tolist() == [44]
    assert torch.tensor([1j, 0]).bool().tolist() == [True, False]


def test_default_dtype(torch):
    try:
        torch.set_default_dtype(torch.float64)
        assert torch.tensor([1.0]).dtype == torch.float64
        assert (torch.ones(1, dtype=torch.int64) / 2).dtype == torch.float64
        assert torch.zeros(1).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    with pytest.raises(TypeError):
        torch.set_default_dtype(torch.int64)


SPECIAL = {
    464.0: 0x7E, 480.0: 0x7E, 1e9: 0x7E, math.inf: 0x7E, -math.inf: 0xFE, -0.0: 0x80,
    1.0625: 0x38, 1.1875: 0x3A, 2.0**-9: 0x01, 2.0**-10: 0x00, 3 * 2.0**-10: 0x02,
}  # fmt: skip


def test_float8_saturates_and_rounds_to_even(torch):
    x = torch.tensor(list(SPECIAL)).to(torch.float8_e4m3fn)
    assert x.dtype == torch.float8_e4m3fn
    assert x.view(torch.uint8).tolist() == list(SPECIAL.values())
    nan = torch.tensor([0x7FC00000, 0xFFC00000 - 2**32], dtype=torch.int32).view(torch.float32)
    assert nan.to(torch.float8_e4m3fn).view(torch.uint8).tolist() == [0x7F, 0xFF]


def test_float8_decodes_all_codes():
    codes = torchmlx.arange(256, dtype=torchmlx.uint8).view(torchmlx.float8_e4m3fn).float()
    values = np.array(codes.tolist())
    sign, exponent, mantissa = np.arange(256) >> 7, np.arange(256) >> 3 & 15, np.arange(256) & 7
    expected = np.where(
        exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0)
    )
    expected = np.where(np.arange(256) & 127 == 127, np.nan, np.where(sign, -expected, expected))
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float8_of_every_half_has_the_bits_of_torch(dtype):
    torch = pytest.importorskip("torch")
    patterns = np.arange(2**16, dtype=np.uint16).view(np.int16)
    bits = [
        lib.from_numpy(patterns.copy()).view(getattr(lib, dtype)).to(lib.float8_e4m3fn)
        for lib in (torch, torchmlx)
    ]
    theirs, ours = (
        b.view(lib.uint8).numpy() for b, lib in zip(bits, (torch, torchmlx), strict=True)
    )
    np.testing.assert_array_equal(ours, theirs)


def test_float8_moves_but_does_not_compute(torch):
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).to(torch.float8_e4m3fn)
    assert x.view(2, 2).t()[0].float().tolist() == [1, 3]
    assert torch.cat([x, x])[4:].float().tolist() == [1, 2, 3, 4]
    x[0] = 2.5
    x[1:2].copy_(torch.tensor([448.0]))
    assert x.tolist() == [2.5, 448, 3, 4]
    assert x.clone().fill_(0.5).tolist() == [0.5] * 4
    for compute in (lambda: x + 1, lambda: x.exp(), lambda: x.sum()):
        with pytest.raises(NotImplementedError, match="Float8_e4m3fn"):
            compute()
    with pytest.raises(RuntimeError, match="Float8"):
        torch.promote_types(torch.float8_e4m3fn, torch.float32)


def test_complex128_is_refused_by_name():
    for make in (
        lambda t: t.zeros(1, dtype=t.complex128),
        lambda t: t.zeros(1).to(t.complex128),
        lambda t: t.zeros(1, dtype=t.float64) * 1j,
        lambda t: t.tensor([1j], dtype=t.complex128),
    ):
        with pytest.raises(TypeError, match="complex128"):
            make(torchmlx)
