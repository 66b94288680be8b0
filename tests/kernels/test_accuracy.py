"""The rule that decides whether a result is right."""

import mlx.core as mx
import numpy as np
import pytest

from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.spec import Spec

WANT = np.array([1.0, -2.0, 3.0, 0.1])


def test_a_rounded_reference_is_right():
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        verdict = judge(mx.array(WANT.astype(np.float32)).astype(dtype), WANT, 1e-12)
        assert verdict.fault == ""
        assert verdict.nmse == pytest.approx(verdict.limit - 1e-12)


def test_nmse_is_error_power_over_signal_power():
    verdict = judge(mx.array([1.0, -2.0, 3.0, 0.2]), WANT, 1e-3)
    assert verdict.nmse == pytest.approx(0.01 / 14.01, rel=1e-5)
    assert verdict.worst == pytest.approx(0.1 / 3.0, rel=1e-5)


@pytest.mark.parametrize(
    "got, want, bound, fault",
    [
        ([1.0, -2.0], WANT, 1.0, "shape (2,), not (4,)"),
        ([1.0, -2.0, 3.0, 0.2], WANT, 1e-5, "nmse 0.000714 over 1e-05"),
        ([1.0, -2.0, 3.0, np.nan], WANT, 1.0, "nmse nan over 1"),
        ([1.0, -2.0, 3.0, 0.1], [1.0, -2.0, np.nan, 0.1], 1.0, "NaN or infinity in other places"),
        ([1.0, np.inf], [1.0, -np.inf], 1.0, "NaN or infinity in other places"),
        ([0.0, 1e-9], [0.0, 0.0], 1.0, "nmse inf over 1"),
    ],
)
def test_faults(got, want, bound, fault):
    assert judge(mx.array(got), np.array(want), bound).fault == fault


def test_one_wrong_element_among_many():
    """Its share of the mean square is within the bound, its size is not."""
    want = np.ones(100_000)
    got = want.astype(np.float32)
    got[7] = 1.2
    assert judge(mx.array(got), want, 1e-3).fault == ""
    assert judge(mx.array(got), want, 1e-6).fault.startswith("one element off by 0.2")


def test_specials_agree_with_themselves():
    x = Spec((6, 9), fill="specials").make(np.random.default_rng(0), "bfloat16")
    verdict = judge(x, to_numpy(x), 0.0)
    assert (verdict.fault, verdict.nmse) == ("", 0.0)
    assert np.isnan(to_numpy(x)).any(axis=1).tolist() == [False] * 3 + [True] * 2 + [False]


@pytest.mark.parametrize("layout", ["transposed", "offset", "strided", "reversed"])
def test_layouts_keep_the_values(layout):
    plain = Spec((4, 6)).make(np.random.default_rng(3), "float32")
    laid = Spec((4, 6), layout=layout).make(np.random.default_rng(3), "float32")
    assert mx.array_equal(laid, plain).item()
