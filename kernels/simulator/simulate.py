"""The simulator's front doors: a kernel of anyone's, a recorded launch, our own kernels."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Unpack

import mlx.core as mx

from .. import dispatch, spec
from ..recording import Recorded, record
from .execute import Options, execute
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
    **options: Unpack[Options],
) -> Result:
    """Run a Metal kernel on this machine's CPU as `mx.fast.metal_kernel` would on a Mac's GPU.

    kernel: what `mx.fast.metal_kernel` returned, or the source of a body; then `input_names` and
        `output_names` are needed, and the arguments from `name` to `atomic_outputs` are those of
        `mx.fast.metal_kernel`. The others, up to `init_value`, are those of the call.
    options: how to run it, see `Options`.

    Faults of the kernel are in the result's `reports`. Raises CompileError for a source that does
    not compile, NoClang without a compiler, ValueError for arguments that do not fit.
    """
    made: Any = kernel
    if isinstance(kernel, str):
        made = mx.fast.metal_kernel(
            *(name, list(input_names), list(output_names), kernel),
            header=header,
            ensure_row_contiguous=ensure_row_contiguous,
            atomic_outputs=atomic_outputs,
        )
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
    return execute(recorded, arrays, init_value=init_value, **options)


def recorded_call(kernel: Any, arrays: Sequence[mx.array], **call: Any) -> Recorded:
    """The launch that calling `kernel` with `arrays` as inputs would make."""
    (recorded,) = record(lambda *inputs: kernel(inputs=list(inputs), **call), *arrays)
    return recorded


def simulate_recorded(
    recorded: Recorded,
    inputs: Sequence[mx.array],
    init_value: float | None = None,
    **options: Unpack[Options],
) -> Result:
    """Run a launch that `recording.record` recorded, on arrays of its shapes and dtypes."""
    return execute(recorded, inputs, init_value=init_value, **options)


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
