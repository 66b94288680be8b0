"""Adam and its relatives: AdamW, NAdam, RAdam, Adamax."""

from __future__ import annotations

import mlx.core as mx

from .momentum import decayed
from .optimizer import Optimizer, check, check_betas, check_lr, number


def _check(lr, betas, eps, weight_decay) -> None:
    check_lr(lr)
    check("epsilon value", eps, eps >= 0.0)
    check_betas(betas)
    check("weight_decay value", weight_decay, weight_decay >= 0.0)


def _moments(g, state, betas):
    """The running means of the gradient and of its square, updated."""
    b1, b2 = map(number, betas)
    mean = state["exp_avg"] = state["exp_avg"] + (g - state["exp_avg"]) * (1 - b1)
    square = state["exp_avg_sq"] = state["exp_avg_sq"] * b2 + g * g * (1 - b2)
    return mean, square


def _shrunk(p, g, group):
    """(parameter, gradient) with weight decay, decoupled from the gradient or part of it."""
    if group["weight_decay"] != 0 and group.get("decoupled_weight_decay"):
        return p * (1 - number(group["lr"]) * group["weight_decay"]), g
    return p, decayed(g, p, group)


class Adam(Optimizer):
    """Running means of the gradient and its square (Kingma and Ba 2014). torch.optim.Adam."""

    def __init__(
        self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay: float = 0,
        amsgrad=False, *, foreach=None, maximize=False, capturable=False, differentiable=False,
        fused=None, decoupled_weight_decay=False,
    ):  # fmt: skip
        _check(lr, betas, eps, weight_decay)
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
            "maximize": maximize, "foreach": foreach, "capturable": capturable,
            "differentiable": differentiable, "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        })  # fmt: skip

    def start(self, p, group):
        zero = mx.zeros_like(p)
        state = {"exp_avg": zero, "exp_avg_sq": zero}
        if group["amsgrad"]:
            state["max_exp_avg_sq"] = zero
        return state

    def rule(self, p, g, state, group, step):
        p, g = _shrunk(p, g, group)
        mean, square = _moments(g, state, group["betas"])
        b1, b2 = map(number, group["betas"])
        if group["amsgrad"]:
            square = mx.maximum(state["max_exp_avg_sq"], square)
            state["max_exp_avg_sq"] = square
        scale = mx.sqrt(square) / (1 - b2**step) ** 0.5 + group["eps"]
        return p - mean / scale * (number(group["lr"]) / (1 - b1**step))


class AdamW(Adam):
    """Adam whose weight decay is no part of the gradient (Loshchilov and Hutter 2017).

    torch.optim.AdamW.
    """

    def __init__(
        self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, amsgrad=False, *,
        maximize=False, foreach=None, capturable=False, differentiable=False, fused=None,
    ):  # fmt: skip
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize,
            capturable=capturable, differentiable=differentiable, fused=fused,
            decoupled_weight_decay=True,
        )  # fmt: skip


class NAdam(Optimizer):
    """Adam with Nesterov's momentum (Dozat 2016). torch.optim.NAdam."""

    def __init__(
        self, params, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, momentum_decay=4e-3,
        decoupled_weight_decay=False, *, foreach=None, maximize=False, capturable=False,
        differentiable=False,
    ):  # fmt: skip
        _check(lr, betas, eps, weight_decay)
        check("momentum_decay value", momentum_decay, momentum_decay >= 0.0)
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "momentum_decay": momentum_decay, "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize, "foreach": foreach, "capturable": capturable,
            "differentiable": differentiable,
        })  # fmt: skip

    def start(self, p, group):
        zero = mx.zeros_like(p)
        return {"mu_product": mx.array(1.0), "exp_avg": zero, "exp_avg_sq": zero}

    def rule(self, p, g, state, group, step):
        p, g = _shrunk(p, g, group)
        b1, b2 = group["betas"]
        lr, decay = number(group["lr"]), group["momentum_decay"]
        mu = b1 * (1.0 - 0.5 * 0.96 ** (step * decay))
        after = b1 * (1.0 - 0.5 * 0.96 ** ((step + 1) * decay))
        product = state["mu_product"] = state["mu_product"] * mu
        mean, square = _moments(g, state, group["betas"])
        scale = mx.sqrt(square / (1 - b2**step)) + group["eps"]
        ahead = g / scale * (lr * (1.0 - mu) / (1.0 - product))
        return p - ahead - mean / scale * (lr * after / (1.0 - product * after))


class RAdam(Optimizer):
    """Adam with a rectified variance in the first steps (Liu et al. 2019). torch.optim.RAdam."""

    def __init__(
        self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0,
        decoupled_weight_decay=False, *, foreach=None, maximize=False, capturable=False,
        differentiable=False,
    ):  # fmt: skip
        _check(lr, betas, eps, weight_decay)
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "maximize": maximize, "foreach": foreach, "capturable": capturable,
            "decoupled_weight_decay": decoupled_weight_decay, "differentiable": differentiable,
        })  # fmt: skip

    def start(self, p, group):
        return {"exp_avg": mx.zeros_like(p), "exp_avg_sq": mx.zeros_like(p)}

    def rule(self, p, g, state, group, step):
        p, g = _shrunk(p, g, group)
        b1, b2 = group["betas"]
        mean, square = _moments(g, state, group["betas"])
        update = mean / (1 - b1**step) * number(group["lr"])
        longest = 2 / (1 - b2) - 1  # of the averages that the variance is estimated from
        length = longest - 2 * step * b2**step / (1 - b2**step)
        if length <= 5.0:
            return p - update
        rectified = (length - 4) * (length - 2) * longest
        rectified /= (longest - 4) * (longest - 2) * length
        return p - update * ((1 - b2**step) ** 0.5 / (mx.sqrt(square) + group["eps"])) * (
            rectified**0.5
        )


class Adamax(Optimizer):
    """Adam by the largest gradient instead of the mean square. torch.optim.Adamax."""

    def __init__(
        self, params, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, foreach=None, *,
        maximize=False, differentiable=False, capturable=False,
    ):  # fmt: skip
        _check(lr, betas, eps, weight_decay)
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "foreach": foreach, "maximize": maximize, "differentiable": differentiable,
            "capturable": capturable,
        })  # fmt: skip

    def start(self, p, group):
        return {"exp_avg": mx.zeros_like(p), "exp_inf": mx.zeros_like(p)}

    def rule(self, p, g, state, group, step):
        g = decayed(g, p, group)
        b1, b2 = group["betas"]
        mean = state["exp_avg"] = state["exp_avg"] + (g - state["exp_avg"]) * (1 - b1)
        largest = mx.maximum(state["exp_inf"] * b2, mx.abs(g) + group["eps"])
        state["exp_inf"] = largest
        return p - mean / largest * (number(group["lr"]) / (1 - b1**step))
