"""torch.autograd.functional: Jacobians, Hessians and their products, one backward pass a row."""

from __future__ import annotations

from ..core import modes
from ..core.op import TABLE
from ..core.tensor import Tensor
from .engine import grad


def _tuple(x) -> tuple[Tensor, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _leaves(inputs, create_graph: bool) -> tuple[Tensor, ...]:
    """The inputs as tensors to differentiate by."""
    if create_graph:
        return tuple(x.view_as(x) if x.requires_grad else _leaf(x) for x in inputs)
    return tuple(_leaf(x) for x in inputs)


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


def _zero_for_none(gradients, inputs):
    zeros = TABLE["zeros_like"].call
    return [zeros(x) if g is None else g for g, x in zip(gradients, inputs, strict=True)]


def _unpacked(values, packed):
    return values if isinstance(packed, (tuple, list)) else values[0]


def jacobian(func, inputs, create_graph=False, strict=False, vectorize=False, strategy=None):
    """Derivatives of func's outputs by inputs: [*output shape, *input shape] each.

    torch.autograd.functional.jacobian.
    """
    with modes.enable_grad():
        leaves = _leaves(_tuple(inputs), create_graph)
        outputs = func(*leaves)
        rows = [_rows(y, leaves, create_graph) for y in _tuple(outputs)]
    result = tuple(_unpacked(row, inputs) for row in rows)
    return _unpacked(result, outputs)


def _rows(y: Tensor, leaves, create_graph: bool) -> tuple[Tensor, ...]:
    flat = y.reshape(-1)
    rows = []
    for i in range(flat.numel()):
        if flat[i].requires_grad:
            found = grad(
                flat[i], leaves, retain_graph=True, create_graph=create_graph, allow_unused=True
            )
        else:
            found = (None,) * len(leaves)
        rows.append(_zero_for_none(found, leaves))
    if not rows:
        return tuple(x.new_zeros((*y.shape, *x.shape)) for x in leaves)
    stack = TABLE["stack"].call
    return tuple(
        stack([row[k] for row in rows]).reshape((*y.shape, *x.shape)) for k, x in enumerate(leaves)
    )


def hessian(
    func, inputs, create_graph=False, strict=False, vectorize=False, outer_jacobian_strategy=None
):
    """Second derivatives of a scalar function. torch.autograd.functional.hessian."""

    def gradient(*leaves):
        found = jacobian(func, leaves, create_graph=True)
        return found if isinstance(inputs, (tuple, list)) else found[0]

    return jacobian(gradient, inputs, create_graph=create_graph)


def vjp(func, inputs, v=None, create_graph=False, strict=False):
    """(func(inputs), v times its Jacobian). torch.autograd.functional.vjp."""
    with modes.enable_grad():
        leaves = _leaves(_tuple(inputs), create_graph)
        outputs = func(*leaves)
        given = None if v is None else _tuple(v)
        found = grad(_tuple(outputs), leaves, given, create_graph=create_graph, allow_unused=True)
    result = tuple(_zero_for_none(found, leaves))
    return _detached(outputs, create_graph), _unpacked(result, inputs)


def jvp(func, inputs, v=None, create_graph=False, strict=False):
    """(func(inputs), its Jacobian times v), by differentiating the vjp by its cotangent.

    torch.autograd.functional.jvp.
    """
    with modes.enable_grad():
        leaves = _leaves(_tuple(inputs), create_graph)
        outputs = func(*leaves)
        ones = TABLE["ones_like"].call
        cotangents = [TABLE["zeros_like"].call(y).requires_grad_() for y in _tuple(outputs)]
        found = grad(_tuple(outputs), leaves, cotangents, create_graph=True, allow_unused=True)
        tangents = [ones(x) for x in leaves] if v is None else list(_tuple(v))
        back = _zero_for_none(found, leaves)
        result = grad(back, cotangents, tangents, create_graph=create_graph, allow_unused=True)
    products = tuple(_zero_for_none(result, cotangents))
    return _detached(outputs, create_graph), _unpacked(products, outputs)


def hvp(func, inputs, v=None, create_graph=False, strict=False):
    """(func(inputs), its Hessian times v), for a scalar function.

    torch.autograd.functional.hvp.
    """
    with modes.enable_grad():
        leaves = _leaves(_tuple(inputs), create_graph)
        output = func(*leaves)
        first = _zero_for_none(grad(output, leaves, create_graph=True, allow_unused=True), leaves)
        given = None if v is None else list(_tuple(v))
        found = grad(first, leaves, given, create_graph=create_graph, allow_unused=True)
    return _detached(output, create_graph), _unpacked(tuple(_zero_for_none(found, leaves)), inputs)


vhp = hvp  # a Hessian is symmetric


def _detached(outputs, create_graph: bool):
    if create_graph:
        return outputs
    if isinstance(outputs, (tuple, list)):
        return tuple(y.detach() for y in outputs)
    return outputs.detach()
