"""torch.autograd.gradcheck: gradients against finite differences, in float64."""

from __future__ import annotations

from ..core import modes
from ..core.op import TABLE
from ..core.tensor import Tensor
from .engine import grad


def gradcheck(
    func, inputs, *, eps=1e-6, atol=1e-5, rtol=1e-3, raise_exception=True, **kwargs
) -> bool:
    """Whether the gradients of func by its float64 inputs agree with finite differences."""
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    by = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    if not by:
        raise ValueError("gradcheck expects at least one input tensor to require gradient")
    outputs = func(*inputs)
    for y in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
        weights = TABLE["rand_like"].call(y.detach())
        analytic = grad(y, by, weights, retain_graph=True, allow_unused=True)
        for i, (x, a) in enumerate(zip(by, analytic, strict=True)):
            numeric = _differences(func, inputs, x, weights, eps)
            a = x.detach() * 0 if a is None else a
            if not TABLE["allclose"].call(a, numeric, rtol, atol):
                if raise_exception:
                    raise RuntimeError(
                        f"Jacobian mismatch for input {i}: numerical {numeric}, analytical {a}"
                    )
                return False
    return True


def _differences(func, inputs, x: Tensor, weights: Tensor, eps: float) -> Tensor:
    """The derivative of sum(weights * func) by each element of x, by central differences."""
    slopes = []
    with modes.no_grad():
        flat = x.reshape(-1)
        for k in range(x.numel()):
            values = []
            for step in (eps, -eps):
                moved = flat.clone()
                moved[k] += step
                moved = moved.reshape(x.shape)
                result = func(*(moved if a is x else a for a in inputs))
                values.append(float((result * weights).sum()))
            slopes.append((values[0] - values[1]) / (2 * eps))
    return TABLE["tensor"].call(slopes, dtype=x.dtype).reshape(x.shape)
