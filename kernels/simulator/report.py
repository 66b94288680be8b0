"""Our kernels in the simulator as plain rows: right or wrong."""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx

from .. import registry
from ..accuracy import bound, judge, to_numpy
from ..kernel import Kernel
from ..spec import FALLBACK, Case
from .simulate import simulated

# Work of a case: bytes it must move or a quarter of its flops, whichever is more. A checked run
# does SMALL in about a second, a fast one LARGE in about ten.
SMALL, LARGE = 400_000, 12_000_000


def work(kernel: Kernel, case: Case, dtype: str) -> float:
    """How long a case takes in the simulator, as a number to compare with SMALL and LARGE."""
    cost = kernel.cost(*case.outline(dtype), **case.keywords)
    return max(cost.bytes, cost.flops / 4)


def cases(names: Sequence[str] = ()) -> Iterator[tuple[Kernel, Case, str, str]]:
    """(kernel, case, dtype, variant) of each case with a Metal program, in one dtype by turns.

    names: of the kernels, all if empty; KeyError for an unknown one.
    """
    for kernel in [registry.get(name) for name in names or registry.names()]:
        for i, case in enumerate(kernel.cases):
            chosen = registry.chosen(kernel, case)
            served = [dtype for dtype in kernel.nmse if chosen.get(dtype, FALLBACK) != FALLBACK]
            if served:
                dtype = served[i % len(served)]
                yield kernel, case, dtype, chosen[dtype]


def check(kernel: Kernel, case: Case, dtype: str, seed: int = 0) -> dict[str, Any]:
    """Run a case, checked if it is small and fast otherwise, and compare with the reference.

    {"kernel", "case", "dtype", "mode", "fault": "" or what is wrong, "nmse", "limit", "worst":
    of the worst result, "reports": the simulator's, "seconds": of the launches}.
    """
    mode = "checked" if work(kernel, case, dtype) <= SMALL else "fast"
    arrays = case.make(dtype)
    with simulated(mode=mode, seed=seed, strict=False) as seen:
        results = as_tuple(kernel.function(*arrays, **case.keywords))
    return {
        "kernel": kernel.name,
        "case": case.label,
        "dtype": dtype,
        "mode": mode,
        **verdict(kernel, case, arrays, results),
        "reports": [str(report) for report in seen.reports],
        "seconds": sum(result.seconds for result in seen.results),
    }


def verdict(
    kernel: Kernel, case: Case, arrays: Sequence[mx.array | None], results: Sequence[mx.array]
) -> dict[str, Any]:
    """{"fault", "nmse", "limit", "worst"}, of the first faulty result or the one of most error."""
    wanted = as_tuple(kernel.reference(*map(to_numpy, arrays), **case.keywords))
    pairs = zip(results, wanted, strict=True)
    judged = [judge(got, want, bound(kernel.nmse, got.dtype)) for got, want in pairs]
    worst = max(judged, key=lambda one: (bool(one.fault), one.nmse))
    return {
        "fault": worst.fault,
        "nmse": worst.nmse,
        "limit": worst.limit,
        "worst": worst.worst,
    }


def as_tuple(results: Any) -> tuple[Any, ...]:
    """One or several results as a tuple."""
    return tuple(results) if isinstance(results, tuple | list) else (results,)
