"""LU, QR, Cholesky of what has none, random projections: what op_db's samples do not reach."""

from __future__ import annotations

import numpy as np
import pytest

import torchmlx

from .parity import data, parity, same

torch = pytest.importorskip("torch", reason="torch 2.13 CPU is the oracle of parity tests")

SINGULAR = np.stack((np.eye(3), [[1, 2, 3], [2, 4, 6], [1, 0, 1]])).astype(np.float32)
INDEFINITE = np.array([[4, 2, 1], [2, -3, 1], [1, 1, 5]], np.float32)


@pytest.mark.parametrize("name", ["lu_factor_ex", "inv_ex", "cholesky_ex"])
def test_error_codes(name):
    """Of singular and indefinite matrices too, with what torch leaves in the result."""
    for x in (SINGULAR, INDEFINITE, data(2, 3, 3)):
        parity(f"linalg.{name}", x, dtypes=("float32", "float64"), tolerance=1e-4)


def test_solve_ex_of_a_singular_matrix():
    parity("linalg.solve_ex", SINGULAR, data(2, 3, 2), dtypes=("float32",), tolerance=1e-5)


@pytest.mark.parametrize("name", ["inv", "lu_factor", "cholesky"])
@pytest.mark.parametrize("x", [SINGULAR, SINGULAR[1], -SINGULAR], ids=["batch", "one", "negative"])
def test_messages_are_torchs(name, x):
    messages = []
    for lib in (torch, torchmlx):
        with pytest.raises(RuntimeError) as caught:
            getattr(lib.linalg, name)(lib.tensor(x))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("shape", [(150, 150), (200, 70), (70, 200), (2, 130, 130)])
def test_lu_of_several_blocks(shape):
    parity("linalg.lu", data(*shape), dtypes=("float64",), tolerance=1e-9)
    P, L, U = torchmlx.linalg.lu(torchmlx.tensor(data(*shape)))
    np.testing.assert_allclose((P @ L @ U).numpy(), data(*shape), atol=2e-5)


def test_complex_systems_by_lu():
    a = torchmlx.complex(torchmlx.tensor(data(5, 5)), torchmlx.tensor(data(5, 5, seed=1)))
    b = torchmlx.complex(torchmlx.tensor(data(5, 2)), torchmlx.tensor(data(5, 2, seed=2)))
    factors, pivots = torchmlx.linalg.lu_factor(a)
    for adjoint, matrix in ((False, a), (True, a.mH)):
        x = torchmlx.linalg.lu_solve(factors, pivots, b, adjoint=adjoint)
        np.testing.assert_allclose((matrix @ x).numpy(), b.numpy(), atol=2e-5)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_reflections_are_multiplied_without_forming_q(left, transpose):
    packed, tau = torch.geqrf(torch.tensor(data(5, 3)))
    other = data(5, 4) if left else data(4, 5)
    arguments = (packed.numpy(), tau.numpy(), other, left, transpose)
    parity("ormqr", *arguments, dtypes=("float32",), tolerance=1e-5)


@pytest.mark.parametrize("name", ["svd_lowrank", "pca_lowrank"])
@pytest.mark.parametrize("shape", [(7, 5), (5, 9), (2, 6, 6)])
def test_random_projections_are_torchs(name, shape):
    """With torch's random numbers; singular vectors up to their sign."""
    results = []
    for lib in (torch, torchmlx):
        lib.manual_seed(0)
        results.append([r.abs() for r in getattr(lib, name)(lib.tensor(data(*shape)), 4)])
    same(results[1], results[0], 2e-5)


def test_the_determinants_slope_at_a_singular_matrix():
    """The cofactors; torch multiplies by the determinant, so that an exact 0 gives 0."""
    x = torchmlx.tensor([[1, 2, 3], [2, 4, 6], [1, 0, 1]], dtype=torchmlx.float64)
    x.requires_grad_().det().backward()
    cofactors = [[4, 4, -4], [-2, -2, 2], [0, 0, 0]]
    np.testing.assert_allclose(x.grad.numpy(), cofactors, atol=1e-12)


def test_reductions_of_matrices_without_elements():
    for shape in ((3, 0), (0, 3), (2, 0, 0)):
        for order in (1, -1, 2, float("inf"), -float("inf"), "nuc"):
            x = np.zeros(shape, np.float32)
            parity("linalg.norm", x, order, (-2, -1), dtypes=("float32",))
