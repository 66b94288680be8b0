"""projections: torch's values and gradients, and errors."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from torchmlx.kernels.accuracy import judge
from torchmlx.kernels.projections import projections


@pytest.mark.parametrize("leading", [(), (1,), (2, 3), (9,), (0,)])
@pytest.mark.parametrize("biases", [0, 3])
def test_values_and_gradients_as_in_torch(leading, biases):
    rng = np.random.default_rng(5)
    shapes = [(*leading, 37), (12, 37), (3, 37), (5, 37), *[(12,), (3,), (5,)][:biases]]
    inputs = [mx.array(rng.standard_normal(shape, np.float32)) for shape in shapes]
    primals = [torch.tensor(np.array(a), dtype=torch.float64, requires_grad=True) for a in inputs]
    x, weights, added = primals[0], primals[1:4], primals[4:] or [None] * 3
    want = [linear(x, w, bias) for w, bias in zip(weights, added, strict=True)]
    for got, each in zip(projections(*inputs), want, strict=True):
        assert judge(got, each.detach().numpy(), 1e-12).fault == ""
    sum(out.square().sum() for out in want).backward()
    gradients = mx.grad(
        lambda *a: sum(out.square().sum() for out in projections(*a)),
        argnums=tuple(range(len(inputs))),
    )(*inputs)
    for gradient, primal in zip(gradients, primals, strict=True):
        assert judge(gradient, primal.grad.numpy(), 1e-11).fault == ""


def test_what_does_not_fit_is_refused():
    x, w = mx.zeros((2, 3)), mx.zeros((4, 3))
    with pytest.raises(ValueError, match=r"x \(2, 3\) does not fit weights \(4, 5\)"):
        projections(x, w, mx.zeros((4, 5)), w)
    with pytest.raises(ValueError, match=r"bias \(5,\) does not fit weights \(4, 3\)"):
        projections(x, w, w, w, None, mx.zeros((5,)))
    with pytest.raises(TypeError, match="one dtype, not .*float32.*float16"):
        projections(x, w, w, w.astype(mx.float16))
