"""Rearranging elements, scattering with a reduction, lists of tensors, in-place views."""

from __future__ import annotations

import numpy as np
import pytest

import torchmlx

from .parity import data, parity

ONE = ("float32",)
INPUTS = [data(4, 5), data(2, 3, 4), data(4), np.arange(20).reshape(4, 5)]


@pytest.mark.parametrize("x", INPUTS, ids=lambda x: str(x.shape))
@pytest.mark.parametrize("k", [-2, 0, 1])
def test_diagonals_and_rolls(x, k):
    for name in ("tril", "triu", "diag", "diag_embed", "diagflat", "roll", "rot90"):
        parity(name, x, k, dtypes=ONE)


@pytest.mark.parametrize("x", INPUTS, ids=lambda x: str(x.shape))
def test_order_and_repetition(x):
    parity("flip", x, (0, -1), dtypes=ONE)
    parity("fliplr", x, dtypes=ONE)
    parity("roll", x, (1, 2), (0, -1), dtypes=ONE)
    parity("tile", x, (2, 1, 2), dtypes=ONE)
    parity("repeat_interleave", x, 2, dtypes=ONE)
    parity("repeat_interleave", x, np.arange(x.shape[0]), dim=0, dtypes=ONE)
    parity("tensor_split", x, 3, dtypes=ONE)
    parity("tensor_split", x, (1, 3), dim=-1, dtypes=ONE)
    for name in ("hstack", "vstack", "dstack", "column_stack"):
        parity(name, [x, x], dtypes=ONE)
    for name in ("hsplit", "vsplit", "dsplit"):
        parity(name, x, 2, dtypes=ONE)
    for name in ("atleast_1d", "atleast_2d", "atleast_3d"):
        parity(name, x, dtypes=ONE)


def test_grids():
    parity("meshgrid", data(2), data(3), indexing="xy", dtypes=ONE)
    parity("cartesian_prod", data(2), data(3), dtypes=ONE)
    parity("combinations", data(4), 3, True, dtypes=ONE)
    parity("block_diag", data(2, 2), data(3), data(1, 2), dtypes=ONE)
    parity("tril_indices", 3, 4, 1)
    parity("triu_indices", 4, 3, -1)
    parity("take_along_dim", data(3, 4), np.arange(3).reshape(3, 1), 1, dtypes=ONE)
    parity("Tensor.fill_diagonal_", data(6, 3), 3, True, dtypes=ONE)
    parity("Tensor.sum_to_size", data(3, 4, 5), 4, 1, dtypes=ONE)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin", "nothing"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(reduce, include_self):
    index = np.random.default_rng(0).integers(0, 4, (3, 5))
    how = {"include_self": include_self}
    parity("scatter_reduce", data(4, 5), 0, index, data(3, 5, seed=1), reduce, dtypes=ONE, **how)
    parity("index_reduce", data(4, 5), 0, index[:, 0], data(3, 5), reduce, dtypes=ONE, **how)


@pytest.mark.parametrize("name", ["t_", "squeeze_", "eq_", "ge_", "logical_not_"])
def test_in_place(name):
    other = () if name in ("t_", "squeeze_", "logical_not_") else (data(3, 1, seed=1),)
    parity(f"Tensor.{name}", data(3, 1), *other, dtypes=ONE)


def test_where_as_a_method_keeps_its_own_elements():
    parity("Tensor.where", data(3, 4), data(3, 4) > 0, data(3, 4, seed=1), dtypes=ONE)


def test_foreach():
    parity("_foreach_norm", [data(3), data(2, 2)], dtypes=ONE)
    parity("_foreach_mul", [data(3), data(2, 2)], [2, 3], dtypes=ONE)
    parity("_foreach_addcdiv", [data(3)], [data(3)], [data(3, low=1)], 0.5, dtypes=ONE)
    x = [torchmlx.ones(2), torchmlx.ones(1)]
    assert torchmlx._foreach_mul_(x, 3)[0] is x[0]
    assert [t.tolist() for t in x] == [[3.0, 3.0], [3.0]]


def test_legacy_types():
    assert isinstance(torchmlx.tensor([1]), torchmlx.LongTensor)
    assert not isinstance(torchmlx.tensor([1]), torchmlx.FloatTensor)
    made = torchmlx.LongTensor([3, 4])
    assert (made.dtype, made.tolist()) == (torchmlx.int64, [3, 4])
