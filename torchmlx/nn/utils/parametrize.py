"""Parameters computed from others by modules. torch.nn.utils.parametrize.

A parametrised module has a class of its own, whose attribute computes the parameter, and keeps what
it is computed from in `parametrizations.NAME.original` (or original0, original1, ...).
"""

from __future__ import annotations

import copy
import threading
from contextlib import contextmanager, suppress
from typing import Any

from ...core.modes import no_grad
from ...core.tensor import Tensor
from ..modules.container import ModuleDict, ModuleList
from ..modules.module import Module
from ..parameter import Parameter

__all__ = [
    "ParametrizationList",
    "cached",
    "is_parametrized",
    "register_parametrization",
    "remove_parametrizations",
    "transfer_parametrizations_and_params",
    "type_before_parametrizations",
]


class _Cache(threading.local):
    depth = 0

    def __init__(self):
        self.values: dict = {}


_cache = _Cache()


@contextmanager
def cached():
    """Inside, every parametrised tensor is computed once."""
    _cache.depth += 1
    try:
        yield
    finally:
        _cache.depth -= 1
        if not _cache.depth:
            _cache.values = {}


def _register(holder: Module, name: str, value) -> None:
    if isinstance(value, Parameter):
        holder.register_parameter(name, value)
    else:
        holder.register_buffer(name, value)


class ParametrizationList(ModuleList):
    """The modules that compute one tensor, in order, and the originals they compute it from."""

    def __init__(self, modules, original, unsafe: bool = False) -> None:
        if len(modules) == 0:
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        shape, dtype = original.shape, original.dtype
        with no_grad():
            new = original
            for module in reversed(list(self)):
                inverse = getattr(module, "right_inverse", None)
                if inverse is not None:
                    with suppress(NotImplementedError):
                        new = inverse(new)
        self.is_tensor = isinstance(new, Tensor)
        self.ntensors = 1 if self.is_tensor else len(new)
        if self.is_tensor:
            _check_inverse(original, new)
            original.data = new.data  # the same object, which an optimizer may have
            _register(self, "original", original)
        else:
            self._register_several(original, tuple(new))
        if not unsafe:
            self._check_result(shape, dtype)

    def _register_several(self, original, new) -> None:
        for i, part in enumerate(new):
            if not isinstance(part, Tensor):
                raise ValueError(
                    "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...)"
                    f". Got element {i} of the sequence with type {type(part).__name__}."
                )
            if isinstance(original, Parameter):
                part = Parameter(part.data, original.requires_grad and part.dtype.category >= 2)
            _register(self, f"original{i}", part)

    def _check_result(self, shape, dtype) -> None:
        value: Any = self()
        if not isinstance(value, Tensor):
            raise ValueError(f"A parametrization must return a tensor. Got {type(value).__name__}.")
        if value.dtype is not dtype:
            raise ValueError(
                "Registering a parametrization may not change the dtype of the tensor, unless "
                f"`unsafe` flag is enabled.\nunparametrized dtype: {dtype}\nparametrized dtype: "
                f"{value.dtype}"
            )
        if value.shape != shape:
            raise ValueError(
                "Registering a parametrization may not change the shape of the tensor, unless "
                f"`unsafe` flag is enabled.\nunparametrized shape: {shape}\nparametrized shape: "
                f"{value.shape}"
            )

    def originals(self) -> list[Tensor]:
        """What the tensor is computed from."""
        if self.is_tensor:
            return [self.original]
        return [getattr(self, f"original{i}") for i in range(self.ntensors)]

    def right_inverse(self, value: Tensor) -> None:
        """Set the originals so that the tensor becomes `value`, as far as the modules can."""
        with no_grad():
            new: Any = value
            for module in reversed(list(self)):
                inverse = getattr(module, "right_inverse", None)
                if inverse is None:
                    raise RuntimeError(
                        f"parametrization {type(module).__name__} does not implement right_inverse."
                    )
                new = inverse(new)
            if self.is_tensor:
                _check_inverse(self.original, new)
                self.original.data = new.data
                return
            if len(new) != self.ntensors:
                raise ValueError(
                    "'right_inverse' must return a sequence of tensors of length "
                    f"{self.ntensors}. Got a sequence of length {len(new)}."
                )
            for original, part in zip(self.originals(), new, strict=True):
                original.data = part.data

    def forward(self) -> Tensor:
        modules = iter(self)
        value = next(modules)(*self.originals())
        for module in modules:
            value = module(value)
        return value


def _check_inverse(original: Tensor, new) -> None:
    if not isinstance(new, Tensor):
        raise ValueError(f"`right_inverse` should return a tensor. Got {type(new).__name__}")
    if original.dtype is not new.dtype:
        raise ValueError(
            "When `right_inverse` outputs one tensor, it may not change the dtype.\n"
            f"original.dtype: {original.dtype}\nright_inverse(original).dtype: {new.dtype}"
        )


