"""Sorting, selecting, scanning, and counting on the host."""

from __future__ import annotations

import numpy as np
import pytest

import torchmlx

from .parity import data, parity

WITH_NAN = data(3, 4, 5)
WITH_NAN[0, 1, 2] = WITH_NAN[2, 1] = np.nan
WITH_NAN[0, 0] = [0.0, -0.0, 1, 0, -1]
INPUTS = {
    "float": data(3, 4, 5),
    "nan": WITH_NAN,
    "ties": np.arange(60).reshape(3, 4, 5) % 4,
    "bool": np.arange(12).reshape(3, 4) % 5 > 1,
    "scalar": np.array(3.5, np.float32),
    "empty": np.zeros((0, 3), np.float32),
}
ONE = ("float32",)


@pytest.mark.parametrize("kind", INPUTS)
def test_sort(kind):
    for dim in (0, -1):
        for descending in (False, True):
            parity("sort", INPUTS[kind], dim, descending, dtypes=ONE)
            parity("argsort", INPUTS[kind], dim=dim, descending=descending, stable=True, dtypes=ONE)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
@pytest.mark.parametrize("kind", INPUTS)
def test_scans(name, kind):
    for dim in (0, -1):
        parity(name, INPUTS[kind], dim, dtypes=ONE)


def test_scans_in_half_precision_and_place():
    parity("cumsum", data(4, 30), 1)
    parity("Tensor.cumsum_", data(4, 5), 0)
    parity("logcumsumexp", data(4, 5), 1)
    parity("cumsum", np.full(100_000, 0.1, np.float32), 0, dtypes=ONE)


@pytest.mark.parametrize("k", [0, 1, 3, 5, 9])
def test_topk(k):
    for largest in (True, False):
        parity("topk", data(3, 5), k, largest=largest, dtypes=ONE)
        parity("topk", data(5, 3), k, 0, largest, dtypes=ONE)


@pytest.mark.parametrize("k", [1, 40, 2000])
def test_topk_of_a_long_row(k):
    # Below a quarter of the row it partitions, above it sorts.
    parity("topk", data(2, 5000), k, dtypes=ONE)


def test_topk_puts_nan_first():
    values, _ = torchmlx.tensor([1.0, float("nan"), 2.0]).topk(2)
    assert str(values.tolist()) == "[nan, 2.0]"


def test_order_statistics():
    parity("kthvalue", data(3, 5), 2, dtypes=ONE)
    parity("kthvalue", data(3, 5), 6, dtypes=ONE)
    parity("median", data(3, 4), dim=1)
    parity("nanmedian", np.array([1.0, np.nan, 3, 2], np.float32), dtypes=ONE)
    parity("mode", np.array([[1, 2, 2, 1], [3, 3, 1, 2]]), dim=1)


def test_unique():
    x = np.array([[3, 1, 2], [1, 3, 3]])
    for options in ({}, {"return_inverse": True, "return_counts": True}, {"dim": 0}, {"dim": 1}):
        parity("unique", x, **options)
        parity("unique_consecutive", x, **options)


def test_searchsorted():
    edges = np.sort(data(3, 8))
    for options in ({}, {"right": True}, {"side": "right", "out_int32": True}):
        parity("searchsorted", edges, data(3, 5, seed=1), dtypes=ONE, **options)
        parity("bucketize", data(3, 5, seed=1), edges[0], right=True, dtypes=ONE)


def test_counting():
    parity("histc", data(50), bins=7, min=-1, max=2, dtypes=ONE)
    parity("histc", data(50), dtypes=ONE)
    parity("bincount", np.array([1, 2, 2, 5]), minlength=8)
    parity("bincount", np.array([1, 0, 1]), data(3), dtypes=ONE)
    parity("bincount", np.array([-1]))
    parity("isin", np.arange(6).reshape(2, 3), np.array([1, 4]))
    parity("isin", np.arange(6), 3, invert=True)


def test_diff():
    parity("diff", data(3, 6), n=2, dim=1)
    parity("diff", np.array([True, False, False, True]))
    parity("diff", data(3, 4), prepend=data(3, 1, seed=1), append=data(3, 2, seed=2))
    parity("trapezoid", data(3, 6), dx=0.5, dtypes=ONE)
    parity("cumulative_trapezoid", data(3, 6), np.arange(6.0, dtype=np.float32), dtypes=ONE)
