"""Matrix products, einsum, grouped products."""

from __future__ import annotations

import numpy as np
import pytest

import torchmlx

from .parity import data, parity, torch

SHAPES = [
    ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((4,), (4,)), ((3, 4), (4,)),
    ((4,), (4, 3)), ((2, 1, 3, 4), (5, 4, 2)), ((3, 4), (3, 4)), ((3, 0), (0, 2)),
    ((2, 3, 4), (4,)),
]  # fmt: skip


@pytest.mark.parametrize("a, b", SHAPES)
def test_matmul(a, b):
    parity("matmul", data(*a), data(*b, seed=1))
    parity("matmul", np.ones(a, np.int64) * 3, np.ones(b, np.int64))


def test_matmul_wants_one_dtype():
    parity("matmul", data(2, 2), np.ones((2, 2), np.float64), dtypes=("float32",))


@pytest.mark.parametrize("beta, alpha", [(1, 1), (0, 1), (2, 3)])
def test_products_with_addition(beta, alpha):
    scale = {"beta": beta, "alpha": alpha}
    a, b = data(3, 4), data(4, 5, seed=1)
    parity("addmm", data(3, 5, seed=2), a, b, **scale)
    parity("addmm", np.full(5, np.nan, np.float32), a, b, **scale)
    parity("addmv", data(3), a, data(4), **scale)
    parity("addr", data(3, 4), data(3), data(4), **scale)
    parity("baddbmm", data(2, 3, 5), data(2, 3, 4), data(2, 4, 5, seed=1), **scale)
    parity("addbmm", data(3, 5), data(2, 3, 4), data(2, 4, 5, seed=1), **scale)
    parity("Tensor.addmm_", data(3, 5, seed=2), a, b, **scale)


def test_small_products():
    parity("mm", data(3, 4), data(4, 5))
    parity("mm", data(3), data(3, 4))
    parity("bmm", data(2, 3, 4), data(2, 4, 5))
    parity("bmm", data(2, 3, 4), data(2, 3, 5))
    parity("mv", data(3, 4), data(4))
    parity("dot", data(4), data(4, seed=1))
    parity("dot", data(4), data(3))
    parity("outer", data(3), data(4))
    parity("inner", data(3, 4), data(2, 4))
    parity("kron", data(2, 3), data(3, 2))
    parity("tensordot", data(3, 4, 5), data(5, 3, 2), dims=([0, 2], [1, 0]))
    parity("linalg.multi_dot", [data(2, 3), data(3, 4), data(4, 2)])


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (4, 5)]),
        ("i,j->ij", [(3,), (4,)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bhwc,hkc->bhwk", [(2, 3, 4, 5), (3, 6, 5)]),
        ("bn,anm,bm->ba", [(2, 5), (3, 5, 4), (2, 4)]),
        ("a...b,b...->a...", [(2, 3, 4, 5), (5, 3, 4)]),
        ("ba", [(4, 3)]),
        ("ij,ij->ij", [(1, 4), (3, 4)]),
        ("ij,jk->ik", [(3, 4), (3, 5)]),
        ("ij->k", [(3, 4)]),
    ],
)
def test_einsum(equation, shapes):
    parity("einsum", equation, *(data(*s, seed=i) for i, s in enumerate(shapes)))


def test_einsum_of_lists():
    parity("einsum", data(3, 4), [0, 1], data(4, 2), [1, 2], [0, 2])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "a, b, offsets",
    [
        ((16, 8), (3, 8, 16), [2, 2, 16]),
        ((3, 16, 8), (8, 16), [8, 8, 16]),
        ((16, 16), (16, 8), [8, 8, 16]),
        ((3, 16, 8), (3, 8, 16), None),
    ],
)
def test_grouped_mm(a, b, offsets, dtype):
    results = []
    for lib in (torch, torchmlx):
        kind = getattr(lib, dtype)
        left, right = lib.tensor(data(*a)).to(kind), lib.tensor(data(*b, seed=1)).to(kind)
        offs = None if offsets is None else lib.tensor(offsets, dtype=lib.int32)
        results.append(lib._grouped_mm(left, right, offs=offs).float().tolist())
    np.testing.assert_allclose(*results, rtol=1e-2, atol=1e-2)


def test_grouped_mm_rows_past_the_last_offset_are_zero():
    a, b = torchmlx.ones(4, 2), torchmlx.ones(2, 2, 3)
    offs = torchmlx.tensor([1, 3], dtype=torchmlx.int32)
    result = torchmlx.nn.functional.grouped_mm(a, b, offs=offs)
    assert result.tolist() == [[2.0] * 3] * 3 + [[0.0] * 3]
