"""Module: the base class of networks. Saving is in state.py, hooks and the call in hooks.py."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from ...aten.convert import channels_last, channels_last_3d, parse_to
from ...core import device as devices
from ...core import dtype as dtypes
from ...core.modes import no_grad
from ...core.op import TABLE
from ...core.tensor import Tensor
from ..parameter import Buffer, Parameter
from .hooks import Hooks
from .state import _EXTRA_STATE_KEY_SUFFIX as _EXTRA_STATE_KEY_SUFFIX  # transformers reads it here
from .state import State


def typename(value) -> str:
    """What torch calls a value's type in messages."""
    if isinstance(value, Tensor):
        return value.type()  # type: ignore[attr-defined]
    kind = value if isinstance(value, type) else type(value)
    qualified = getattr(value, "__qualname__", None) or kind.__qualname__
    return qualified if kind.__module__ == "builtins" else f"{kind.__module__}.{qualified}"


def indented(text: str, spaces: int = 2) -> str:
    """The text with every line but the first indented."""
    return text.replace("\n", "\n" + " " * spaces)


_TABLES = (
    "_backward_pre_hooks", "_backward_hooks", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs",
    "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)  # fmt: skip


class Module(State, Hooks):
    """Base class of all networks: parameters, buffers and child modules as attributes.

    torch.nn.Module.
    """

    dump_patches: bool = False
    call_super_init: bool = False
    training: bool

    def __init__(self, *args, **kwargs) -> None:
        if not self.call_super_init and (args or kwargs):
            given = f"unexpected keyword argument '{next(iter(kwargs))}'" if kwargs else None
            raise TypeError(
                f"{type(self).__name__}.__init__() "
                + (
                    f"got an {given}"
                    if given
                    else f"takes 1 positional argument but {len(args) + 1}"
                )
                + ("" if given else " were given")
            )
        own = self.__dict__
        own["training"] = True
        own["_parameters"], own["_buffers"], own["_modules"] = {}, {}, {}
        own["_non_persistent_buffers_set"] = set()
        own["_is_full_backward_hook"] = None
        for name in _TABLES:
            own[name] = OrderedDict()
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    # ---- attributes

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        for table in ("_parameters", "_buffers", "_modules"):
            found = own.get(table)
            if found is not None and name in found:
                return found[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value) -> None:
        own = self.__dict__
        if isinstance(value, Parameter):
            self._need_init("parameters")
            self._forget(name, "_buffers", "_modules")
            self.register_parameter(name, value)
        elif name in own.get("_parameters", ()):
            if value is not None:
                raise TypeError(
                    f"cannot assign '{typename(value)}' as parameter '{name}' "
                    "(torch.nn.Parameter or None expected)"
                )
            self.register_parameter(name, None)
        elif isinstance(value, Module):
            self._need_init("module")
            self._forget(name, "_parameters", "_buffers")
            own["_modules"][name] = value
        elif name in own.get("_modules", ()):
            if value is not None:
                raise TypeError(
                    f"cannot assign '{typename(value)}' as child module '{name}' "
                    "(torch.nn.Module or None expected)"
                )
            own["_modules"][name] = None
        elif isinstance(value, Buffer) or name in own.get("_buffers", ()):
            self._assign_buffer(name, value)
        else:
            object.__setattr__(self, name, value)

    def _assign_buffer(self, name: str, value) -> None:
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(
                f"cannot assign '{typename(value)}' as buffer '{name}' "
                "(torch.nn.Buffer, torch.Tensor or None expected)"
            )
        if isinstance(value, Buffer):
            self._forget(name, "_parameters", "_modules")
            self.register_buffer(name, value, value.persistent)  # type: ignore[attr-defined]
        else:
            self._buffers[name] = value

    def __delattr__(self, name: str) -> None:
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                del table[name]
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def _need_init(self, what: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"cannot assign {what} before Module.__init__() call")

    def _forget(self, name: str, *tables: str) -> None:
        own = self.__dict__
        own.pop(name, None)
        for table in tables:
            own[table].pop(name, None)
        own["_non_persistent_buffers_set"].discard(name)

    def _check_name(self, name, what: str, table: dict) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{what} name should be a string. Got {typename(name)}")
        if "." in name:
            got = f", got: {name}" if what == "module" else ""
            raise KeyError(f'{what} name can\'t contain "."{got}')
        if name == "":
            raise KeyError(f'{what} name can\'t be empty string ""')
        if hasattr(self, name) and name not in table:
            raise KeyError(f"attribute '{name}' already exists")

    def register_buffer(self, name: str, tensor, persistent: bool = True) -> None:
        """Add a tensor that is state but no parameter; only persistent buffers are saved."""
        self._need_init("buffer")
        self._check_name(name, "buffer", self._buffers)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{typename(tensor)}' object to buffer '{name}' "
                "(torch Tensor or None required)"
            )
        self._buffers[name] = tensor
        if persistent:
            self._non_persistent_buffers_set.discard(name)
        else:
            self._non_persistent_buffers_set.add(name)

    def register_parameter(self, name: str, param) -> None:
        """Add a parameter; None reserves the name."""
        self._need_init("parameter")
        self._check_name(name, "parameter", self._parameters)
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{typename(param)}' object to parameter '{name}' "
                "(torch.nn.Parameter or None required)"
            )
        self._parameters[name] = param

    def add_module(self, name: str, module) -> None:
        """Add a child module; None reserves the name."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{typename(module)} is not a Module subclass")
        self._check_name(name, "module", self._modules)
        self._modules[name] = module

    def register_module(self, name: str, module) -> None:
        """The same as `add_module`."""
        self.add_module(name, module)

    # ---- lookup by path

    def get_submodule(self, target: str) -> Module:
        """The module at a dotted path ("" is this one). AttributeError where there is none."""
        module = self
        for name in target.split(".") if target else ():
            if not hasattr(module, name):
                raise AttributeError(f"{module._get_name()} has no attribute `{name}`")
            module = getattr(module, name)
            if not isinstance(module, Module):
                raise AttributeError(f"`{name}` is not an nn.Module")
        return module

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Put a module at a dotted path; `strict` demands that one is there already."""
        if target == "":
            raise ValueError("Cannot set the submodule without a target name!")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict and not hasattr(parent, name):
            raise AttributeError(f"{parent._get_name()} has no attribute `{name}`")
        if hasattr(parent, name) and not isinstance(getattr(parent, name), Module):
            raise AttributeError(f"`{name}` is not an nn.Module")
        setattr(parent, name, module)

    def _at(self, target: str, table: str, what: str):
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if not hasattr(module, name):
            raise AttributeError(f"{module._get_name()} has no attribute `{name}`")
        if name not in getattr(module, table):
            raise AttributeError(f"`{name}` is not {what}")
        return getattr(module, name)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a dotted path."""
        return self._at(target, "_parameters", "an nn.Parameter")

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a dotted path."""
        return self._at(target, "_buffers", "a buffer")

    # ---- walking

    def _named_members(self, members, prefix="", recurse=True, remove_duplicate=True):
        seen = set()
        modules = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
            if recurse
            else [(prefix, self)]
        )
        for path, module in modules:
            for name, value in members(module):
                if value is None or value in seen:
                    continue
                if remove_duplicate:
                    seen.add(value)
                yield (path + "." if path else "") + name, value

    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
        """(name, parameter) pairs; a shared parameter once, unless told otherwise."""
        return self._named_members(
            lambda m: m._parameters.items(), prefix, recurse, remove_duplicate
        )

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters, each once."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix="", recurse=True, remove_duplicate=True):
        """(name, buffer) pairs."""
        return self._named_members(lambda m: m._buffers.items(), prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers, each once."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) pairs of the direct children, each module once."""
        seen = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """The direct children, each once."""
        return (module for _, module in self.named_children())

    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        """(path, module) pairs of the whole tree, this module first with the path `prefix`."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                path = (prefix + "." if prefix else "") + name
                yield from module.named_modules(memo, path, remove_duplicate)

    def modules(self, remove_duplicate: bool = True) -> Iterator[Module]:
        """All modules of the tree."""
        return (m for _, m in self.named_modules(remove_duplicate=remove_duplicate))

    # ---- changing every tensor

    def apply(self, fn: Callable[[Module], None]):
        """Call fn on every module, children first. Returns self."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True):
        if recurse:
            for module in self.children():
                module._apply(fn)
        for param in self._parameters.values():
            if param is None:
                continue
            with no_grad():
                # The object stays: tied names and optimizers keep pointing at it.
                param.data = fn(param)
                if param.grad is not None:
                    param.grad.data = fn(param.grad)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    def to(self, *args, **kwargs):
        """Move to a device and/or convert floating point tensors to a dtype, in place. Returns
        self.
        """
        target, where, _, memory_format = parse_to(args, kwargs)
        if target is not None and target.category < dtypes.FLOAT:
            raise TypeError(
                "nn.Module.to only accepts floating point or complex dtypes, but got desired "
                f"dtype={target}"
            )

        def convert(t):
            kwargs = {}
            if memory_format is not None and t.ndim in (4, 5):
                kwargs["memory_format"] = channels_last if t.ndim == 4 else channels_last_3d
                if memory_format not in (channels_last, channels_last_3d):
                    kwargs["memory_format"] = memory_format
            if target is not None and t.dtype.category >= dtypes.FLOAT:
                kwargs["dtype"] = target
            return t.to(device=where, **kwargs)

        return self._apply(convert)

    def _cast(self, target):
        return self._apply(lambda t: t.to(target) if t.dtype.is_floating_point else t)

    def float(self):
        """Floating point tensors as float32."""
        return self._cast(dtypes.float32)

    def double(self):
        """Floating point tensors as float64."""
        return self._cast(dtypes.float64)

    def half(self):
        """Floating point tensors as float16."""
        return self._cast(dtypes.float16)

    def bfloat16(self):
        """Floating point tensors as bfloat16."""
        return self._cast(dtypes.bfloat16)

    def type(self, dst_type):
        """Every tensor as `dst_type`."""
        return self._apply(lambda t: t.type(dst_type))  # type: ignore[attr-defined]

    def cpu(self):
        """Every tensor on the CPU."""
        return self._apply(lambda t: t.cpu())  # type: ignore[attr-defined]

    def cuda(self, device=None):
        """Every tensor on the CUDA device."""
        return self._apply(lambda t: t.cuda(device))  # type: ignore[attr-defined]

    def to_empty(self, *, device, recurse: bool = True):
        """Every tensor replaced by an uninitialised one on a device."""
        where = devices.get_default_device() if device is None else devices.resolve(device)
        empty_like = TABLE["empty_like"].call
        return self._apply(lambda t: empty_like(t, device=where), recurse=recurse)

    def share_memory(self):
        """Every tensor's storage moved to shared memory. torch.nn.Module.share_memory."""
        return self._apply(lambda t: t.share_memory_())  # type: ignore[attr-defined]

    def train(self, mode: bool = True):
        """Set training mode, which Dropout, BatchNorm and their like read. Returns self."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self):
        """The same as `train(False)`."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True):
        """Set whether autograd records the parameters. Returns self."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)  # type: ignore[attr-defined]
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or fill them with zeros."""
        for p in self.parameters():
            if p.grad is not None and set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad.requires_grad_(False)  # type: ignore[attr-defined]
                p.grad.zero_()  # type: ignore[attr-defined]

    # ---- presentation

    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        """What `repr` says of this module besides its children. For subclasses to override."""
        return ""

    def __repr__(self):
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        if len(lines) == 1 and not self._modules:
            return f"{self._get_name()}({extra})"
        lines += [f"({name}): {indented(repr(m))}" for name, m in self._modules.items()]
        body = "\n  " + "\n  ".join(lines) + "\n" if lines else ""
        return f"{self._get_name()}({body})"

    def __dir__(self):
        names = [
            *dir(type(self)), *self.__dict__, *self._parameters, *self._modules, *self._buffers,
        ]  # fmt: skip
        return sorted(name for name in names if not name[0].isdigit())

    def __setstate__(self, state):
        self.__dict__.update(state)
        for name in _TABLES:
            self.__dict__.setdefault(name, OrderedDict())
