"""Older optimisers: ASGD, whose parameters are averaged, and Rprop, which looks at signs only."""

from __future__ import annotations

import mlx.core as mx

from .momentum import decayed
from .optimizer import Optimizer, check, check_lr, number


class ASGD(Optimizer):
    """Averaged gradient descent (Polyak and Juditsky 1992). torch.optim.ASGD."""

    def __init__(
        self, params, lr=1e-2, lambd=1e-4, alpha=0.75, t0=1e6, weight_decay=0, foreach=None,
        maximize=False, differentiable=False, capturable=False,
    ):  # fmt: skip
        check_lr(lr)
        check("weight_decay value", weight_decay, weight_decay >= 0.0)
        super().__init__(params, {
            "lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay,
            "foreach": foreach, "maximize": maximize, "differentiable": differentiable,
            "capturable": capturable,
        })  # fmt: skip

    def start(self, p, group):
        eta = mx.array(number(group["lr"]), mx.float32)
        return {"eta": eta, "mu": mx.array(1.0), "ax": mx.zeros_like(p)}

    def rule(self, p, g, state, group, step):
        g = decayed(g, p, group)
        eta, mu, lambd, lr = state["eta"], state["mu"], group["lambd"], number(group["lr"])
        p = p * (1 - lambd * eta) - g * eta
        state["ax"] = mx.where(mu == 1, p, state["ax"] + (p - state["ax"]) * mu)
        state["eta"] = mx.array(lr / (1 + lambd * lr * step) ** group["alpha"], mx.float32)
        state["mu"] = mx.array(1 / max(1, step - group["t0"]), mx.float32)
        return p


class Rprop(Optimizer):
    """A step size for each element, by the gradient's sign (Riedmiller and Braun 1993).

    torch.optim.Rprop.
    """

    def __init__(
        self, params, lr=1e-2, etas=(0.5, 1.2), step_sizes=(1e-6, 50), *, capturable=False,
        foreach=None, maximize=False, differentiable=False,
    ):  # fmt: skip
        check_lr(lr)
        check("eta values", etas, 0.0 < etas[0] < 1.0 < etas[1])
        super().__init__(params, {
            "lr": lr, "etas": etas, "step_sizes": step_sizes, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable, "capturable": capturable,
        })  # fmt: skip

    def start(self, p, group):
        sizes = mx.full(p.shape, number(group["lr"]), p.dtype)
        return {"prev": mx.zeros_like(p), "step_size": sizes}

    def rule(self, p, g, state, group, step):
        agreement = mx.sign(g * state["prev"])
        down, up = group["etas"]
        growth = mx.where(agreement > 0, up, mx.where(agreement < 0, down, 1.0)).astype(p.dtype)
        size = state["step_size"] = mx.clip(state["step_size"] * growth, *group["step_sizes"])
        g = state["prev"] = mx.where(agreement < 0, 0, g)
        return p - mx.sign(g) * size
