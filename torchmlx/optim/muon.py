"""Muon: momentum made orthogonal by Newton-Schulz steps (Jordan et al. 2024)."""

from __future__ import annotations

import math

import mlx.core as mx

from ..aten._calling import collapse
from ..kernels.matmul import matmul
from .optimizer import Optimizer, check_lr, number


def orthogonal(g: mx.array, coefficients, steps: int, eps: float) -> mx.array:
    """About U @ V.T of g = U S V.T, [M, N], in bfloat16."""
    a, b, c = coefficients
    tall = g.shape[0] > g.shape[1]
    x = (g.T if tall else g).astype(mx.bfloat16)
    norm = mx.sqrt(collapse(mx.sum, mx.square(x.astype(mx.float32)))).astype(mx.bfloat16)
    x = x / mx.maximum(norm, mx.array(eps, mx.bfloat16))
    for _ in range(steps):
        gram = matmul(x, x.T)
        update = _sum(gram, b, matmul(_wide(gram), _wide(gram)), c)
        x = _sum(x, a, matmul(_wide(update), _wide(x)), 1.0)
    return x.T if tall else x


def _wide(x: mx.array) -> mx.array:
    return x.astype(mx.float32)


def _sum(x: mx.array, beta: float, product: mx.array, alpha: float) -> mx.array:
    """beta * x + alpha * product, rounded once."""
    return (_wide(x) * beta + product * alpha).astype(x.dtype)


class Muon(Optimizer):
    """For matrices inside a network; everything else wants another optimiser. torch.optim.Muon."""

    counts = False

    def __init__(
        self, params, lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True,
        ns_coefficients=(3.4445, -4.775, 2.0315), eps=1e-7, ns_steps=5, adjust_lr_fn=None,
    ):  # fmt: skip
        check_lr(lr)
        if momentum < 0.0:
            raise ValueError(f"momentum should be >= 0 but is: {momentum}")
        if weight_decay < 0.0:
            raise ValueError(f"weight decay should be >= 0 but is: {weight_decay}")
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"Adjust learning rate function {adjust_lr_fn} is not supported")
        super().__init__(params, {
            "lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
            "ns_coefficients": ns_coefficients, "eps": eps, "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        })  # fmt: skip
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim != 2:
                    raise ValueError(
                        f"Muon only supports 2D parameters whereas we found a parameter with size: "
                        f"{p.size()}"
                    )

    def start(self, p, group):
        return {"momentum_buffer": mx.zeros_like(p)}

    def rule(self, p, g, state, group, step):
        momentum, lr = group["momentum"], number(group["lr"])
        buffer = state["momentum_buffer"]
        buffer = state["momentum_buffer"] = buffer + (g - buffer) * (1 - momentum)
        update = g + (buffer - g) * momentum if group["nesterov"] else buffer
        update = orthogonal(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
        rows, columns = p.shape
        if group["adjust_lr_fn"] == "match_rms_adamw":
            ratio = 0.2 * math.sqrt(max(rows, columns))
        else:
            ratio = math.sqrt(max(1, rows / columns))
        return p * (1 - lr * group["weight_decay"]) - update.astype(p.dtype) * (lr * ratio)
