"""Orthogonal polynomials in torch.special, in float64 on the host by their recurrences (DLMF 18.9).
Not differentiable, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..core.op import composite, op
from ..core.tensor import Tensor
from ._calling import from_host, host, torch_name
from .pointwise import HALF


def _values(first: Callable, step: Callable, x: np.ndarray, n: np.ndarray) -> np.ndarray:
    """p_n(x), 0 for n < 0: p_0 = 1, p_1 = first(x), p_(k+1) = step(k, x, p_k, p_(k-1))."""
    before, here = np.ones_like(x), first(x)
    result = np.where(n == 0, before, np.where(n == 1, here, 0.0))
    for k in range(1, int(n.max(initial=0))):
        before, here = here, step(k, x, here, before)
        result = np.where(n == k + 1, here, result)
    return result


def _register(name: str, first: Callable, step: Callable) -> None:
    @op("_" + name, at=(), promote="input n", to_float=True, pointwise=True)
    def of_arrays(input, n):
        if input.dtype in HALF or not np.issubdtype(host(input).dtype, np.floating):
            raise NotImplementedError(f"\"{name}_cpu\" not implemented for '{torch_name(input)}'")
        x, degree = np.broadcast_arrays(*(host(a).astype(np.float64) for a in (input, n)))
        with np.errstate(all="ignore"):
            return from_host(_values(first, step, x, np.trunc(degree))).astype(input.dtype)

    @composite("special." + name, at=("special",))
    def polynomial(input, n):
        if not (isinstance(input, Tensor) or isinstance(n, Tensor)):
            raise TypeError(f"special_{name}(): one of the arguments must be a tensor")
        return of_arrays(*(a.detach() if isinstance(a, Tensor) else a for a in (input, n)))

    polynomial.__doc__ = f"{name} of degree n, elementwise. torch.special.{name}."


for _kind, _first in (
    ("t", lambda x: x), ("u", lambda x: 2 * x), ("v", lambda x: 2 * x - 1),
    ("w", lambda x: 2 * x + 1),
):  # fmt: skip
    _register(f"chebyshev_polynomial_{_kind}", _first, lambda k, x, p, q: 2 * x * p - q)
    _register(
        f"shifted_chebyshev_polynomial_{_kind}",
        lambda x, first=_first: first(2 * x - 1),
        lambda k, x, p, q: 2 * (2 * x - 1) * p - q,
    )
_register("hermite_polynomial_h", lambda x: 2 * x, lambda k, x, p, q: 2 * x * p - 2 * k * q)
_register("hermite_polynomial_he", lambda x: x, lambda k, x, p, q: x * p - k * q)
_register(
    "laguerre_polynomial_l",
    lambda x: 1 - x,
    lambda k, x, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1),
)
_register(
    "legendre_polynomial_p", lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1)
)
