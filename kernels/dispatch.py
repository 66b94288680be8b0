"""Which backend serves a call: the order, the overrides, and a trace of what happened.

An override names a backend, or "metal:VARIANT". From strongest to weakest: `use(softmax=...)`,
`use(...)`, the variable TORCHMLX_KERNEL_<NAME>, the variable TORCHMLX_BACKEND. It picks the
backend; a problem that the backend's own policy leaves to MLX (say, a dtype without a program)
still goes to the fallback, which the trace tells, unless a variant was named. So does, under a
backend for all, a kernel that has no program for it.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from . import native
from .discovery import names
from .spec import FALLBACK, Chip

if TYPE_CHECKING:
    from .kernel import Kernel

# In order of preference. "cuda" is MLX's own CUDA operations, reached through the fallback.
BACKENDS = ("metal", "cpu", "cuda", FALLBACK)

ALL = "*"
PREFIX = "TORCHMLX_KERNEL_"


class OverrideError(ValueError):
    """An override that names no backend, variant or kernel, or one that cannot serve here."""


@dataclass(frozen=True)
class Choice:
    """A backend for a kernel; an override (`forced`) may have fixed its variant too."""

    backend: str
    variant: str | None
    why: str
    forced: bool = False


@dataclass(frozen=True)
class Call:
    """One served call, as `trace` records it; `variant` is "" where the backend has none."""

    kernel: str
    backend: str
    variant: str
    why: str


_overrides: ContextVar[Mapping[str, Choice]] = ContextVar("overrides", default=MappingProxyType({}))
_trace: ContextVar[list[Call] | None] = ContextVar("trace", default=None)


def parse(text: str, source: str) -> Choice:
    """The override "BACKEND" or "metal:VARIANT"; `source` says in errors where it came from."""
    backend, _, variant = text.partition(":")
    if backend not in BACKENDS:
        raise OverrideError(f"{source}: unknown backend {backend!r}; one of {', '.join(BACKENDS)}")
    if variant and backend != "metal":
        raise OverrideError(f"{source}: {backend} has no variants, yet {text!r} names one")
    return Choice(backend, variant or None, source, forced=True)


def _known(name: str, source: str) -> str:
    if name not in names():
        raise OverrideError(f"{source}: no kernel {name!r}; there are: {', '.join(names())}")
    return name


@lru_cache
def environment() -> Mapping[str, Choice]:
    """The overrides in the environment, read at the first call only: a read costs 1.5 us."""
    found = {}
    if text := os.environ.get("TORCHMLX_BACKEND"):
        found[ALL] = parse(text, "TORCHMLX_BACKEND")
    for variable, text in os.environ.items():
        if variable.startswith(PREFIX) and text:
            name = _known(variable.removeprefix(PREFIX).lower(), variable)
            found[name] = parse(text, variable)
    return found


@contextmanager
def use(backend: str | None = None, **kernels: str) -> Iterator[None]:
    """Override backends in this thread: `use("fallback")`, `use(softmax="metal:split")`.

    A backend for all lifts the overrides for single kernels around it.
    Raises OverrideError on entry for an unknown name, at the call for an impossible choice.
    `mx.compile` keeps the choice it was traced with.
    """
    changes = {_known(name, "use"): parse(text, "use") for name, text in kernels.items()}
    if backend is not None:
        changes = {ALL: parse(backend, "use"), **changes}
        kept: Mapping[str, Choice] = {}
    else:
        kept = _overrides.get()
    token = _overrides.set({**kept, **changes})
    try:
        yield
    finally:
        _overrides.reset(token)


@contextmanager
def trace() -> Iterator[list[Call]]:
    """Collect a `Call` for each call served in this thread, when its graph is built."""
    calls: list[Call] = []
    token = _trace.set(calls)
    try:
        yield calls
    finally:
        _trace.reset(token)


def obstacle(kernel: "Kernel", backend: str) -> str | None:
    """Why `backend` cannot serve `kernel` on the current stream's device; None if it can."""
    on_gpu = mx.default_device().type == mx.gpu
    if backend == "metal":
        if kernel.metal is None:
            return "it has no Metal program"
        return None if on_gpu and mx.metal.is_available() else _elsewhere("Metal", on_gpu)
    if backend == "cpu":
        return _without_native(kernel, on_gpu)
    if backend == "cuda":
        return None if on_gpu and mx.cuda.is_available() else _elsewhere("CUDA", on_gpu)
    return None


