"""torch.library: operators that libraries define in Python, under torch.ops.NAMESPACE.NAME.

An operator is its Python function, with the gradient registered for it. What a library has in C++
for PyTorch cannot be loaded: such an operator exists by name and says so when it is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .autograd.function import Function

__all__ = [
    "CustomOpDef", "Library", "custom_op", "define", "impl", "register_autocast",
    "register_autograd", "register_fake", "register_kernel",
]  # fmt: skip

_operators: dict[str, CustomOpDef] = {}


class CustomOpDef:
    """An operator: call it. torch.library.CustomOpDef."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._function: Callable | None = None
        self._differentiable: type[Function] | None = None
        self._registered: tuple[Callable, Callable | None] | None = None

    @property
    def default(self) -> CustomOpDef:
        """The only overload: the operator itself."""
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._function is None:
            raise NotImplementedError(
                f"torch.ops.{self._name.replace('::', '.')}: torchmlx has no such operator; a "
                "library's own in C++ is compiled for PyTorch and cannot be loaded"
            )
        if self._registered is None:
            return self._function(*args, **kwargs)
        given = inspect.signature(self._function).bind(*args, **kwargs)
        given.apply_defaults()
        return self._with_gradient().apply(*given.arguments.values())

    def _with_gradient(self) -> type[Function]:
        if self._differentiable is None:
            self._differentiable = _differentiable(self)
        return self._differentiable

    def register_fake(self, fn: Callable) -> Callable:
        """Accepted: shapes are found by computing. A decorator."""
        return fn

    register_vmap = register_torch_dispatch = register_fake

    def register_kernel(self, device_types: Any, func: Callable | None = None) -> Any:
        """The function to run, whatever the device."""
        return _registering(lambda fn: setattr(self, "_function", fn), func)

    def register_autograd(self, backward: Callable, /, *, setup_context: Any = None) -> None:
        """The gradient: backward(ctx, *gradients), after setup_context(ctx, inputs, output)."""
        self._registered, self._differentiable = (backward, setup_context), None

    def __repr__(self) -> str:
        return f"<CustomOpDef({self._name})>"


def _differentiable(operator: CustomOpDef) -> type[Function]:
    function, registered = operator._function, operator._registered
    assert function is not None and registered is not None
    parameters = inspect.signature(function).parameters.values()
    only = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    places = len(parameters) - len(only)

    def forward(*args: Any) -> Any:
        return function(*args[:places], **dict(zip(only, args[places:], strict=True)))

    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        if registered[1] is None:
            return
        named = {"keyword_only_inputs": dict(zip(only, inputs[places:], strict=True))}
        registered[1](ctx, inputs=inputs[:places], output=output, **(named if only else {}))

    def backward(ctx: Any, *gradients: Any) -> Any:
        found = registered[0](ctx, *gradients)
        found = found if isinstance(found, tuple) else (found,)
        return (*found, *(None for _ in only))

    members = {
        "forward": staticmethod(forward), "backward": staticmethod(backward),
        "setup_context": staticmethod(setup_context),
    }  # fmt: skip
    return type(operator._name.replace("::", "_"), (Function,), members)


def _registering(register: Callable, func: Callable | None) -> Any:
    """`register` with func, or a decorator that does it."""

    def decorated(fn: Callable) -> Callable:
        register(fn)
        return fn

    return decorated if func is None else decorated(func)


def _operator(op: Any) -> CustomOpDef:
    """The operator of that name ("ns::name", or itself), made where there is none."""
    if isinstance(op, CustomOpDef):
        return op
    return _operators.setdefault(op, CustomOpDef(op))


def custom_op(
    name: str, fn: Callable | None = None, /, *, mutates_args: Any = (), device_types: Any = None,
    schema: str | None = None, tags: Any = None,
) -> Any:  # fmt: skip
    """The operator "ns::name" that runs `fn`; without fn a decorator. torch.library.custom_op."""
    operator = _operators[name] = CustomOpDef(name)

    def decorated(function: Callable) -> CustomOpDef:
        operator._function = function
        return operator

    return decorated if fn is None else decorated(fn)


def define(qualname: str, schema: str, *, lib: Any = None, tags: Any = ()) -> None:
    """Name an operator; `impl` gives it its function. torch.library.define."""
    _operator(qualname)


def impl(qualname: Any, types: Any, func: Callable | None = None, *, lib: Any = None) -> Any:
    """The function of an operator, whatever the device; without func a decorator."""
    return register_kernel(qualname, types, func)


def register_kernel(op: Any, device_types: Any, func: Callable | None = None, /, **_: Any) -> Any:
    """The function of an operator, whatever the device. torch.library.register_kernel."""
    return _operator(op).register_kernel(device_types, func)


def register_fake(op: Any, func: Callable | None = None, /, **_: Any) -> Any:
    """Accepted: shapes are found by computing. torch.library.register_fake."""
    return _registering(lambda fn: _operator(op), func)


def register_autograd(
    op: Any, backward: Callable, /, *, setup_context: Any = None, lib: Any = None
) -> None:
    """The gradient of an operator. torch.library.register_autograd."""
    _operator(op).register_autograd(backward, setup_context=setup_context)


def register_autocast(op: Any, device_type: str, cast_inputs: Any, /, **_: Any) -> None:
    """Accepted: an operator runs in the dtypes it is given. torch.library.register_autocast."""


# The dispatch keys of a function that computes; Meta's, Autocast's and Autograd's do not.
_KEYS = ("CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd")


class Library:
    """A namespace's operators: define, then impl. torch.library.Library."""

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        self.ns, self.kind, self.dispatch_key = ns, kind, dispatch_key

    def define(self, schema: str, *args: Any, **settings: Any) -> str:
        """Name an operator by its schema "name(...) -> ..."; returns the name."""
        name = schema.partition("(")[0].strip()
        _operator(f"{self.ns}::{name}")
        return name

    def impl(self, op_name: Any, fn: Callable, dispatch_key: str = "", **_: Any) -> None:
        """The function of an operator; those for Meta, Autocast and Autograd are not needed."""
        if (dispatch_key or self.dispatch_key or "CPU") in _KEYS:
            op = op_name if isinstance(op_name, CustomOpDef) else f"{self.ns}::{op_name}"
            _operator(op)._function = fn


class Namespace:
    """torch.ops.NAMESPACE: its operators are attributes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> CustomOpDef:
        operator = _operators.get(f"{self._name}::{name}")
        if operator is None:
            raise AttributeError(f"'_OpNamespace' '{self._name}' object has no attribute '{name}'")
        return operator
