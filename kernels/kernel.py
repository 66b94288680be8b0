"""The entry that ends each kernel file."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import mlx.core as mx

from .dispatch import serve
from .spec import Case, Cost, Metal

_bare: ContextVar[bool] = ContextVar("bare", default=False)


@contextmanager
def bare() -> Iterator[None]:
    """Kernels called here, in this thread, take no part in grad and vmap, but can be exported.

    mx.export_function raises "Unable to get state for primitive CustomTransforms" otherwise (mlx
    0.32.4).
    """
    token = _bare.set(True)
    try:
        yield
    finally:
        _bare.reset(token)


@dataclass(frozen=True, eq=False)
class Kernel:
    """Everything about one kernel. Its arrays are positional, its other arguments keywords.

    An optional array is None where it is missing. Several results are a tuple.

    name: the file's name.
    function: what callers use; checks its arguments, then calls this entry.
    reference: the truth, on NumPy arrays in float64.
    fallback: the same in plain MLX operations, on any device, for any shape and dtype.
    vjp: (primals, cotangent, output, **keywords) -> a gradient for each primal, where primals is
        a tuple as given, None included (its gradient is ignored); cotangent and output are tuples
        where there are several results. None differentiates the fallback.
    metal: its programs for Apple GPUs, or None.
    cpu: the name of its C++ primitive, or None.
    cases: what to test and time.
    nmse: dtype name -> bound on the normalised mean square error, beyond what rounding the
        reference to that dtype costs (see accuracy.py).
    cost: (arrays, keywords) -> what the call must at least move and compute.
    """

    name: str
    function: Callable[..., Any]
    reference: Callable[..., Any]
    fallback: Callable[..., Any]
    vjp: Callable[..., Sequence[mx.array | None]] | None
    metal: Metal | None
    cpu: str | None
    cases: Sequence[Case]
    nmse: Mapping[str, float]
    cost: Callable[..., Cost]

    def __call__(self, *arrays: mx.array | None, **keywords: Any) -> Any:
        """Serve a call by the backend in charge; grad, vjp, jvp and vmap of MLX work on it."""
        if _bare.get():
            return serve(self, arrays, keywords)
        present = tuple(array is not None for array in arrays)
        call = _transformable(self, tuple(keywords.items()), present)
        return call(*(array for array in arrays if array is not None))

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the fallback's parameters, arrays first."""
        return tuple(inspect.signature(self.fallback).parameters)


@lru_cache(maxsize=1024)
def _transformable(
    kernel: Kernel, keywords: tuple[tuple[str, Any], ...], present: tuple[bool, ...]
) -> mx.custom_function:
    """`serve` with the keywords bound, as a function that MLX's transformations accept.

    It takes only the arrays that are `present`: MLX's transformations know no None. MLX cannot
    differentiate or vmap a Metal program; the fallback stands in where the kernel has no rule of
    its own.
    """
    bound = dict(keywords)

    def spread(arrays):
        rest = iter(arrays)
        return tuple(next(rest) if there else None for there in present)

    def fallback(*arrays):
        return kernel.fallback(*spread(arrays), **bound)

    @mx.custom_function
    def call(*arrays):
        # MLX asks the nodes in here for their jvp too, which programs of ours have none of, before
        # it takes the one below (0.32.4); at a stop it does not.
        return serve(kernel, spread(map(mx.stop_gradient, arrays)), bound)

    @call.vjp
    def _vjp(primals, cotangent, output):
        primals = _as_tuple(primals)
        if all(g.size == 0 for g in _as_tuple(cotangent)):
            # Sums over nothing. MLX may never come back from them (Reduce on the CPU, 0.32.4).
            gradients = tuple(map(mx.zeros_like, primals))
        elif kernel.vjp is not None:
            every = kernel.vjp(spread(primals), cotangent, output, **bound)
            gradients = tuple(g for g, there in zip(every, present, strict=True) if there)
        else:
            cotangents = list(_as_tuple(cotangent))
            gradients = tuple(mx.vjp(fallback, list(primals), cotangents)[1])
        return gradients[0] if len(gradients) == 1 else gradients

    @call.jvp
    def _jvp(primals, tangents):
        primals = _as_tuple(primals)
        pairs = zip(primals, _as_tuple(tangents), strict=True)
        known = [mx.zeros_like(primal) if t is None else t for primal, t in pairs]
        results = mx.jvp(fallback, list(primals), known)[1]
        return results[0] if len(results) == 1 else tuple(results)

    @call.vmap
    def _vmap(arrays, axes):
        results = mx.vmap(fallback, in_axes=axes)(*_as_tuple(arrays))
        axes = (0,) * len(results) if isinstance(results, tuple) else 0
        return results, axes

    return call


def _as_tuple(values: Any) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, tuple | list) else (values,)
