"""Reductions: values, dtypes, empty tensors, NaN, ties, and sums over many elements."""

from __future__ import annotations

import numpy as np
import pytest

import torchmlx

from .parity import data, parity, torch

WITH_NAN = data(3, 4, 5)
WITH_NAN[0, 1, 2] = WITH_NAN[2, 1] = np.nan
INPUTS = {
    "float": data(3, 4, 5),
    "nan": WITH_NAN,
    "int64": np.arange(-30, 30).reshape(3, 4, 5) % 7 - 3,
    "uint8": (np.arange(20).reshape(4, 5) % 3).astype(np.uint8),
    "bool": np.arange(12).reshape(3, 4) % 5 > 1,
    "scalar": np.array(3.5, np.float32),
    "empty": np.zeros((0, 3), np.float32),
    "no columns": np.zeros((2, 0), np.float32),
    "complex": (data(3, 4) + 1j * data(3, 4, seed=1)).astype(np.complex64),
}
MANY_DIMS = (
    "sum", "nansum", "mean", "nanmean", "amax", "amin", "any", "all", "std", "var", "std_mean",
    "var_mean", "linalg.vector_norm",
)  # fmt: skip
ONE_DIM = ("max", "min", "argmax", "argmin", "prod", "aminmax", "median")


def dims_of(kind, *dims):
    """The dims, and one out of range where the dtype is not refused first."""
    return dims if kind in ("bool", "complex") else (*dims, 5)


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", MANY_DIMS)
def test_over_several_dims(name, kind):
    for dim in dims_of(kind, 0, -1, (0, 1)):
        for keepdim in (False, True):
            parity(name, INPUTS[kind], dim=dim, keepdim=keepdim, dtypes=("float32",))
    parity(name, INPUTS[kind], dtypes=("float32",))


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", ONE_DIM)
def test_over_one_dim(name, kind):
    for dim in dims_of(kind, 0, -1, 1):
        for keepdim in (False, True):
            parity(name, INPUTS[kind], dim=dim, keepdim=keepdim, dtypes=("float32",))
    parity(name, INPUTS[kind], dtypes=("float32",))


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "std", "var", "amax"])
def test_half_precision_is_rounded_once(name):
    parity(name, data(6, 50), dim=1)


def test_logsumexp():
    parity("logsumexp", data(3, 4, 5), dim=(0, 2), keepdim=True)
    parity("logsumexp", np.array([[-np.inf, -np.inf], [np.inf, 1]], np.float32), dim=1)
    parity("special.logsumexp", np.arange(6).reshape(2, 3), 1)


@pytest.mark.parametrize("p", [0, 1, 2, 3, -1, 0.5, float("inf"), -float("inf")])
def test_norms_of_vectors(p):
    for dim in (None, 0, (0, 1)):
        parity("linalg.vector_norm", data(3, 4, 5), p, dim, dtypes=("float32",))
        parity("norm", data(3, 4, 5), p, dim, dtypes=("float32",))


def test_numpy_names():
    parity("sum", data(3, 4), axis=1, keepdims=True)
    parity("Tensor.mean", data(3, 4), axis=0)
    parity("max", data(3, 4), axis=0)


def test_correction():
    parity("var", data(3, 4), False)
    parity("std", data(3, 4), 0, False, True)
    parity("var", data(3, 4), dim=0, correction=2)


@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
def test_no_degrees_of_freedom(name):
    for lib in (torch, torchmlx):
        for shape, dim in (((3, 1), 1), ((2, 0), 1), ((), None)):
            with pytest.warns(UserWarning, match=rf"^{name}\(\): degrees of freedom is <= 0"):
                getattr(lib, name)(lib.ones(shape), dim)


def test_count_nonzero():
    parity("count_nonzero", np.array([[0.0, 1, np.nan], [0, 0, 2]], np.float32), dim=1)


def test_quantiles():
    for interpolation in ("linear", "lower", "higher", "midpoint", "nearest"):
        parity("quantile", data(4, 6), 0.3, 1, interpolation=interpolation, dtypes=("float32",))
        parity("nanquantile", WITH_NAN, 0.3, dim=0, keepdim=True, dtypes=("float32",))


@pytest.mark.parametrize("shape, dim", [((1_000_000,), 0), ((3, 100_000), 1), ((100_000, 3), 0)])
def test_many_elements_do_not_lose_digits(shape, dim):
    # MLX's own sum over 10^7 times 0.1 is 9 % off on the CPU.
    x = torchmlx.full(shape, 0.1)
    exact = 0.1 * shape[dim]
    assert np.allclose(x.sum(dim).tolist(), exact, rtol=2e-6)
    assert np.allclose(x.mean(dim).tolist(), 0.1, rtol=2e-6)
    assert np.allclose(x.var(dim).tolist(), 0, atol=1e-12)


def test_named_tuples():
    values, indices = torchmlx.max(torchmlx.tensor([[1.0, 3, 3]]), 1)
    assert (values.tolist(), indices.tolist()) == ([3.0], [1])
    result = torchmlx.tensor([[4.0, 2]]).min(dim=1)
    assert type(result).__name__ == "min"
    assert result.indices.tolist() == [1]


def test_out():
    values, indices = torchmlx.empty(2), torchmlx.empty(2, dtype=torchmlx.int64)
    torchmlx.max(torchmlx.tensor([[1.0, 5], [7, 2]]), 1, out=(values, indices))
    assert (values.tolist(), indices.tolist()) == ([5.0, 7.0], [1, 0])


def test_no_difference_is_the_input():
    parity("diff", data(2, 3), n=0, prepend=data(2, 1), append=data(2, 2))
