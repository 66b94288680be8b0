"""A fault planted into any of our kernels is found: by a report, or by wrong values."""

import re
from dataclasses import replace
from importlib import import_module

import pytest

from torchmlx.kernels import registry
from torchmlx.kernels.recording import Recorded
from torchmlx.kernels.simulator import report

# The package offers a function of the same name.
module = import_module("torchmlx.kernels.simulator.simulate")
recorded_call = module.recorded_call

BARRIER = re.compile(r"(?:metal::)?threadgroup_barrier\([^;]*\);")
# Kernels whose mutants `make test` runs; the others wait for `make test-full`.
DEFAULT = {"softmax", "gemv", "rms_norm", "swiglu", "router", "rope"}


def without_barriers(launch: Recorded) -> Recorded:
    return replace(launch, source=BARRIER.sub("", launch.source))


def shifted(launch: Recorded) -> Recorded:
    """The first store to an output goes one element too far."""
    outputs = [p.rsplit(" ", 1)[1] for p in launch.parameters if p.startswith("device ")]
    store = re.compile(rf"\b({'|'.join(outputs)})\[(.+?)\] = ")
    return replace(launch, source=store.sub(r"\1[(\2) + 1] = ", launch.source, count=1))


def without_tail(launch: Recorded) -> Recorded:
    """The last threadgroup of the longest axis does not run."""
    groups = [-(-g // t) for g, t in zip(launch.grid, launch.threadgroup, strict=True)]
    axis = groups.index(max(groups))
    if groups[axis] == 1:
        return launch
    grid = list(launch.grid)
    grid[axis] = (groups[axis] - 1) * launch.threadgroup[axis]
    return replace(launch, grid=tuple(grid))


MUTATIONS = {"barriers": without_barriers, "shift": shifted, "tail": without_tail}


def small_cases(kernel):
    """Cases that a checked run does quickly, none of them with special values."""
    for _, case, dtype, _ in report.cases([kernel]):
        plain = all(spec is None or spec.fill != "specials" for spec in case.arrays.values())
        if plain and 2_000 < report.work(registry.get(kernel), case, dtype) < 200_000:
            yield case, dtype


def params():
    for name in registry.names():
        for mutation in MUTATIONS:
            marks = () if name in DEFAULT else pytest.mark.slow
            yield pytest.param(name, mutation, id=f"{name}-{mutation}", marks=marks)


@pytest.mark.parametrize("name, mutation", list(params()))
def test_a_mutant_is_found(monkeypatch, name, mutation):
    kernel, changed = registry.get(name), []

    def mutated(*arguments, **call):
        launch = recorded_call(*arguments, **call)
        mutant = MUTATIONS[mutation](launch)
        changed.append(mutant != launch)
        return mutant

    monkeypatch.setattr(module, "recorded_call", mutated)
    for case, dtype in small_cases(name):
        row = report.check(kernel, case, dtype)
        if any(changed) and (row["fault"] or row["reports"]):
            return
    assert not any(changed), "no case shows it"
