"""Every case of every kernel there is, in the source that MLX generates for it.

Syntax: what Apple's compiler rejects. Checked: small cases, no report of either severity. Fast:
the other ones, in another order of lanes and threadgroups. Values against the float64 reference.
Each case runs in one dtype, by turns; `make test-full` runs all dtypes.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import pytest

from torchmlx.kernels import registry
from torchmlx.kernels.accuracy import bound, judge, to_numpy
from torchmlx.kernels.dispatch import use
from torchmlx.kernels.recording import record
from torchmlx.kernels.simulator import check_syntax, compiler, program, simulated
from torchmlx.kernels.simulator.report import LARGE, SMALL, work
from torchmlx.kernels.spec import FALLBACK

# Kernel -> what it may do outside the specification, and why; see the kernel's file.
EXPLAINED: dict[str, set[str]] = {}


def cases():
    """(kernel, case, dtype, whether it is this case's turn) for each with a Metal program."""
    for name in registry.names():
        kernel = registry.get(name)
        for i, case in enumerate(kernel.cases):
            dtypes = list(kernel.nmse)
            chosen = registry.chosen(kernel, case)
            served = [d for d in dtypes if chosen.get(d, FALLBACK) != FALLBACK]
            for j, dtype in enumerate(served):
                yield kernel, case, dtype, j == i % len(served)


def params(wanted):
    for kernel, case, dtype, turn in cases():
        if wanted(work(kernel, case, dtype)):
            brief = turn and work(kernel, case, dtype) <= LARGE
            marks = () if brief else pytest.mark.slow
            label = f"{kernel.name}-{case.label}-{dtype}"
            yield pytest.param(kernel, case, dtype, id=label, marks=marks)


CHECKED = list(params(lambda size: size <= SMALL))
FAST = list(params(lambda size: size > SMALL))


def recorded(kernel, case, dtype):
    with use("metal"):
        return record(lambda *a: kernel.function(*a, **case.keywords), *case.outline(dtype))


@pytest.fixture(scope="module", autouse=True)
def compiled(request, clang):
    """What the selected tests need, compiled on all cores before the first of them.

    Where several processes share the tests, each compiles what it runs: all cores work anyway.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    jobs = {}
    for item in request.session.items:
        picked = getattr(item, "callspec", None)
        if item.module is not request.module or picked is None or "kernel" not in picked.params:
            continue
        mode = "checked" if "checked" in item.function.__name__ else "fast"
        for launch in recorded(*(picked.params[name] for name in ("kernel", "case", "dtype"))):
            jobs[launch.source, mode] = (launch, mode)
    for mode in ("checked", "fast", "syntax"):
        compiler.prelude(mode)

    def build(job):
        launch, mode = job
        if not check_syntax(launch):
            compiler.compile_kernel(program.program(launch).cpp(), mode, launch.name)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build, jobs.values()))


def as_tuple(results):
    return tuple(results) if isinstance(results, tuple | list) else (results,)


def run(kernel, case, dtype, **options):
    """Values as in tests/kernels/test_kernel_values.py, and what the simulator saw."""
    arrays = case.make(dtype)
    want = as_tuple(kernel.reference(*map(to_numpy, arrays), **case.keywords))
    with simulated(strict=False, **options) as seen:
        got = as_tuple(kernel.function(*arrays, **case.keywords))
    assert seen.results
    unexplained = [r for r in seen.reports if r.kind not in EXPLAINED.get(kernel.name, ())]
    assert unexplained == [], [str(report) for report in unexplained]
    for result, expected in zip(got, want, strict=True):
        assert judge(result, expected, bound(kernel.nmse, result.dtype)).fault == ""


@pytest.mark.parametrize("kernel, case, dtype", CHECKED)
def test_checked(kernel, case, dtype):
    run(kernel, case, dtype, mode="checked")


@pytest.mark.parametrize("kernel, case, dtype", FAST)
def test_fast(kernel, case, dtype):
    run(kernel, case, dtype, mode="fast", seed=3)


@pytest.mark.parametrize("name", registry.names())
def test_syntax(name):
    """All dtypes of the first case of each variant, as the dtype changes what is converted."""
    sources = {}
    for kernel, case, dtype, _ in cases():
        variant = registry.chosen(kernel, case)[dtype]
        if kernel.name == name and (variant, dtype) not in sources:
            sources[variant, dtype] = recorded(kernel, case, dtype)
    for launches in sources.values():
        for launch in launches:
            assert check_syntax(launch) == (), launch.name


def test_results_are_what_mlx_returns():
    """Shapes and dtypes of simulated results, and the device they are usable on."""
    softmax = registry.get("softmax").function
    with simulated():
        y = softmax(mx.array([[0.0, 1.0]], mx.float16))
    assert (y.shape, y.dtype) == ((1, 2), mx.float16)
    assert mx.allclose(y.sum(), mx.array(1.0), atol=1e-3).item()
