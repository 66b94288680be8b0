"""Thread-local modes: grad mode, inference mode, autocast."""

from __future__ import annotations

import functools
import inspect
import threading
from contextlib import contextmanager
from typing import Any, NamedTuple, Self


class Autocast(NamedTuple):
    """The device type whose operations are cast, and its half precision dtype."""

    device_type: str
    dtype: Any


class _State(threading.local):
    grad = True
    inference = False
    autocast: Autocast | None = None


_state = _State()


def autocast() -> Autocast | None:
    """What autocast is set to in this thread, None where it is off."""
    return _state.autocast


@contextmanager
def autocast_set(value: Autocast | None):
    """Autocast set to `value` inside."""
    before, _state.autocast = _state.autocast, value
    try:
        yield
    finally:
        _state.autocast = before


def grad_enabled() -> bool:
    return _state.grad


class _Mode:
    """A mode that works as a context manager and as a decorator, with or without parentheses."""

    _attribute = "grad"

    def __init__(self, value: bool):
        self.value = value
        self._previous: list = []

    def __enter__(self):
        self._previous.append((_state.grad, _state.inference))
        self._apply()
        return self

    def _apply(self):
        _state.grad = self.value

    def __exit__(self, *exc):
        _state.grad, _state.inference = self._previous.pop()

    def clone(self):
        return type(self)(self.value)

    def __call__(self, function):
        if inspect.isgeneratorfunction(function):
            return self._wrap_generator(function)

        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            with self.clone():
                return function(*args, **kwargs)

        return wrapped

    def _wrap_generator(self, function):
        """The mode holds only while the generator runs, not while its consumer does."""

        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            generator = function(*args, **kwargs)
            sent = None
            while True:
                with self.clone():
                    try:
                        value = generator.send(sent)
                    except StopIteration as stop:
                        return stop.value
                sent = yield value

        return wrapped


class _Bare(_Mode):
    """`no_grad` and its like: `@no_grad` is `@no_grad()`."""

    _value = False

    def __new__(cls, function=None) -> Self:
        self = object.__new__(cls)
        if function is None:
            return self
        self.__init__()
        return self(function)  # type: ignore[return-value]  # a decorated function

    def __init__(self, function=None):
        super().__init__(self._value)

    def clone(self):
        return type(self)()


class no_grad(_Bare):
    """Disable gradient recording. torch.no_grad."""


class enable_grad(_Bare):
    """Enable gradient recording inside `no_grad`. torch.enable_grad."""

    _value = True


class set_grad_enabled(_Mode):
    """Set gradient recording at once; as a context manager, restore it at the end.

    torch.set_grad_enabled.
    """

    def __init__(self, mode: bool):
        super().__init__(bool(mode))
        self._before = (_state.grad, _state.inference)
        _state.grad = self.value

    def __enter__(self):
        self._previous.append(self._before)
        _state.grad = self.value
        return self

    def __call__(self, function):
        _state.grad, _state.inference = self._before
        return super().__call__(function)


class inference_mode(_Mode):
    """No gradients and no version tracking for tensors made inside. torch.inference_mode."""

    def __new__(cls, mode=True) -> Self:
        if callable(mode):
            return cls(True)(mode)  # type: ignore[return-value]  # a decorated function
        return object.__new__(cls)

    def __init__(self, mode: bool = True):
        super().__init__(bool(mode))

    def _apply(self):
        if self.value:
            _state.grad = False
        _state.inference = self.value


def is_grad_enabled() -> bool:
    """Whether operations record gradients in this thread. torch.is_grad_enabled."""
    return _state.grad


def is_inference_mode_enabled() -> bool:
    """Whether inference mode is on in this thread. torch.is_inference_mode_enabled."""
    return _state.inference
