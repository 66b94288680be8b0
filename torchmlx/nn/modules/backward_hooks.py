"""Hooks of a module's backward pass: an identity around its inputs and one around its outputs.

What runs between the two in the backward pass is the module.
"""

from __future__ import annotations

import warnings
from typing import Any

from ...autograd.function import Function
from ...core.modes import grad_enabled
from ...core.op import TABLE
from ...core.tensor import Tensor


class BackwardHookFunction(Function):
    """Tensors as they are, in a node of their own."""

    @staticmethod
    def forward(ctx, *tensors):
        same = tuple(t.view_as(t) for t in tensors)
        wanted = ctx.needs_input_grad
        ctx.mark_non_differentiable(*(t for t, w in zip(same, wanted, strict=True) if not w))
        return same

    @staticmethod
    def backward(ctx, *gradients):
        return gradients


def _marked(values: tuple) -> tuple[tuple, tuple[int, ...], Any]:
    """The values, the tensors passed through one node; where these are; the node, if needed."""
    where = tuple(i for i, v in enumerate(values) if isinstance(v, Tensor))
    if not grad_enabled() or not any(values[i].requires_grad for i in where):
        return values, (), None
    passed = BackwardHookFunction.apply(*(values[i] for i in where))
    new = list(values)
    for i, value in zip(where, passed, strict=True):
        new[i] = value
    return tuple(new), where, next(p.grad_fn for p in passed if p.requires_grad)


def _spread(gradients, where: tuple[int, ...], count: int) -> tuple:
    """The gradients at their values' places, None elsewhere."""
    spread = [None] * count
    for i, gradient in zip(where, gradients, strict=True):
        spread[i] = gradient
    return tuple(spread)


def _checked(changed, count: int, hook: str, what: str) -> tuple:
    changed = changed if isinstance(changed, tuple) else (changed,)
    if len(changed) != count:
        raise RuntimeError(
            f"Backward {hook} returned an invalid number of {what}, got {len(changed)}, but "
            f"expected {count}"
        )
    return changed


class BackwardHooks:
    """One call of a module whose hooks want its gradients."""

    def __init__(self, module, hooks, pre_hooks):
        self.module, self.hooks, self.pre_hooks = module, list(hooks), list(pre_hooks)
        self.inputs: tuple[int, ...] = ()
        self.count = 0
        self.others: dict[int, tuple] = {}
        self.outer: tuple | None = None  # the gradients of the outputs, once they are known

    def around_inputs(self, args: tuple) -> tuple:
        """The arguments for forward."""
        marked, where, node = _marked(args)
        self.count = len(args)
        if node is not None:
            self.inputs = tuple(i for i in where if args[i].requires_grad)
            # What torch shows for the others is zero.
            self.others = {
                i: (args[i].shape, {"dtype": args[i].dtype, "device": args[i].device})
                for i in where
                if not args[i].requires_grad
            }
            node.register_hook(self._leave)
        return marked

    def around_outputs(self, result):
        """The result of forward, for the caller."""
        several = isinstance(result, tuple)
        given = result if several else (result,)
        values, where, node = _marked(given)
        if node is not None:
            wanted, count = tuple(i for i in where if given[i].requires_grad), len(given)
            node.register_hook(lambda _, outer: self._enter(outer, where, wanted, count))
        return values if several else values[0]

    def _enter(self, outer, where, wanted, count):
        """The outputs' gradients are there, and the module's backward pass begins."""
        gradients = _spread(outer, where, count)
        for hook in self.pre_hooks:
            changed = hook(self.module, gradients)
            if changed is not None:
                gradients = _checked(changed, count, "pre hook", "grad_output")
        self.outer = gradients
        if not self.inputs:
            self._call_without_inputs(gradients)
        return tuple(gradients[i] for i in wanted)

    def _call_without_inputs(self, gradients) -> None:
        if self.hooks:
            warnings.warn(
                "Full backward hook is firing when gradients are computed with respect to module "
                "outputs since no inputs require gradients. See "
                "https://docs.pytorch.org/docs/main/generated/torch.nn.Module.html"
                "#torch.nn.Module.register_full_backward_hook for more details.",
                stacklevel=2,
            )
        for hook in self.hooks:
            changed = hook(self.module, (None,) * self.count, gradients)
            if changed is not None and not (
                isinstance(changed, tuple) and all(g is None for g in changed)
            ):
                raise RuntimeError(
                    "Backward hook for Modules where no input requires gradient should always "
                    "return None or None for all gradients."
                )
        self.outer = None

    def _leave(self, inner, _):
        """The inputs' gradients are there: the hooks see both."""
        if self.outer is None:  # the outputs were not on the way
            return None
        spread = list(_spread(inner, self.inputs, self.count))
        for i, (shape, kind) in self.others.items():
            spread[i] = TABLE["zeros"].call(shape, **kind)
        gradients = tuple(spread)
        for hook in self.hooks:
            changed = hook(self.module, gradients, self.outer)
            if changed is not None:
                gradients = _checked(changed, self.count, "hook", "grad_input")
        self.outer = None
        return tuple(gradients[i] for i in self.inputs)


def register_on_node(module, hooks, result) -> None:
    """Hang hooks of the old kind, which see one node's gradients, on the result's last node."""
    while not isinstance(result, Tensor):
        result = next(iter(result.values())) if isinstance(result, dict) else result[0]
    if result.grad_fn is not None:
        for hook in hooks:
            result.grad_fn.register_hook(lambda i, o, hook=hook: hook(module, i, o))
