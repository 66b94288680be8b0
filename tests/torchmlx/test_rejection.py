"""Samplers that reject draw torch CPU's own numbers."""

import numpy as np
import pytest

import torchmlx

SAMPLES = {
    "gamma": lambda t: t._standard_gamma(t.linspace(0.1, 5, 40)),
    "gamma float64": lambda t: t._standard_gamma(t.linspace(0.1, 5, 40, dtype=t.float64)),
    "dirichlet": lambda t: t._sample_dirichlet(t.linspace(0.1, 5, 40).view(8, 5)),
    "poisson": lambda t: t.poisson(t.linspace(0, 60, 60).view(6, 10).T),
    "poisson of none": lambda t: t.poisson(t.zeros(0, 3)),
    "binomial": lambda t: t.binomial(t.full((40,), 9.0), t.linspace(0.0, 1, 40)),
    "binomial of many": lambda t: t.binomial(t.full((40,), 900.0), t.linspace(0.02, 0.98, 40)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_torch_draws_the_same(name):
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    torchmlx.manual_seed(3)
    theirs, mine = SAMPLES[name](torch), SAMPLES[name](torchmlx)
    assert str(mine.dtype) == str(theirs.dtype)
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-6)
    assert torchmlx.rand(1).item() == torch.rand(1).item()  # as many numbers were drawn


def test_what_is_refused():
    with pytest.raises(RuntimeError, match="non-negative"):
        torchmlx.poisson(torchmlx.tensor([-1.0]))