def _without_native(kernel: "Kernel", on_gpu: bool) -> str | None:
    if kernel.cpu is None:
        return "it has no C++ primitive"
    if on_gpu:
        return "the current stream is on a GPU"
    try:
        return native.obstacle()
    except ValueError as error:
        raise OverrideError(str(error)) from None


def _elsewhere(kind: str, on_gpu: bool) -> str:
    available = mx.metal.is_available() if kind == "Metal" else mx.cuda.is_available()
    if available and not on_gpu:
        return f"the current stream is on the CPU, not on the {kind} GPU"
    return f"this machine has no {kind} GPU"


def select(kernel: "Kernel") -> Choice:
    """The backend for `kernel` now: the strongest override, else the first without obstacle."""
    inner, outer = _overrides.get(), environment()
    for overrides, name in ((inner, kernel.name), (inner, ALL), (outer, kernel.name), (outer, ALL)):
        if name in overrides:
            choice = overrides[name]
            lacking = {"metal": kernel.metal, "cpu": kernel.cpu}.get(choice.backend, True) is None
            if name == ALL and lacking:
                return Choice(FALLBACK, None, f"{choice.why}: {obstacle(kernel, choice.backend)}")
            return _checked(kernel, choice)
    return _preferred(kernel, mx.default_device().type == mx.gpu)


@lru_cache
def _preferred(kernel: "Kernel", on_gpu: bool) -> Choice:
    """The first backend without obstacle; `on_gpu` is the device that `obstacle` sees."""
    reasons = []
    for backend in BACKENDS:
        reason = obstacle(kernel, backend)
        if reason is None:
            if backend == FALLBACK and kernel.cpu and not on_gpu:
                native.warn_once()
            return Choice(backend, None, "; ".join(reasons) or "the first choice")
        reasons.append(f"not {backend}: {reason}")
    raise AssertionError("the fallback has no obstacle")


def _checked(kernel: "Kernel", choice: Choice) -> Choice:
    """`choice`, or OverrideError. "metal" passes without a GPU, as MLX can still record it."""
    metal = kernel.metal
    reason = None
    if choice.backend != "metal" or metal is None:
        reason = obstacle(kernel, choice.backend)
    elif choice.variant is not None and choice.variant not in metal.variants:
        reason = f"its variants are {', '.join(metal.variants)}, not {choice.variant!r}"
    if reason:
        raise OverrideError(f"{choice.why}: {choice.backend} cannot serve {kernel.name}: {reason}")
    return choice


def serve(
    kernel: "Kernel", arrays: tuple[mx.array | None, ...], keywords: Mapping[str, Any]
) -> Any:
    """The kernel's result from the selected backend."""
    choice = select(kernel)
    if choice.backend == "metal":
        return _serve_metal(kernel, choice, arrays, keywords)
    if choice.backend == "cpu":
        return _serve_cpu(kernel, choice, arrays, keywords)
    _note(Call(kernel.name, choice.backend, "", choice.why))
    return kernel.fallback(*arrays, **keywords)


def _serve_cpu(kernel, choice, arrays, keywords):
    result = native.function(kernel.cpu)(*arrays, **keywords)
    if result is None:
        _note(Call(kernel.name, FALLBACK, "", "the C++ kernel leaves this problem to MLX"))
        return kernel.fallback(*arrays, **keywords)
    _note(Call(kernel.name, "cpu", "", choice.why))
    return result


def _serve_metal(kernel, choice, arrays, keywords):
    metal = kernel.metal
    problem = metal.problem(*arrays, **keywords)
    variant = choice.variant or metal.choose(problem, Chip.here())
    if variant == FALLBACK:
        _note(Call(kernel.name, FALLBACK, "", "the Metal policy leaves this problem to MLX"))
        return kernel.fallback(*arrays, **keywords)
    try:
        values = dict(zip(kernel.parameters, arrays, strict=False))
        for launch in metal.plan(problem, variant):
            values |= launch.run(values)
    except (RuntimeError, ValueError) as error:
        if not choice.forced:
            raise
        raise OverrideError(f"{choice.why}: metal cannot serve {kernel.name}: {error}") from error
    _note(Call(kernel.name, "metal", variant, choice.why))
    results = tuple(values[name] for name in metal.outputs if name in values)
    return results[0] if len(results) == 1 else results


def _note(call: Call) -> None:
    calls = _trace.get()
    if calls is not None:
        calls.append(call)
