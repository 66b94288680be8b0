"""Optimisers with momentum or one accumulator: SGD, RMSprop, Adagrad, Adadelta."""

from __future__ import annotations

import mlx.core as mx

from .optimizer import Optimizer, check, check_lr, number


def decayed(g, p, group):
    """The gradient with weight_decay * p added."""
    return g + p * group["weight_decay"] if group["weight_decay"] != 0 else g


class SGD(Optimizer):
    """Gradient descent with momentum, dampening and Nesterov's variant. torch.optim.SGD."""

    counts = False

    def __init__(
        self, params, lr=1e-3, momentum=0, dampening=0, weight_decay=0, nesterov=False, *,
        maximize=False, foreach=None, differentiable=False, fused=None,
    ):  # fmt: skip
        check_lr(lr)
        check("momentum value", momentum, momentum >= 0.0)
        check("weight_decay value", weight_decay, weight_decay >= 0.0)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        super().__init__(params, {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov, "maximize": maximize, "foreach": foreach,
            "differentiable": differentiable, "fused": fused,
        })  # fmt: skip

    def start(self, p, group):
        return {"momentum_buffer": None} if group["momentum"] != 0 else {}

    def rule(self, p, g, state, group, step):
        g = decayed(g, p, group)
        momentum = group["momentum"]
        if momentum != 0:
            before = state.get("momentum_buffer")
            buffer = g if before is None else before * momentum + g * (1 - group["dampening"])
            state["momentum_buffer"] = buffer
            g = g + buffer * momentum if group["nesterov"] else buffer
        return p - g * number(group["lr"])


class RMSprop(Optimizer):
    """Gradients over the root of their running mean square. torch.optim.RMSprop."""

    def __init__(
        self, params, lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0, momentum=0, centered=False,
        capturable=False, foreach=None, maximize=False, differentiable=False,
    ):  # fmt: skip
        check_lr(lr)
        check("epsilon value", eps, eps >= 0.0)
        check("momentum value", momentum, momentum >= 0.0)
        check("weight_decay value", weight_decay, weight_decay >= 0.0)
        check("alpha value", alpha, alpha >= 0.0)
        super().__init__(params, {
            "lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered,
            "weight_decay": weight_decay, "capturable": capturable, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable,
        })  # fmt: skip

    def start(self, p, group):
        zero = mx.zeros_like(p)
        state = {"square_avg": zero}
        if group["momentum"] > 0:
            state["momentum_buffer"] = zero
        if group["centered"]:
            state["grad_avg"] = zero
        return state

    def rule(self, p, g, state, group, step):
        g = decayed(g, p, group)
        alpha = group["alpha"]
        square = state["square_avg"] = state["square_avg"] * alpha + g * g * (1 - alpha)
        if group["centered"]:
            mean = state["grad_avg"] = state["grad_avg"] + (g - state["grad_avg"]) * (1 - alpha)
            square = square - mean * mean
        g = g / (mx.sqrt(square) + group["eps"])
        if group["momentum"] > 0:
            g = state["momentum_buffer"] = state["momentum_buffer"] * group["momentum"] + g
        return p - g * number(group["lr"])


class Adagrad(Optimizer):
    """Gradients over the root of their sum of squares (Duchi et al. 2011). torch.optim.Adagrad."""

    def __init__(
        self, params, lr=1e-2, lr_decay=0, weight_decay=0, initial_accumulator_value=0, eps=1e-10,
        foreach=None, *, maximize=False, differentiable=False, fused=None,
    ):  # fmt: skip
        check_lr(lr)
        check("lr_decay value", lr_decay, lr_decay >= 0.0)
        check("weight_decay value", weight_decay, weight_decay >= 0.0)
        check(
            "initial_accumulator_value value",
            initial_accumulator_value,
            initial_accumulator_value >= 0.0,
        )
        check("epsilon value", eps, eps >= 0.0)
        super().__init__(params, {
            "lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable, "fused": fused,
        })  # fmt: skip

    def start(self, p, group):
        return {"sum": mx.full(p.shape, group["initial_accumulator_value"], p.dtype)}

    def rule(self, p, g, state, group, step):
        g = decayed(g, p, group)
        lr = number(group["lr"]) / (1 + (step - 1) * group["lr_decay"])
        total = state["sum"] = state["sum"] + g * g
        return p - g / (mx.sqrt(total) + group["eps"]) * lr


class Adadelta(Optimizer):
    """Steps in the unit of the parameters (Zeiler 2012). torch.optim.Adadelta."""

    def __init__(
        self, params, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0, foreach=None, *,
        capturable=False, maximize=False, differentiable=False,
    ):  # fmt: skip
        check_lr(lr)
        check("rho value", rho, 0.0 <= rho <= 1.0)
        check("epsilon value", eps, eps >= 0.0)
        check("weight_decay value", weight_decay, weight_decay >= 0.0)
        super().__init__(params, {
            "lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
            "capturable": capturable, "foreach": foreach, "differentiable": differentiable,
        })  # fmt: skip

    def start(self, p, group):
        return {"square_avg": mx.zeros_like(p), "acc_delta": mx.zeros_like(p)}

    def rule(self, p, g, state, group, step):
        g = decayed(g, p, group)
        rho, eps = group["rho"], group["eps"]
        square = state["square_avg"] = state["square_avg"] * rho + g * g * (1 - rho)
        delta = mx.sqrt(state["acc_delta"] + eps) / mx.sqrt(square + eps) * g
        state["acc_delta"] = state["acc_delta"] * rho + delta * delta * (1 - rho)
        return p - delta * number(group["lr"])