def _inject_class(module: Module) -> None:
    """Give the module a class of its own, to which properties can be added."""
    kind = type(module)

    def refuse(self):
        raise RuntimeError(
            "Serialization of parametrized modules is only supported through state_dict(). See:\n"
            "https://pytorch.org/tutorials/beginner/saving_loading_models.html"
            "#saving-loading-a-general-checkpoint-for-inference-and-or-resuming-training"
        )

    def deepcopy(self, memo):
        replica = self.__new__(type(self))
        memo[id(self)] = replica
        replica.__dict__ = copy.deepcopy(self.__dict__, memo)
        return replica

    own: dict[str, Any] = {"__getstate__": refuse}
    if not hasattr(kind, "__deepcopy__"):
        own["__deepcopy__"] = deepcopy
    module.__class__ = type(f"Parametrized{kind.__name__}", (kind,), own)


def _inject_property(module: Module, name: str) -> None:
    def read(self):
        computed = self.parametrizations[name]
        if not _cache.depth:
            return computed()
        key = id(self), name
        if key not in _cache.values:
            _cache.values[key] = computed()
        return _cache.values[key]

    def write(self, value) -> None:
        self.parametrizations[name].right_inverse(value)

    setattr(type(module), name, property(read, write))


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Compute a parameter or buffer of `module` by `parametrization` from now on. Returns module.

    What it is computed from is parametrization.right_inverse(old value), else the old value.
    Raises ValueError where the name is unknown, or dtype or shape would change (unless `unsafe`).
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        chain: Any = module.parametrizations[tensor_name]
        if not unsafe:
            before = getattr(module, tensor_name)
            _check_kept(before, parametrization(before))
        chain.append(parametrization)
        chain.unsafe |= unsafe
        return module
    known = tensor_name in module._parameters or tensor_name in module._buffers
    if not known:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element "
            f"with name '{tensor_name}'"
        )
    chain = ParametrizationList([parametrization], getattr(module, tensor_name), unsafe=unsafe)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        _inject_class(module)
        module.parametrizations = ModuleDict()
    _inject_property(module, tensor_name)
    module.parametrizations[tensor_name] = chain  # type: ignore[index]
    return module


def _check_kept(before: Tensor, after) -> None:
    if not isinstance(after, Tensor):
        raise ValueError(f"A parametrization must return a tensor. Got {type(after).__name__}.")
    for what in ("dtype", "shape"):
        if getattr(before, what) != getattr(after, what):
            raise ValueError(
                f"Registering a parametrization may not change the {what} of the tensor, unless "
                f"the `unsafe` flag is enabled.\nmodule.{what}: {getattr(before, what)}\n"
                f"parametrization.{what}: {getattr(after, what)}"
            )


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a module has a computed tensor, or this one is."""
    computed = getattr(module, "parametrizations", None)
    if not isinstance(computed, ModuleDict):
        return False
    return len(computed) > 0 if tensor_name is None else tensor_name in computed


def remove_parametrizations(
    module: Module, tensor_name: str, leave_parametrized: bool = True
) -> Module:
    """Make a computed tensor a plain one, of its value (or of the original's). Returns module.

    Raises ValueError where it is not parametrised, or the original is several tensors.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    chain: Any = module.parametrizations[tensor_name]
    if leave_parametrized:
        with no_grad():
            value = getattr(module, tensor_name)
        if chain.is_tensor:
            plain = chain.original
            plain.data = value.data
        else:
            learns = any(isinstance(o, Parameter) for o in chain.originals())
            plain = Parameter(value.data, value.dtype.category >= 2) if learns else value
    elif chain.is_tensor:
        plain = chain.original
    else:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is "
            "parametrized in terms of a sequence of tensors."
        )
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]  # type: ignore[attr-defined]
    _register(module, tensor_name, plain)
    if not is_parametrized(module):
        delattr(module, "parametrizations")
        module.__class__ = type(module).__bases__[0]
    return module


def type_before_parametrizations(module: Module) -> type:
    """The module's class without what parametrising it has added."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def transfer_parametrizations_and_params(
    from_module: Module, to_module: Module, tensor_name: str | None = None
) -> Module:
    """Give to_module the parametrisations, and their originals, of from_module. Returns it."""
    if not is_parametrized(from_module):
        return to_module
    names = [tensor_name] if tensor_name else list(from_module.parametrizations)  # type: ignore[call-overload]
    for name in names:
        chain: Any = from_module.parametrizations[name]  # type: ignore[index]
        if not hasattr(to_module, name):
            _register(to_module, name, copy.deepcopy(getattr(from_module, name)))
        for parametrization in chain:
            register_parametrization(to_module, name, parametrization)
        target: Any = to_module.parametrizations[name]  # type: ignore[index]
        for mine, theirs in zip(target.originals(), chain.originals(), strict=True):
            mine.data = theirs.data
    return to_module
