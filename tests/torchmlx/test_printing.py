"""repr, str and format: the strings are torch's, character by character."""

from __future__ import annotations

import numpy as np
import pytest

import torchmlx

from .parity import torch

rng = np.random.default_rng(0)
NORMAL = rng.standard_normal
CASES = [
    ([1.0, 2, 3], "float32"), ([1.5, 2, 1e9], "float32"), ([1e-5, 1], "float32"),
    ([np.nan, np.inf, -np.inf, 0], "float32"), ([1.0, np.nan], "float32"), ([0.0, 0.0], "float32"),
    ([], "float32"), (np.zeros((0, 3)), "float32"), (np.zeros((2, 0)), "int32"), ([], "int64"),
    (3.14159, "float32"), (2, "int64"), (True, "bool"), ([True, False], "bool"), (-0.0, "float32"),
    (NORMAL((3, 4)), "float32"), (NORMAL((2, 3, 4)), "float16"), (NORMAL((2, 2, 2)), "bfloat16"),
    (NORMAL((50, 50)), "float32"), (NORMAL(2000), "float32"), (np.arange(30), "int64"),
    (np.arange(1200), "int64"), (np.arange(-5, 5), "int32"), (np.arange(5), "uint8"),
    (NORMAL((20, 20, 20)), "float32"), ([448.0, 1, 0.5], "float8_e4m3fn"), ([0.1] * 7, "float64"),
    (NORMAL(20) * 1e-6, "float32"), (rng.integers(-(10**12), 10**12, 20), "int64"),
    ([100000.0] * 3, "float32"), ([1e-45, 1], "float32"), ([1, 1000, 1001], "float32"),
    ((NORMAL((3, 4)) + 1j * NORMAL((3, 4))).astype(np.complex64), "complex64"),
    (np.array(1 - 2j, np.complex64), "complex64"), (NORMAL((7, 1001)), "float32"),
]  # fmt: skip
OPTIONS = [
    {}, {"precision": 2}, {"sci_mode": True}, {"sci_mode": False}, {"linewidth": 40},
    {"threshold": 5, "edgeitems": 1}, {"profile": "short"},
]  # fmt: skip


def pair(values, dtype):
    return tuple(lib.tensor(np.array(values)).to(getattr(lib, dtype)) for lib in (torch, torchmlx))


@pytest.fixture(autouse=True)
def default_options():
    yield
    for lib in (torch, torchmlx):
        lib.set_printoptions(profile="default")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_repr(options):
    for lib in (torch, torchmlx):
        lib.set_printoptions(**options)
    for values, dtype in CASES:
        theirs, ours = pair(values, dtype)
        assert repr(ours) == repr(theirs)
        assert str(ours) == str(theirs)


def test_suffixes():
    theirs, ours = pair([1.0, 2.0], "float32")
    assert repr(ours.requires_grad_()) == repr(theirs.requires_grad_())
    for dtype in ("float32", "int64"):
        made = (
            lib.empty(2, 3, device="meta", dtype=getattr(lib, dtype)) for lib in (torch, torchmlx)
        )
        assert len({repr(x) for x in made}) == 1


@pytest.mark.parametrize("spec", ["", ".3f", ">12.4e", "d"])
def test_format(spec):
    theirs, ours = pair(7 if spec == "d" else 2.71828, "int64" if spec == "d" else "float32")
    assert format(ours, spec) == format(theirs, spec)
    assert f"{pair([1, 2], 'int64')[1]}" == "tensor([1, 2])"


def test_named_tuples():
    theirs, ours = (lib.max(lib.tensor([[1.0, 2.0]]), 1) for lib in (torch, torchmlx))
    assert repr(ours) == repr(theirs)
