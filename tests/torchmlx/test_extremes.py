"""What a differential fuzz against torch found (2026-12-02): float64 that was float32's, NaN in
half precision, dims and dtypes that torch refuses.
"""

from __future__ import annotations

import numpy as np
import pytest

import torchmlx

from .parity import data, parity, same

torch = pytest.importorskip("torch", reason="torch 2.13 CPU is the oracle of parity tests")

X = data(40, low=-9, high=9)


@pytest.mark.parametrize("name", ["gelu", "silu", "mish", "softplus", "logsigmoid"])
def test_activations_of_float64(name):
    parity(f"nn.functional.{name}", X, dtypes=("float32",))
    for lib_x, lib in ((torch.tensor(X), torch), (torchmlx.tensor(X), torchmlx)):
        result = getattr(lib.nn.functional, name)(lib_x.double())
        if lib is torch:
            expected = result
    np.testing.assert_allclose(result.numpy(), expected.numpy(), rtol=1e-13, atol=4e-15)


def test_logsumexp_of_float64():
    theirs, ours = (lib.logsumexp(lib.tensor(X).double(), 0).item() for lib in (torch, torchmlx))
    assert ours == pytest.approx(theirs, rel=1e-14)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_running_extremes_keep_nan(name, dtype):
    x = np.array([[0.5, np.inf, -np.inf], [np.nan, 1, np.nan], [2, np.nan, 3]], np.float32)
    for dim in (0, 1):
        results = [
            getattr(lib, name)(lib.tensor(x).to(getattr(lib, dtype)), dim)
            for lib in (torch, torchmlx)
        ]
        same(results[1][0], results[0][0])
        same(results[1][1], results[0][1])


def test_unique_keeps_float64():
    x = np.array([1 / 3, 1e30, 1e-45, 1 / 3])
    theirs, ours = (lib.unique(lib.tensor(x)) for lib in (torch, torchmlx))
    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("name", ["flip", "squeeze"])
def test_a_number_has_dims_0_and_minus_1_only(name):
    for dim in (0, -1, 1, -2):
        parity(name, np.array(3, np.float32), (dim,), dtypes=("float32",))


@pytest.mark.parametrize("name", ["gcd", "lcm", "nextafter"])
def test_dtypes_that_an_operation_lacks(name):
    for x in (data(3), np.arange(3)):
        parity(name, x, x, dtypes=("float32", "float16") if name != "nextafter" else ("float32",))


def _seeded(lib, module):
    lib.manual_seed(0)
    return module().double()


OF_FLOAT64 = {
    "lstm": lambda lib, x: _seeded(lib, lambda: lib.nn.LSTM(8, 3))(x)[0],
    "gru": lambda lib, x: _seeded(lib, lambda: lib.nn.GRU(8, 3))(x)[0],
    "lstm cell": lambda lib, x: _seeded(lib, lambda: lib.nn.LSTMCell(8, 3))(x)[0],
    "glu": lambda lib, x: lib.nn.functional.glu(x),
    "interpolate": lambda lib, x: lib.nn.functional.interpolate(x[None], size=13, mode="linear"),
    "kl_div": lambda lib, x: lib.nn.functional.kl_div(x, x * 0.9, log_target=True, reduction="sum"),
    "ctc": lambda lib, x: lib.nn.functional.ctc_loss(
        lib.log_softmax(x[:, None], 2), lib.tensor([[1, 2]]), lib.tensor([5]), lib.tensor([2])
    ),
}


@pytest.mark.parametrize("name", OF_FLOAT64)
def test_layers_of_float64(name):
    """MLX's exp, sigmoid and array of NumPy's numbers are float32's (0.32.4)."""
    results = []
    for lib in (torch, torchmlx):
        x = lib.tensor(X).double().reshape(5, 8).requires_grad_()
        y = OF_FLOAT64[name](lib, x)
        (gradient,) = lib.autograd.grad(y.sum(), x)
        results.append((y.detach().numpy(), gradient.numpy()))
    for theirs, ours in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12)
