"""torch.signal.windows: values, dtypes, signatures and errors of torch's."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

import torchmlx

from .parity import parity

WINDOWS = torch.signal.windows
SETTINGS = {
    "exponential": [{}, {"tau": 3.0}, {"center": 2.0, "sym": False}],
    "gaussian": [{}, {"std": 2.0}],
    "kaiser": [{}, {"beta": 0.0}, {"beta": 3}],
    "general_cosine": [{"a": [0.4, 0.5, 0.1]}, {"a": (1.0, 2.0)}],
    "general_hamming": [{}, {"alpha": 0.7}],
}


@pytest.mark.parametrize("length", [0, 1, 2, 3, 8, 33])
@pytest.mark.parametrize("name", WINDOWS.__all__)
def test_values(name, length):
    for given in SETTINGS.get(name, [{}]):
        for sym in (True, False):
            settings = {"sym": sym} | given
            parity(f"signal.windows.{name}", length, **settings)
            wide = (
                getattr(lib.signal.windows, name)(length, dtype=lib.float64, **settings).numpy()
                for lib in (torchmlx, torch)
            )
            np.testing.assert_allclose(*wide, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", WINDOWS.__all__)
def test_signatures(name):
    ours, theirs = (getattr(lib.signal.windows, name) for lib in (torchmlx, torch))
    parameters = inspect.signature(ours).parameters
    assert {k: p.kind for k, p in parameters.items()} == {
        k: p.kind for k, p in inspect.signature(theirs).parameters.items()
    }


def test_errors():
    def messages(lib):
        w = lib.signal.windows
        for make in (
            lambda: w.bartlett(-1), lambda: w.cosine(3, dtype=lib.float16),
            lambda: w.exponential(4, center=1.0), lambda: w.exponential(4, tau=0.0),
            lambda: w.gaussian(3, std=0.0), lambda: w.general_cosine(3, a=1),
            lambda: w.general_cosine(3, a=[]), lambda: w.kaiser(3, beta=-1.0),
        ):  # fmt: skip
            with pytest.raises((ValueError, TypeError)) as error:
                make()
            yield type(error.value), str(error.value)

    assert list(messages(torchmlx)) == list(messages(torch))
