"""State of modules: `state_dict` and `load_state_dict` with torch's keys, hooks, metadata and
error text.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Mapping

from ...core.modes import no_grad
from ...core.tensor import Tensor
from ..parameter import Parameter
from .hooks import register

_EXTRA_STATE_KEY_SUFFIX = "_extra_state"


class _IncompatibleKeys(namedtuple("IncompatibleKeys", ["missing_keys", "unexpected_keys"])):
    __slots__ = ()

    def __repr__(self):
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return super().__repr__()

    __str__ = __repr__


def _quoted(keys) -> str:
    return ", ".join(f'"{k}"' for k in keys)


class State:
    """The part of Module that saves and restores parameters and persistent buffers."""

    _version: int | None = 1
    _parameters: dict
    _buffers: dict
    _modules: dict
    _non_persistent_buffers_set: set
    _state_dict_hooks: OrderedDict
    _state_dict_pre_hooks: OrderedDict
    _load_state_dict_pre_hooks: OrderedDict
    _load_state_dict_post_hooks: OrderedDict

    def get_extra_state(self):
        """Further state to include in `state_dict`; paired with `set_extra_state`."""
        raise RuntimeError(
            "Reached a code path in Module.get_extra_state() that should never be called."
        )

    def set_extra_state(self, state):
        """Restore what `get_extra_state` returned."""
        raise RuntimeError(
            "Reached a code path in Module.set_extra_state() that should never be called."
        )

    # ---- hooks

    def _register_state_dict_hook(self, hook):
        if getattr(hook, "_from_public_api", False):
            raise RuntimeError(
                "Cannot register the same function as the state dict post hook that was previously "
                "registered via register_state_dict_post_hook"
            )
        return register(self._state_dict_hooks, hook)

    def register_state_dict_post_hook(self, hook):
        """Call hook(module, state_dict, prefix, local_metadata) after `state_dict`; it changes in
        place.
        """
        hook._from_public_api = True
        return register(self._state_dict_hooks, hook)

    def register_state_dict_pre_hook(self, hook):
        """Call hook(module, prefix, keep_vars) before `state_dict` collects."""
        return register(self._state_dict_pre_hooks, hook)

    def _register_load_state_dict_pre_hook(self, hook, with_module=False):
        return register(
            self._load_state_dict_pre_hooks, _Bound(self, hook) if with_module else hook
        )

    def register_load_state_dict_pre_hook(self, hook):
        """Call hook(module, state_dict, prefix, local_metadata, strict, missing, unexpected,
        errors) first.
        """
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def register_load_state_dict_post_hook(self, hook):
        """Call hook(module, incompatible_keys) after loading; it may change the lists in place."""
        return register(self._load_state_dict_post_hooks, hook)

    # ---- saving

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        for name, param in self._parameters.items():
            if param is not None:
                destination[prefix + name] = param if keep_vars else param.detach()
        for name, buffer in self._buffers.items():
            if buffer is not None and name not in self._non_persistent_buffers_set:
                destination[prefix + name] = buffer if keep_vars else buffer.detach()
        if type(self).get_extra_state is not State.get_extra_state:
            destination[prefix + _EXTRA_STATE_KEY_SUFFIX] = self.get_extra_state()

    def state_dict(self, *args, destination=None, prefix="", keep_vars=False):
        """Parameters and persistent buffers by name. Entries share storage with the module."""
        if args:  # the positional order that torch still accepts: destination, prefix, keep_vars
            destination = args[0] if destination is None else destination
            prefix = args[1] if len(args) > 1 and prefix == "" else prefix
            keep_vars = args[2] if len(args) > 2 and keep_vars is False else keep_vars
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()  # type: ignore[attr-defined]
        local = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = local  # type: ignore[attr-defined]
        for hook in self._state_dict_pre_hooks.values():
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(
                    destination=destination, prefix=prefix + name + ".", keep_vars=keep_vars
                )
        for hook in self._state_dict_hooks.values():
            changed = hook(self, destination, prefix, local)
            if getattr(hook, "_from_public_api", False):
                if changed is not None:
                    raise RuntimeError("state_dict post-hook must return None")
            elif changed is not None:
                destination = changed
        return destination

    # ---- loading

    def load_state_dict(self, state_dict, strict=True, assign=False):
        """Copy (or with `assign` adopt) the entries of `state_dict`; returns missing and
        unexpected keys.

        Raises RuntimeError that lists every key missing, unexpected (where `strict`) or misshapen.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
        missing: list[str] = []
        unexpected: list[str] = []
        errors: list[str] = []
        metadata = getattr(state_dict, "_metadata", None)
        state_dict = OrderedDict(state_dict)
        if metadata is not None:
            state_dict._metadata = metadata  # type: ignore[attr-defined]
        job = _Load(metadata, strict, assign, missing, unexpected, errors)
        job.load(self, state_dict, "")
        if strict and unexpected:
            errors.insert(0, f"Unexpected key(s) in state_dict: {_quoted(unexpected)}. ")
        if strict and missing:
            errors.insert(0, f"Missing key(s) in state_dict: {_quoted(missing)}. ")
        if errors:
            raise RuntimeError(
                "Error(s) in loading state_dict for {}:\n\t{}".format(
                    type(self).__name__, "\n\t".join(errors)
                )
            )
        return _IncompatibleKeys(missing, unexpected)

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        for hook in self._load_state_dict_pre_hooks.values():
            hook(
                state_dict,
                prefix,
                local_metadata,
                strict,
                missing_keys,
                unexpected_keys,
                error_msgs,
            )
        own = {k: v for k, v in self._parameters.items() if v is not None}
        for name, buffer in self._buffers.items():
            if buffer is not None and name not in self._non_persistent_buffers_set:
                own[name] = buffer
        assign = local_metadata.get("assign_to_params_buffers", False)
        for name, tensor in own.items():
            key = prefix + name
            if key in state_dict:
                _load_one(self, name, key, tensor, state_dict[key], assign, error_msgs)
            elif strict:
                missing_keys.append(key)
        extra = prefix + _EXTRA_STATE_KEY_SUFFIX
        if type(self).set_extra_state is not State.set_extra_state:
            if extra in state_dict:
                self.set_extra_state(state_dict[extra])
            elif strict:
                missing_keys.append(extra)
        elif strict and extra in state_dict:
            unexpected_keys.append(extra)
        if strict:
            self._find_unexpected(state_dict, prefix, own, extra, unexpected_keys)

    def _find_unexpected(self, state_dict, prefix, own, extra, unexpected_keys):
        for key in state_dict:
            if key.startswith(prefix) and key != extra:
                head, dot, _ = key[len(prefix) :].partition(".")
                if head not in (self._modules if dot else own):
                    unexpected_keys.append(key)


