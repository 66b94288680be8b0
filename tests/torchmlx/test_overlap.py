"""Writes into memory that is written twice, or also read, against torch 2.13."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import torchmlx

from .parity import data

torch = pytest.importorskip("torch", reason="torch 2.13 CPU is the oracle of parity tests")

LIBRARIES = (torch, torchmlx)
NUMBERS = data(13, low=0.1, high=0.9)


def given(*arrays):
    """A function of a library that makes arguments of arrays and numbers."""

    def make(lib, value):
        if isinstance(value, tuple):
            return tuple(make(lib, v) for v in value)
        return lib.tensor(value) if isinstance(value, np.ndarray) else value

    return lambda lib: [make(lib, a) for a in arrays]


OTHER, ROWS = data(3, 4, seed=1, low=0.1, high=0.9), np.array([0, 2])
MASK = np.array([[True, False, False, True], [False] * 4, [True, False, False, False]])
PLACES = np.array([[0, 1], [1, 2], [3, 0]])
METHODS = {
    "exp_": given(), "sqrt_": given(), "add_": given(OTHER), "mul_": given(2.0),
    "lerp_": given(OTHER, 0.5), "addcmul_": given(OTHER, OTHER), "clamp_": given(0.2, 0.5),
    "eq_": given(OTHER), "copy_": given(OTHER), "fill_": given(2.0), "zero_": given(),
    "masked_fill_": given(MASK, 3.0), "masked_scatter_": given(MASK, OTHER),
    "index_fill_": given(1, ROWS, 3.0), "index_add_": given(0, ROWS, OTHER[:2]),
    "index_copy_": given(1, ROWS, OTHER[:, :2]), "index_reduce_": given(0, ROWS, OTHER[:2], "prod"),
    "scatter_": given(1, PLACES, OTHER), "scatter_add_": given(1, PLACES, OTHER),
    "index_put_": given((ROWS, np.array([1, 1])), OTHER[0, :2], True),
    "addmm_": given(OTHER[:, :3], OTHER), "mvlgamma_": given(1),
    "put_": given(ROWS, OTHER[0, :2]), "tril_": given(), "__setitem__": given(ROWS, OTHER[:2]),
}  # fmt: skip


def views(lib):
    """(storage, a [3, 4] view of it in which elements share memory): rows, columns, windows."""
    for view in (
        lambda b: b[:4].expand(3, 4),
        lambda b: b[:3].view(3, 1).expand(3, 4),
        lambda b: b.as_strided((3, 4), (2, 1)),
        lambda b: b.unfold(0, 4, 2)[1:4],
    ):
        base = lib.tensor(NUMBERS)
        yield base, view(base)


def outcome(write, base):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            write()
        except Exception as error:
            return type(error).__name__, str(error)
    told = {str(w.message)[:110] for w in caught if "on expanded tensors" in str(w.message)}
    return told, base.tolist()


def same(ours, theirs) -> bool:
    if isinstance(theirs[1], str) or isinstance(ours[1], str):
        return ours == theirs
    return ours[0] == theirs[0] and np.allclose(ours[1], theirs[1], rtol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_several_elements_in_one_place(name):
    def outcomes(lib):
        for base, view in views(lib):
            yield outcome(lambda v=view: getattr(v, name)(*METHODS[name](lib)), base)

    for theirs, ours in zip(*map(outcomes, LIBRARIES), strict=True):
        assert same(ours, theirs), (ours, theirs)


# s is a storage of 10; a and b are [3, 3] of it, one element apart.
SHARED = [
    "a.add_(b)", "a.add_(a)", "a.add_(a.t())", "a.copy_(b)", "a.copy_(a)", "a.eq_(b)",
    "a.lerp_(x, b)", "a.add_(a[0])", "a.div_(a[0, 0])", "a.mul_(a.flip(0))", "a[:] = b",
    "a[:] = a[0]", "a[0] = a[1]", "a[rows] = b", "a[rows] = a", "a.index_put_((rows,), b)",
    "a.index_add_(0, rows, a)", "a.index_copy_(0, rows, b)", "a.scatter_(0, zeros, a)",
    "a.scatter_add_(0, zeros, b)", "a.put_(zeros, b)", "a.addmm_(b, x)", "a.addcmul_(x, b)",
    "a.masked_fill_(x > 0, a[0, 0])", "s[1:] = s[:-1]", "s[::2] = s[1::2]", "s[::2].add_(s[1::2])",
    "s[:3].add_(s[3:6])", "s.sub_(s[3])", "a -= b", "lib.add(a, x, out=b)", "lib.add(a, x, out=a)",
    "lib.mul(a, a.t(), out=a)", "lib.cumsum(a, 0, out=b)", "lib.linalg.cross(a, x, out=a)",
    "lib.gather(a, 0, zeros, out=a)", "lib.cat((a[:2], x[:1]), out=b)",
    "lib.index_select(a, 0, rows, out=a)", "lib.exp(a, out=a)",
    "lib.scatter(x, 0, zeros, a, out=a)", "lib.where(x > 0, a, x, out=b)",
    "a.index_fill_(0, rows, a[0, 0])", "lib.max(a, 0, out=(s[:3], zeros[0]))",
    "lib.outer(a[0], a[1], out=b)",
]  # fmt: skip


@pytest.mark.parametrize("statement", SHARED)
def test_reading_what_is_written(statement):
    def of(lib):
        s = lib.tensor(NUMBERS[:10])
        names = {
            "lib": lib, "s": s, "a": s[:-1].view(3, 3), "b": s[1:].view(3, 3), "x": lib.ones(3, 3),
            "rows": lib.tensor([0, 1, 2]), "zeros": lib.zeros(3, 3, dtype=lib.int64),
        }  # fmt: skip
        return outcome(lambda: exec(statement, names), s)

    theirs, ours = map(of, LIBRARIES)
    assert same(ours, theirs), (ours, theirs)


def test_overlapping_windows_add_up():
    """The overlap-add of a short-time transform."""
    for lib in LIBRARIES:
        signal = lib.zeros(10)
        signal.unfold(0, 4, 2).add_(lib.ones(4, 4))
        assert signal.tolist() == [1, 1, 2, 2, 2, 2, 2, 2, 1, 1]


def test_resize_keeps_the_storage():
    for lib in LIBRARIES:
        x = lib.arange(12.0)
        part = x[2:6]
        part.resize_(2, 3).fill_(0)
        assert x.tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 8, 9, 10, 11]
        turned = lib.arange(6.0).view(2, 3).t().resize_(2, 2)
        assert turned.tolist() == [[0, 1], [2, 3]]


def test_complex_numbers_are_drawn_in_pairs():
    drawn = []
    for lib in LIBRARIES:
        lib.manual_seed(0)
        drawn.append(lib.rand(3, dtype=lib.complex64).tolist())
    assert np.allclose(*drawn)
