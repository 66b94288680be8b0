"""Modules as functions of their parameters and buffers."""

from __future__ import annotations

from collections.abc import Callable

from ..core.op import TABLE
from ..core.tensor import Tensor
from ..nn.utils.stateless import functional_call as _call


def functional_call(
    module, parameter_and_buffer_dicts, args=None, kwargs=None, *, tie_weights=True, strict=False
):
    """module(*args, **kwargs) with these tensors, by name, in place of its own.

    A dict, or several whose names differ. torch.func.functional_call.
    """
    given = parameter_and_buffer_dicts
    if isinstance(given, (list, tuple)):
        names = [name for part in given for name in part]
        if len(names) != len(set(names)):
            twice = sorted({n for n in names if names.count(n) > 1})
            raise ValueError(
                f"{twice} appeared in multiple dictionaries; behavior of functional call is "
                "ambiguous"
            )
        given = {name: value for part in given for name, value in part.items()}
    elif not isinstance(given, dict):
        raise ValueError(
            "Expected parameter_and_buffer_dicts to be a dict, or a list/tuple of dicts, but got "
            f"{type(given)}"
        )
    return _call(module, given, args, kwargs, tie_weights=tie_weights, strict=strict)


def stack_module_state(models) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(parameters, buffers) of modules of one class, stacked by name. torch.func."""
    if len(models) == 0:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if len({m.training for m in models}) > 1:
        raise RuntimeError(
            "stack_module_state: Expected all models to have the same training/eval mode."
        )
    if len({type(m) for m in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")

    def stacked(named):
        rows = [dict(named(m)) for m in models]
        return {
            name: TABLE["stack"].call([row[name] for row in rows]).detach()
            .requires_grad_(rows[0][name].requires_grad)
            for name in rows[0]
        }  # fmt: skip

    return stacked(lambda m: m.named_parameters()), stacked(lambda m: m.named_buffers())


def functionalize(func: Callable, *, remove: str = "mutations") -> Callable:
    """The function itself: writes in place are already carried out on copies. torch.func."""
    return func