class _Load:
    """One call of `load_state_dict`: what it was told, and the lists it fills."""

    def __init__(self, metadata, strict, assign, missing, unexpected, errors):
        self.metadata, self.strict, self.assign = metadata, strict, assign
        self.missing, self.unexpected, self.errors = missing, unexpected, errors

    def load(self, module, state_dict, prefix: str) -> None:
        local = {} if self.metadata is None else self.metadata.get(prefix[:-1], {})
        if self.assign:
            local["assign_to_params_buffers"] = True
        module._load_from_state_dict(
            state_dict, prefix, local, True, self.missing, self.unexpected, self.errors
        )
        for name, child in module._modules.items():
            if child is not None:
                inner = prefix + name + "."
                self.load(
                    child, {k: v for k, v in state_dict.items() if k.startswith(inner)}, inner
                )
        keys = _IncompatibleKeys(self.missing, self.unexpected)
        for hook in module._load_state_dict_post_hooks.values():
            if hook(module, keys) is not None:
                raise AssertionError(
                    "Hooks registered with ``register_load_state_dict_post_hook`` are not expected "
                    "to return new values, if incompatible_keys need to be modified, it should be "
                    "done inplace."
                )


def _load_one(module, name, key, tensor, given, assign, errors) -> None:
    if not isinstance(given, Tensor):
        errors.append(
            f'While copying the parameter named "{key}", expected torch.Tensor or Tensor-like '
            f"object from checkpoint but received {type(given)}"
        )
        return
    if tensor.ndim == 0 and tuple(given.shape) == (1,):
        given = given[0]
    if given.shape != tensor.shape:
        errors.append(
            f"size mismatch for {key}: copying a param with shape {given.shape} from checkpoint, "
            "the "
            f"shape in current model is {tensor.shape}."
        )
        return
    if tensor.is_meta and not given.is_meta and not assign:
        warnings.warn(
            f"for {key}: copying from a non-meta parameter in the checkpoint to a meta parameter "
            "in the "
            "current model, which is a no-op. (Did you mean to pass `assign=True` to assign "
            "items in "
            "the state dictionary to their corresponding key in the module instead of copying "
            "them in "
            "place?)",
            stacklevel=2,
        )
        return
    try:
        with no_grad():
            _put(module, name, tensor, given, assign)
    except Exception as error:
        errors.append(
            f'While copying the parameter named "{key}", whose dimensions in the model are '
            f"{tensor.size()} and whose dimensions in the checkpoint are {given.size()}, an "
            "exception "
            f"occurred : {error.args}."
        )


def _put(module, name, tensor, given, assign) -> None:
    if not assign:
        tensor.copy_(given)
        return
    if isinstance(tensor, Parameter):
        if isinstance(given, Parameter):
            given.requires_grad_(tensor.requires_grad)
        else:
            given = Parameter(given, requires_grad=tensor.requires_grad)
    setattr(module, name, given)


class _Bound:
    """A hook that gets its module first; a deepcopy of the module rebinds it to the copy."""

    def __init__(self, module, hook):
        self.module, self.hook = module, hook

    def __call__(self, *args):
        return self.hook(self.module, *args)
