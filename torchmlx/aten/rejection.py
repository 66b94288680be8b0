"""Samplers that reject: gamma, Dirichlet, Poisson and binomial numbers, torch CPU's own.

They draw a varying count of uniforms and normals an element, so they run on the host, element by
element (about 5 us each), whatever the device.
"""

from __future__ import annotations

import math

import numpy as np

from .. import random
from ..core import modes
from ..core.op import composite
from ..core.record import computed, needed
from ..core.tensor import Tensor
from ._calling import host
from .creation import tensor
from .incomplete import dirichlet_sample, gamma_sample

function = ("torch",)


def _draws(parameters: tuple[Tensor, ...], generator, draw) -> Tensor:
    """draw(generator, *numbers) for each element, in the first parameter's dtype and device."""
    first = parameters[0]
    source = random.generator_for(first.device, generator)
    if not source.on_cpu:  # its key seeds a generator of the host's
        key = host(source.key()).astype(np.uint64)
        source = random.Generator().manual_seed(int(key[0]) << 32 | int(key[1]))
    values = [host(p.detach().double().cpu().mx).reshape(-1) for p in parameters]
    drawn = np.array([draw(source, *map(float, row)) for row in zip(*values, strict=True)])
    result = tensor(drawn.reshape(tuple(first.shape)))
    return result.to(device=first.device, dtype=first.dtype)


def _uniform(g: random.Generator) -> float:
    return float(g.uniform53(1)[0])


def _gamma(g: random.Generator, alpha: float) -> float:
    """Marsaglia and Tsang 2000, "A simple method for generating gamma variables"."""
    scale = 1.0
    if alpha < 1.0:
        if alpha == 0.0:
            return 0.0
        scale = (1.0 - _uniform(g)) ** (1.0 / alpha)
        alpha += 1.0
    d = alpha - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        y = 0.0
        while y <= 0.0:
            x = float(g.normal_serial(1)[0])
            y = 1.0 + c * x
        v = y * y * y
        u = 1.0 - _uniform(g)
        square = x * x
        if u < 1.0 - 0.0331 * square * square:
            return scale * d * v
        if math.log(u) < 0.5 * square + d * (1.0 - v + math.log(v)):
            return scale * d * v


@composite("_standard_gamma", at=function)
def standard_gamma(self, *, generator=None):
    """Gamma numbers of shape `self` (a tensor of parameters) and rate 1, which follow it."""
    with modes.no_grad():
        drawn = _draws((self,), generator, _gamma).clamp(min=_tiny(self))
    return computed("_standard_gamma", gamma_sample, self, drawn) if needed((self,)) else drawn


def _tiny(x: Tensor) -> float:
    from ..core.dtype import finfo

    return finfo(x.dtype).tiny


@composite("_sample_dirichlet", at=function)
def sample_dirichlet(self, *, generator=None):
    """Dirichlet numbers of the concentrations along the last dimension, which follow them."""
    with modes.no_grad():
        gamma = _draws((self.double(),), generator, _gamma)
        drawn = (gamma / gamma.sum(-1, keepdim=True)).to(self.dtype).clamp(min=_tiny(self))
    return (
        computed("_sample_dirichlet", dirichlet_sample, self, drawn) if needed((self,)) else drawn
    )


def _poisson(g: random.Generator, rate: float) -> float:
    """Products of uniforms for small rates; else Hoermann 1993's transformed rejection (PTRS)."""
    if rate < 0.0 or math.isnan(rate):
        raise RuntimeError("invalid Poisson rate, expected rate to be non-negative")
    if rate == 0.0:
        return 0.0
    if rate < 10.0:
        floor, count, product = math.exp(-rate), 0, 1.0
        while True:
            product *= _uniform(g)
            if product <= floor:
                return float(count)
            count += 1
    log_rate = math.log(rate)
    b = 0.931 + 2.53 * math.sqrt(rate)
    a = -0.059 + 0.02483 * b
    inverse = 1.1239 + 1.1328 / (b - 3.4)
    near = 0.9277 - 3.6224 / (b - 2.0)
    while True:
        u, v = _uniform(g) - 0.5, _uniform(g)
        us = 0.5 - abs(u)
        k = math.floor((2.0 * a / us + b) * u + rate + 0.43)
        if us >= 0.07 and v <= near:
            return float(k)
        if k < 0 or (us < 0.013 and v > us):
            continue
        bound = -rate + k * log_rate - math.lgamma(k + 1.0)
        if math.log(v) + math.log(inverse) - math.log(a / (us * us) + b) <= bound:
            return float(k)


@composite(at=function)
def poisson(input, generator=None):
    """Poisson numbers of the rates in `input`, in its dtype. torch.poisson."""
    return _draws((input,), generator, _poisson)


def _stirling(k: float) -> float:
    """log k! - (log sqrt(2 pi) + (k + 1/2) log(k + 1) - (k + 1))."""
    if k <= 9:
        return math.lgamma(k + 1) - (
            0.5 * math.log(2 * math.pi) + (k + 0.5) * math.log(k + 1) - (k + 1)
        )
    square = (k + 1) ** 2
    return (1.0 / 12 - (1.0 / 360 - 1.0 / 1260 / square) / square) / (k + 1)


def _many_successes(g: random.Generator, count: float, chance: float) -> float:
    """Hoermann 1993's transformed rejection with squeezes (BTRS)."""
    spread = math.sqrt(count * chance * (1 - chance))
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * chance
    middle, accepted = count * chance + 0.5, 0.92 - 4.2 / b
    odds, alpha = chance / (1 - chance), (2.83 + 5.1 / b) * spread
    m = math.floor((count + 1) * chance)
    while True:
        u, v = _uniform(g) - 0.5, _uniform(g)
        us = 0.5 - abs(u)
        k = math.floor((2 * a / us + b) * u + middle)
        if us >= 0.07 and v <= accepted:
            return float(k)
        if k < 0 or k > count:
            continue
        v = math.log(v * alpha / (a / (us * us) + b))
        bound = (
            (m + 0.5) * math.log((m + 1) / (odds * (count - m + 1)))
            + (count + 1) * math.log((count - m + 1) / (count - k + 1))
            + (k + 0.5) * math.log(odds * (count - k + 1) / (k + 1))
            + (_stirling(m) + _stirling(count - m) - _stirling(k) - _stirling(count - k))
        )
        if v <= bound:
            return float(k)


def _few_successes(g: random.Generator, count: float, chance: float) -> float:
    """Sums of geometric gaps."""
    total, found, miss = 0.0, 0, math.log1p(-chance)
    while True:
        total += math.ceil(math.log(_uniform(g) or 5e-324) / miss)
        if total > count:
            return float(found)
        found += 1


def _binomial(g: random.Generator, count: float, prob: float) -> float:
    if math.isnan(count) or math.isnan(prob):
        return math.nan
    if count <= 0.0 or prob <= 0.0:
        return 0.0
    if prob >= 1.0:
        return count
    rare = min(prob, 1 - prob)
    draw = _many_successes if count * rare >= 10.0 else _few_successes
    found = draw(g, count, rare)
    return found if prob <= 0.5 else count - found


@composite(at=function)
def binomial(count, prob, generator=None):
    """Binomial numbers of `count` trials of chance `prob`, in count's dtype. torch.binomial."""
    if count.dtype is not prob.dtype:
        raise RuntimeError(
            f"Found dtype {prob.dtype.torch_name} but expected {count.dtype.torch_name}"
        )
    return _draws((count, prob), generator, _binomial)
