"""Adafactor: running means of squared gradients kept as one row and one column."""

from __future__ import annotations

import math

import mlx.core as mx

from ..aten._calling import collapse
from .optimizer import Optimizer, check, check_lr, number


class Adafactor(Optimizer):
    """Steps relative to the parameter's size, second moments factored (Shazeer and Stern 2018).

    eps: the least squared gradient (None: the dtype's eps) and the least size of a parameter.
    torch.optim.Adafactor.
    """

    def __init__(
        self, params, lr=1e-2, beta2_decay=-0.8, eps=(None, 1e-3), d=1.0, weight_decay=0.0, *,
        foreach=None, maximize=False,
    ):  # fmt: skip
        check_lr(lr)
        check("beta2_decay", beta2_decay, beta2_decay <= 0.0)
        if eps[0] is not None:
            check("epsilon1", eps[0], eps[0] >= 0.0)
        check("epsilon2", eps[1], eps[1] >= 0.0)
        check("Clipping threshold d", d, d >= 1.0)
        check("weight_decay", weight_decay, weight_decay >= 0.0)
        super().__init__(params, {
            "lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d,
            "weight_decay": weight_decay, "foreach": foreach, "maximize": maximize,
        })  # fmt: skip

    def start(self, p, group):
        if p.ndim < 2:
            return {"variance": mx.zeros_like(p)}
        return {
            "row_var": mx.zeros((*p.shape[:-1], 1), p.dtype),
            "col_var": mx.zeros((*p.shape[:-2], 1, p.shape[-1]), p.dtype),
        }

    def rule(self, p, g, state, group, step):
        lr, (least, size) = number(group["lr"]), group["eps"]
        least = mx.finfo(p.dtype).eps if least is None else least
        rate = min(lr, 1 / math.sqrt(step)) * mx.maximum(size, _rms(p))
        if group["weight_decay"]:
            p = p * (1 - lr * group["weight_decay"])
        share = min(1.0, step ** group["beta2_decay"])

        def moved(name, squares):
            state[name] = state[name] + (squares - state[name]) * share
            return state[name]

        if g.ndim > 1:
            row = moved("row_var", collapse(mx.mean, g * g, -1, True))
            column = moved("col_var", collapse(mx.mean, g * g, -2, True))
            variance = row * column / mx.maximum(collapse(mx.mean, row, -2, True), least)
        else:
            variance = moved("variance", g * g)
        update = g * mx.rsqrt(mx.maximum(variance, least * least))
        return p - update * (rate / mx.maximum(1.0, _rms(update) / group["d"]))


def _rms(x: mx.array) -> mx.array:
    return mx.sqrt(collapse(mx.sum, x * x)) / math.sqrt(x.size)
