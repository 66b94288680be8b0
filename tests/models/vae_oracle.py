"""diffusers' autoencoders as the oracle of ours."""

import numpy as np
import pytest
import torch as real

diffusers = pytest.importorskip("diffusers", reason="the oracle, extra dev")

BOUND = 2e-4  # on outputs in -1..1


def randomise(model):
    """`model` with weights that no default hides: norms are not ones, biases not zeros."""
    real.manual_seed(0)
    with real.no_grad():
        for name, parameter in model.eval().named_parameters():
            if parameter.ndim == 1 or "gamma" in name:
                parameter.copy_(real.randn_like(parameter) * 0.2 + ("gamma" in name))
    return model


def close(ours, theirs):
    ours, theirs = ours.numpy(), theirs.detach().numpy()
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= BOUND * max(1, np.abs(theirs).max())
