"""A fault planted into any of our kernels is found: by a report, or by wrong values."""

import re
from dataclasses import replace
from functools import partial
from importlib import import_module

import pytest

from torchmlx.kernels import registry
from torchmlx.kernels.recording import Recorded
from torchmlx.kernels.simulator import report

# The package offers a function of the same name.
module = import_module("torchmlx.kernels.simulator.simulate")
recorded_call = module.recorded_call

BARRIER = re.compile(r"(?:metal::)?threadgroup_barrier\([^;]*\);")

# Kernel -> its barriers, by number, each of which is needed in a small case. Not among them: those
# of moe_decode (0) and grouped_matmul (3) that wait before a second chunk of K, as only large
# cases have.
BARRIERS = {
    "softmax": (0, 1),
    "log_softmax": (0, 1),
    "rms_norm": (0,),
    "moe_decode": (1,),
    "fp8_matmul": (0, 1, 2),
    "grouped_matmul": (0, 1, 2, 4, 5),
}
# Kernels whose other mutants `make test` runs, and whose barriers; the rest waits for
# `make test-full`.
DEFAULT = {"softmax", "gemv", "rms_norm", "swiglu", "router", "rope"}
DEFAULT_BARRIERS = {"softmax", "log_softmax", "rms_norm", "moe_decode", "fp8_matmul"}


def without_barrier(launch: Recorded, number: int) -> Recorded:
    found = list(BARRIER.finditer(launch.source))
    if number >= len(found):
        return launch
    first, last = found[number].span()
    return replace(launch, source=launch.source[:first] + launch.source[last:])


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


def small_cases(kernel):
    """Cases that a checked run does quickly, smallest first, none of them with special values."""
    found = []
    for _, case, dtype, _ in report.cases([kernel]):
        plain = all(spec is None or spec.fill != "specials" for spec in case.arrays.values())
        size = report.work(registry.get(kernel), case, dtype)
        if plain and 2_000 < size < 200_000:
            found.append((size, case, dtype))
    return [(case, dtype) for _, case, dtype in sorted(found, key=lambda one: one[0])]


def params():
    def one(name, mutation, label, brief):
        marks = () if brief else pytest.mark.slow
        return pytest.param(name, mutation, id=f"{name}-{label}", marks=marks)

    for name in registry.names():
        if registry.get(name).metal is None or not small_cases(name):
            continue
        for mutation in (shifted, without_tail):
            yield one(name, mutation, mutation.__name__, name in DEFAULT)
        for number in BARRIERS.get(name, ()):
            drop = partial(without_barrier, number=number)
            yield one(name, drop, f"without_barrier_{number}", name in DEFAULT_BARRIERS)


@pytest.mark.parametrize("name, mutation", list(params()))
def test_a_mutant_is_found(monkeypatch, name, mutation):
    """In the first small case that has what is mutated, or in one of those after it."""
    kernel, changed = registry.get(name), []

    def mutated(*arguments, **call):
        launch = recorded_call(*arguments, **call)
        mutant = mutation(launch)
        changed.append(mutant != launch)
        return mutant

    monkeypatch.setattr(module, "recorded_call", mutated)
    for case, dtype in small_cases(name):
        row = report.check(kernel, case, dtype)
        if any(changed) and (row["fault"] or row["reports"]):
            return
    assert any(changed), "no case has what is mutated"
    pytest.fail("no case shows it")
