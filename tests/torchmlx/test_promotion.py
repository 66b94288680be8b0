"""Result dtypes and the values that follow from them: 0-dim rules, wraparound, scalars in half."""

from __future__ import annotations

import itertools
import math

import pytest

import torchmlx

NAMES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
)  # fmt: skip


def test_zero_dim_tensors_promote_by_category_only(torch):
    half, one = torch.ones(1, dtype=torch.float16), torch.tensor(1.0)
    assert (half + one).dtype == torch.float16
    assert (half + torch.ones(1)).dtype == torch.float32
    assert (torch.ones(2, dtype=torch.int8) + torch.tensor(300)).dtype == torch.int8
    assert (torch.ones(2, dtype=torch.int64) * torch.tensor(0.5)).dtype == torch.float32
    assert (torch.tensor(1, dtype=torch.int8) + torch.tensor(1)).dtype == torch.int64
    assert (torch.tensor(1.0) + torch.tensor(1.0, dtype=torch.float64)).dtype == torch.float64


def test_python_numbers(torch):
    small = torch.tensor([250], dtype=torch.uint8)
    assert (small + 10).tolist() == [4]
    assert (small + 1.5).dtype == torch.float32
    assert (torch.tensor([True]) + 1).dtype == torch.int64
    assert (torch.tensor([True]) + True).dtype == torch.bool
    assert (torch.ones(1, dtype=torch.bfloat16) * 2.5).dtype == torch.bfloat16
    assert (torch.ones(1) + 1j).dtype == torch.complex64


def test_every_pair_of_dtypes_promotes_as_in_torch():
    torch = pytest.importorskip("torch")
    for a, b in itertools.product(NAMES, NAMES):
        ours = torchmlx.promote_types(getattr(torchmlx, a), getattr(torchmlx, b))
        assert str(ours) == str(torch.promote_types(getattr(torch, a), getattr(torch, b)))
        for shapes in itertools.product(((1,), ()), repeat=2):
            pair = [
                [lib.zeros(s, dtype=getattr(lib, n)) for s, n in zip(shapes, (a, b), strict=True)]
                for lib in (torch, torchmlx)
            ]
            theirs, ours = torch.result_type(*pair[0]), torchmlx.result_type(*pair[1])
            assert str(ours) == str(theirs), (a, b, shapes)


def test_integers_wrap_around(torch):
    top = torch.tensor([127, -128], dtype=torch.int8)
    assert (top + 1).tolist() == [-128, -127]
    assert (-top).tolist() == [-127, -128]
    assert (torch.tensor([2**62]) * 4).tolist() == [0]
    assert (torch.tensor([2**63 - 1]) + 1).tolist() == [-(2**63)]
    assert (torch.tensor([3, 2**31]) ** 2).tolist() == [9, 2**62]


