"""The simulator's front doors: a kernel of anyone's, a recorded launch, our own kernels."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import mlx.core as mx

from .. import dispatch, spec
from ..recording import Recorded, record
from .execute import execute
from .result import Report, Result, SimulationError

Template = Sequence[tuple[str, int | bool | mx.Dtype]]


def simulate(
    kernel: Callable[..., Any] | str,
    *,
    inputs: Sequence[mx.array | bool | int | float],
    grid: tuple[int, int, int],
    threadgroup: tuple[int, int, int],
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[mx.Dtype],
    template: Template = (),
    init_value: float | None = None,
    name: str = "kernel",
    input_names: Sequence[str] = (),
    output_names: Sequence[str] = (),
    header: str = "",
    ensure_row_contiguous: bool = True,
    atomic_outputs: bool = False,
    mode: str = "checked",
    seed: int = 0,
    traffic: bool = False,
    include: Sequence[str | PathLike[str]] = (),
    function_constants: Mapping[int, int | bool] | None = None,
    syntax: bool = True,
    timeout: float = 120.0,
) -> Result:
    """Run a Metal kernel on this machine's CPU as `mx.fast.metal_kernel` would on a Mac's GPU.

    kernel: what `mx.fast.metal_kernel` returned, or the source of a body; then `input_names` and
        `output_names` are needed, and the arguments from `name` to `atomic_outputs` are those of
        `mx.fast.metal_kernel`. The others, up to `init_value`, are those of the call.
    mode: "checked" looks for faults, "fast" only computes.
    seed: 0 runs threadgroups, simdgroups and lanes in order; others permute them.
    traffic: count memory traffic, as slow as a checked run, which then leaves out arithmetic,
        alignment and private arrays.
    include: folders for `#include "..."`; function_constants: values by number. MLX's own kernels
        need both, ours neither.
    syntax: reject what Apple's compiler rejects, as `check_syntax`, before the run.
    timeout: seconds of wall time for the run.

    Faults of the kernel are in the result's `reports`. Raises CompileError for a source that does
    not compile, NoClang without a compiler, ValueError for arguments that do not fit.
    """
    if isinstance(kernel, str):
        made: Any = mx.fast.metal_kernel(
            name=name,
            input_names=list(input_names),
            output_names=list(output_names),
            source=kernel,
            header=header,
            ensure_row_contiguous=ensure_row_contiguous,
            atomic_outputs=atomic_outputs,
        )
    else:
        made = kernel
    arrays = [x if isinstance(x, mx.array) else mx.array(x) for x in inputs]
    recorded = recorded_call(
        made,
        arrays,
        template=list(template),
        grid=tuple(grid),
        threadgroup=tuple(threadgroup),
        output_shapes=[tuple(shape) for shape in output_shapes],
        output_dtypes=list(output_dtypes),
        init_value=init_value,
    )
    return execute(
        recorded,
        arrays,
        mode=mode,
        seed=seed,
        traffic=traffic,
        init_value=init_value,
        include=tuple(Path(folder) for folder in include),
        constants=function_constants,
        syntax=syntax,
        timeout=timeout,
    )


def recorded_call(kernel: Any, arrays: Sequence[mx.array], **call: Any) -> Recorded:
    """The launch that calling `kernel` with `arrays` as inputs would make."""
    (recorded,) = record(lambda *inputs: kernel(inputs=list(inputs), **call), *arrays)
    return recorded


def simulate_recorded(recorded: Recorded, inputs: Sequence[mx.array], **options: Any) -> Result:
    """Run a launch that `recording.record` recorded, on arrays of its shapes and dtypes.

    options: mode, seed, traffic, init_value, timeout as in `simulate`.
    """
    return execute(recorded, inputs, **options)


@dataclass
class Simulated:
    """What ran under `simulated`: a result for each launch, in order."""

    results: list[Result] = field(default_factory=list)

    @property
    def reports(self) -> list[Report]:
        return [report for result in self.results for report in result.reports]


@contextmanager
def simulated(
    mode: str = "checked", seed: int = 0, traffic: bool = False, strict: bool = True
) -> Iterator[Simulated]:
    """Our kernels called here, in this thread, run their Metal variants in the simulator.

    Launches run when the call is made, not lazily. `dispatch.use(softmax="metal:split")` inside
    picks a variant. strict: a launch with an error raises SimulationError.
    """
    collected = Simulated()

    def run(kernel: Any, inputs: Sequence[mx.array | int | float], **call: Any) -> list[mx.array]:
        result = simulate(kernel, inputs=inputs, mode=mode, seed=seed, traffic=traffic, **call)
        collected.results.append(result)
        if strict and result.errors:
            raise SimulationError(result)
        return list(result.outputs)

    with dispatch.use("metal"), spec.executing(run):
        yield collected
