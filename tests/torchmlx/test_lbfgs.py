"""optim.LBFGS goes torch's way, evaluation by evaluation."""

import numpy as np
import pytest

import torchmlx

CASES = {
    "strong wolfe": {"line_search_fn": "strong_wolfe"},
    "short history": {"line_search_fn": "strong_wolfe", "lr": 0.5, "history_size": 3},
    "no search": {"lr": 0.02},
    "few evaluations": {"lr": 0.02, "max_eval": 3, "history_size": 2},
    "loose": {"line_search_fn": "strong_wolfe", "tolerance_grad": 5.0, "tolerance_change": 1e-2},
}


def descent(t, settings, steps=8):
    x = t.tensor([-1.5, 2.0, 0.3, 0.7], dtype=t.float64, requires_grad=True)
    y = t.tensor([[0.1, -0.2]], dtype=t.float64, requires_grad=True)
    unused = t.ones(2, dtype=t.float64, requires_grad=True)
    optimizer = t.optim.LBFGS([x, y, unused], max_iter=6, **settings)

    def closure():
        optimizer.zero_grad()
        valley = 100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2
        loss = valley.sum() + (y**4 + y).sum()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(steps)]
    state = optimizer.state_dict()["state"][0]
    return losses, x.tolist() + y.flatten().tolist(), state["func_evals"], state["n_iter"]


@pytest.mark.parametrize("name", CASES)
def test_torch_goes_the_same_way(name):
    torch = pytest.importorskip("torch")
    theirs, mine = descent(torch, CASES[name]), descent(torchmlx, CASES[name])
    assert mine[2:] == theirs[2:]
    np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-6)
    np.testing.assert_allclose(mine[1], theirs[1], rtol=1e-5)


def test_what_is_refused():
    x = torchmlx.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="parameter groups"):
        torchmlx.optim.LBFGS([{"params": [x]}, {"params": [torchmlx.ones(1, requires_grad=True)]}])
    with pytest.raises(TypeError, match="closure"):
        torchmlx.optim.LBFGS([x]).step()


def test_a_checkpoint_carries_on():
    def run(t, saved_after):
        x = t.tensor([3.0, -2.0], dtype=t.float64, requires_grad=True)
        losses = []
        optimizer = t.optim.LBFGS([x], lr=0.1, max_iter=2)

        def closure():
            optimizer.zero_grad()
            loss = (x**4).sum() + x.prod()
            loss.backward()
            return loss

        for i in range(6):
            if i == saved_after:
                state = optimizer.state_dict()
                optimizer = t.optim.LBFGS([x], lr=0.1, max_iter=2)
                optimizer.load_state_dict(state)
            losses.append(optimizer.step(closure).item())
        return losses

    assert run(torchmlx, 3) == run(torchmlx, None)