def test_integers_beyond_float_precision_are_exact(torch):
    big = torch.tensor([2**53 + 1, -(2**62) - 1])
    assert (big * 1).tolist() == big.abs().mul(torch.tensor([1, -1])).tolist()
    assert (big // 2).tolist() == [2**52, -(2**61) - 1]
    assert (big % 2).tolist() == [1, 1]
    assert torch.maximum(big, big - 1).tolist() == big.tolist()
    assert (big > big - 1).tolist() == [True, True]


def test_division_and_remainder_signs(torch):
    a, b = torch.tensor([7, -7, 7, -7]), torch.tensor([2, 2, -2, -2])
    assert (a // b).tolist() == [3, -4, -4, 3]
    assert (a % b).tolist() == [1, 1, -1, -1]
    assert torch.fmod(a, b).tolist() == [1, -1, 1, -1]
    assert torch.div(a, b, rounding_mode="trunc").tolist() == [3, -3, -3, 3]
    assert (a / b).tolist() == [3.5, -3.5, -3.5, 3.5]
    assert (a.double() // b).tolist() == [3, -4, -4, 3]


def test_the_least_integer_by_minus_one(torch):
    """MLX traps here, which ends the process."""
    for name, low in (("int32", -(2**31)), ("int64", -(2**63)), ("int8", -128)):
        x = torch.tensor([low], dtype=getattr(torch, name))
        assert (x // -1).tolist() == [low]
        assert (x % -1).tolist() == [0]


def test_integer_division_by_zero_is_an_error(torch):
    for make in (lambda x: x // 0, lambda x: x % 0, lambda x: torch.fmod(x, 0)):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            make(torch.tensor([1]))
    assert (torch.tensor([1, -1, 0]) / 0).tolist()[:2] == [math.inf, -math.inf]


def test_floor_division_of_floats_rounds_once(torch):
    assert (torch.tensor([1.0]) // 0.1).tolist() == [9]
    assert (torch.tensor([-1.0, 5.0, math.inf]) // torch.tensor([0.0, -2.0, 1.0])).tolist()[:2] == [
        -math.inf,
        -3,
    ]
    assert math.copysign(1, (torch.tensor([-0.0]) % 3.0).item()) == -1


def test_signs_of_zero_and_nan(torch):
    x = torch.tensor([0.0, -0.0, math.nan])
    assert [math.copysign(1, v) for v in (x * -1).tolist()[:2]] == [-1, 1]
    assert (x == x).tolist() == [True, True, False]
    assert (1 / x).tolist()[:2] == [math.inf, -math.inf]
    assert math.isnan(torch.maximum(x, torch.tensor(1.0))[2].item())
    assert torch.fmax(x, torch.tensor(1.0)).tolist() == [1, 1, 1]
    assert math.isnan(x.clamp(0, 1)[2].item())


def test_scalars_in_half_precision(torch):
    """Multiplication keeps the number in float32; addition rounds it to half first."""
    x = torch.tensor([1.5], dtype=torch.bfloat16)
    assert (x * 1.7).tolist() == [2.546875]
    assert (x + -1.7).tolist() == [-0.203125]
    assert (torch.zeros(1, dtype=torch.float16) * 2**40).tolist() == [0]


def test_in_place_keeps_the_dtype_or_refuses(torch):
    x = torch.ones(2, dtype=torch.int64)
    x += True
    assert (x.dtype, x.tolist()) == (torch.int64, [2, 2])
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        x += 1.5
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        x /= 2
    half = torch.ones(2, dtype=torch.float16)
    half += torch.ones(2, dtype=torch.float64)
    assert (half.dtype, half.tolist()) == (torch.float16, [2, 2])


def test_bool_arithmetic(torch):
    a = torch.tensor([True, False])
    assert (a + a).tolist() == [True, False]
    assert (a * a).dtype == torch.bool
    assert (~a).tolist() == [False, True]
    for make in (lambda: a - a, lambda: a - torch.ones(2), lambda: 1 - a, lambda: -a):
        with pytest.raises(RuntimeError, match="not supported"):
            make()


def test_where_and_clamp_promote(torch):
    condition = torch.tensor([True, False])
    assert torch.where(condition, 1.0, torch.zeros(2, dtype=torch.float16)).dtype == torch.float16
    assert torch.where(condition, 1, 2).dtype == torch.int64
    assert torch.clamp(torch.tensor([1, 5]), 2.5).tolist() == [2.5, 5]


def test_shifts(torch):
    x = torch.tensor([-8, 5], dtype=torch.int32)
    assert (x >> 1).tolist() == [-4, 2]
    assert (x >> 40).tolist() == [-1, 0]
    assert (x << 32).tolist() == [0, 0]


def test_float64_is_not_float32(torch):
    x = torch.tensor([0.1, 3.0], dtype=torch.float64)
    assert x.tolist() == [0.1, 3.0]
    for name, function in (("exp", math.exp), ("sin", math.sin), ("cos", math.cos)):
        expected = [function(v) for v in x.tolist()]
        assert getattr(x, name)().tolist() == pytest.approx(expected, rel=1e-14)
    assert x.sigmoid().tolist() == pytest.approx(
        [1 / (1 + math.exp(-v)) for v in (0.1, 3)], rel=1e-14
    )
    assert torch.full((1,), 0.1, dtype=torch.float64).tolist() == [0.1]


def test_numbers_that_do_not_fit_are_refused(torch):
    x = torch.zeros(2, dtype=torch.uint8)
    for make in (
        lambda: x.fill_(300),
        lambda: x.__setitem__(0, 256),
        lambda: x.masked_fill(x == 0, 1000),
        lambda: torch.full((1,), 300, dtype=torch.uint8),
        lambda: torch.tensor(300, dtype=torch.uint8),
    ):
        with pytest.raises(RuntimeError, match="without overflow"):
            make()
    assert x.fill_(-1).tolist() == [255, 255]


def test_true_division_by_small_integers_of_any_dtype(torch):
    a, b = torch.tensor(255, dtype=torch.uint8), torch.tensor([3], dtype=torch.int8)
    assert (a / b).tolist() == [85]
