"""Hooks of modules: the handles that remove them, registration, and a call that runs them in
torch's order.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections import OrderedDict

from .backward_hooks import BackwardHooks, register_on_node

_ids = itertools.count()


class RemovableHandle:
    """Removes a hook: `remove()`, or the end of a `with` block.

    torch.utils.hooks.RemovableHandle.
    """

    def __init__(self, hooks_dict, *, extra_dict=()):
        self.id = next(_ids)
        extra = extra_dict if isinstance(extra_dict, (list, tuple)) else (extra_dict,)
        self._owners = [weakref.ref(d) for d in (hooks_dict, *extra)]

    def remove(self) -> None:
        for owner in self._owners:
            hooks = owner()
            if hooks is not None:
                hooks.pop(self.id, None)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.remove()

    def __getstate__(self):
        return (self.id, [owner() for owner in self._owners])

    def __setstate__(self, state):
        self.id, owners = state
        self._owners = [weakref.ref(OrderedDict() if d is None else d) for d in owners]


def register(hooks: OrderedDict, hook, *flags: OrderedDict, prepend: bool = False):
    """Add a hook, marked in the `flags` tables. Returns its handle."""
    handle = RemovableHandle(hooks, extra_dict=flags)
    hooks[handle.id] = hook
    for table in flags:
        table[handle.id] = True
    if prepend:
        for table in (hooks, *flags):
            table.move_to_end(handle.id, last=False)
    return handle


class Hooks:
    """The part of Module that registers hooks and calls `forward` between them."""

    _forward_hooks: OrderedDict
    _forward_hooks_with_kwargs: OrderedDict
    _forward_hooks_always_called: OrderedDict
    _forward_pre_hooks: OrderedDict
    _forward_pre_hooks_with_kwargs: OrderedDict
    _backward_hooks: OrderedDict
    _backward_pre_hooks: OrderedDict
    _is_full_backward_hook: bool | None

    def register_forward_pre_hook(self, hook, *, prepend=False, with_kwargs=False):
        """Call hook(module, args[, kwargs]) before forward; its result replaces the arguments."""
        flags = (self._forward_pre_hooks_with_kwargs,) if with_kwargs else ()
        return register(self._forward_pre_hooks, hook, *flags, prepend=prepend)

    def register_forward_hook(self, hook, *, prepend=False, with_kwargs=False, always_call=False):
        """Call hook(module, args[, kwargs], output) after forward; what it returns replaces the
        output.
        """
        flags = [self._forward_hooks_with_kwargs] if with_kwargs else []
        flags += [self._forward_hooks_always_called] if always_call else []
        return register(self._forward_hooks, hook, *flags, prepend=prepend)

    def register_full_backward_pre_hook(self, hook, prepend=False):
        """Call hook(module, grad_output) before the gradients of the inputs are computed."""
        return register(self._backward_pre_hooks, hook, prepend=prepend)

    def register_full_backward_hook(self, hook, prepend=False):
        """Call hook(module, grad_input, grad_output) once the inputs' gradients are computed."""
        self._choose_backward_hooks(full=True)
        return register(self._backward_hooks, hook, prepend=prepend)

    def register_backward_hook(self, hook):
        """Call hook(module, grad_input, grad_output) with the gradients of the node that made the
        output, the module's last operation. torch deprecates it for register_full_backward_hook.
        """
        self._choose_backward_hooks(full=False)
        return register(self._backward_hooks, hook)

    def _choose_backward_hooks(self, full: bool) -> None:
        if self._is_full_backward_hook is not None and self._is_full_backward_hook is not full:
            raise RuntimeError(
                "Cannot use both regular backward hooks and full backward hooks on a single "
                "Module. Please use only one of them."
            )
        self._is_full_backward_hook = full

    def forward(self, *args, **kwargs):
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function'
        )

    def __call__(self, *args, **kwargs):
        if (
            self._forward_hooks
            or self._forward_pre_hooks
            or self._backward_hooks
            or self._backward_pre_hooks
        ):
            return self._call_with_hooks(args, kwargs)
        return self.forward(*args, **kwargs)

    def _call_with_hooks(self, args, kwargs):
        result, ran = None, set()
        try:
            args, kwargs = self._before(args, kwargs)
            full = self._backward_hooks.values() if self._is_full_backward_hook else ()
            backward = None
            if full or self._backward_pre_hooks:
                backward = BackwardHooks(self, full, self._backward_pre_hooks.values())
                args = backward.around_inputs(args)
            result = self.forward(*args, **kwargs)
            for key, hook in tuple(self._forward_hooks.items()):
                ran.add(key)
                result = self._after(key, hook, args, kwargs, result)
            if backward is not None:
                result = backward.around_outputs(result)
            if self._is_full_backward_hook is False and self._backward_hooks:
                register_on_node(self, self._backward_hooks.values(), result)
            return result
        except Exception:
            for key, hook in tuple(self._forward_hooks.items()):
                if key in self._forward_hooks_always_called and key not in ran:
                    result = self._after_error(key, hook, args, kwargs, result)
            raise

    def _before(self, args, kwargs):
        for key, hook in tuple(self._forward_pre_hooks.items()):
            if key in self._forward_pre_hooks_with_kwargs:
                changed = hook(self, args, kwargs)
                if changed is None:
                    continue
                if not (isinstance(changed, tuple) and len(changed) == 2):
                    raise RuntimeError(
                        "forward pre-hook must return None or a tuple of (new_args, new_kwargs), "
                        f"but got {changed}."
                    )
                args, kwargs = changed
            else:
                changed = hook(self, args)
                if changed is not None:
                    args = changed if isinstance(changed, tuple) else (changed,)
        return args, kwargs

    def _after(self, key, hook, args, kwargs, result):
        if key in self._forward_hooks_with_kwargs:
            changed = hook(self, args, kwargs, result)
        else:
            changed = hook(self, args, result)
        return result if changed is None else changed

    def _after_error(self, key, hook, args, kwargs, result):
        try:
            return self._after(key, hook, args, kwargs, result)
        except Exception as error:
            warnings.warn(
                "module forward hook with ``always_call=True`` raised an exception that was "
                f"silenced as another error was raised in forward: {error}",
                stacklevel=2,
            )
            return result
