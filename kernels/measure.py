"""Our kernels on this machine's own device as plain rows: right or wrong, and how fast."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from statistics import median
from typing import Any

import mlx.core as mx

from . import registry
from .dispatch import trace
from .kernel import Kernel
from .simulator.report import as_tuple, verdict
from .spec import Case

REPEATS = 9


@lru_cache
def copy_bandwidth() -> float:
    """Bytes a second that this device reads and writes in copying an array of 64 MiB."""
    x = mx.zeros((16 << 20,), mx.float32)
    return 2 * x.nbytes / seconds(lambda: x + 1.0)


def seconds(call: Callable[[], Any]) -> float:
    """Median seconds of `call` and the evaluation of what it returns, after a first one."""
    mx.eval(call())
    took = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        mx.eval(call())
        took.append(time.perf_counter() - began)
    return median(took)


def cases(names: Sequence[str] = ()) -> Iterator[tuple[Kernel, Case, str]]:
    """(kernel, case, dtype) of every case, each in one of its kernel's dtypes by turns.

    names: of the kernels, all if empty; KeyError for an unknown one.
    """
    for kernel in [registry.get(name) for name in names or registry.names()]:
        dtypes = list(kernel.nmse)
        for i, case in enumerate(kernel.cases):
            yield kernel, case, dtypes[i % len(dtypes)]


def check(kernel: Kernel, case: Case, dtype: str) -> dict[str, Any]:
    """Run a case on the device, compare it with the float64 reference, and time it.

    {"kernel", "case", "dtype", "backend", "variant": what served it, "fault": "" or what is
    wrong, "nmse", "limit", "worst", "seconds", "bandwidth": bytes that the call must move in a
    second, "of_copy": the same over `copy_bandwidth`}.
    """
    arrays = case.make(dtype)
    mx.eval([array for array in arrays if array is not None])
    with trace() as calls:
        results = as_tuple(kernel.function(*arrays, **case.keywords))
    mx.eval(results)
    took = seconds(lambda: kernel.function(*arrays, **case.keywords))
    bandwidth = kernel.cost(*arrays, **case.keywords).bytes / took
    return {
        "kernel": kernel.name,
        "case": case.label,
        "dtype": dtype,
        "backend": calls[0].backend if calls else "",
        "variant": calls[0].variant if calls else "",
        **verdict(kernel, case, arrays, results),
        "seconds": took,
        "bandwidth": bandwidth,
        "of_copy": bandwidth / copy_bandwidth(),
    }
