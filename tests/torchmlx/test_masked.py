"""torch.masked: values, dtypes, gradients and errors of torch's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import torchmlx

from .parity import data, same

X = data(2, 3, 4)
MASK = (np.arange(24).reshape(2, 3, 4) % 3 > 0) & (np.arange(4) > 0)  # keeps nothing at 0
MASKS = {"none": None, "whole": MASK, "rows": MASK[:1, :1], "fewer dims": MASK[0]}
ROWS = [(None,), (1,), (-1,), ([0, 2],), ((),)]
CALLS = {
    "sum": ROWS, "prod": ROWS, "mean": ROWS, "amax": ROWS, "amin": ROWS, "logsumexp": ROWS,
    "argmax": [(None,), (1,)], "argmin": [(None,), (2,)], "median": [(1,), (-1,)],
    "var": [*ROWS, (1, False), (0, True)], "std": [*ROWS, ([0, 1], False)],
    "norm": [(2.0, None), (1, 1), (-math.inf, [0, 1]), (-2.0, 2), (math.inf, 0)],
    "cumsum": [(1,)], "cumprod": [(-1,)], "softmax": [(1,)], "log_softmax": [(2,)],
    "softmin": [(0,)], "normalize": [(2.0, 1), (1.0, -1)],
}  # fmt: skip


def outcome(lib, name, x, args, **options):
    given = {k: lib.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    if "dtype" in given:
        given["dtype"] = getattr(lib, given["dtype"])
    try:
        return getattr(lib.masked, name)(x, *args, **given)
    except Exception as error:
        return error


def compare(name, x, args, slopes=False, **options) -> None:
    ours, theirs = (
        lib.tensor(x, requires_grad=True) if slopes else lib.tensor(x) for lib in (torchmlx, torch)
    )
    got = outcome(torchmlx, name, ours, args, **options)
    want = outcome(torch, name, theirs, args, **options)
    if isinstance(want, Exception):
        assert type(got) is type(want), f"{name}{args}: torch raises {want!r}, we {got!r}"
        return
    if isinstance(got, Exception):
        raise got
    same(got, want, 2e-3 if x.dtype == np.float16 else 1e-5)
    if slopes and want.requires_grad:
        for lib, x, y in ((torchmlx, ours, got), (torch, theirs, want)):
            lib.where(lib.isfinite(y), y, 0).sum().backward()
            assert x.grad is not None
        same(ours.grad, theirs.grad, 1e-5)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", CALLS)
def test_values(name, mask):
    for args in CALLS[name]:
        compare(name, X, args, mask=MASKS[mask], slopes=name not in ("argmax", "argmin"))
        if len(args) == 1 and name[:3] not in ("cum", "log", "sof"):
            compare(name, X, args, mask=MASKS[mask], keepdim=True)


@pytest.mark.parametrize("name", CALLS)
def test_integers(name):
    whole = (X * 4).astype(np.int32)
    for x in (whole, whole > 2, whole.astype(np.float16)):
        for kept in (MASK, MASK | True):
            compare(name, x, CALLS[name][-1], mask=kept)
    compare(name, whole, CALLS[name][0], mask=MASK, dtype="float32")


def test_two_inputs():
    for options in ({}, {"input_mask": MASK}, {"input_mask": MASK, "other_mask": ~MASK}):
        compare("logaddexp", X, (), other=X[::-1].copy(), **options)


def test_counting_norm():
    compare("norm", X, (0, 1), mask=MASK)


def test_bad_arguments():
    compare("sum", X[0], (1,), mask=MASK)
    compare("sum", X, (1,), mask=np.ones(5, bool))
    compare("sum", X, (5,), mask=MASK)
    compare("var", X, (1, True), correction=1)
    compare("mean", np.float32(3), (), mask=np.array(False))
