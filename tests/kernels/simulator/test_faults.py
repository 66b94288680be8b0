"""Planted faults, each found with its line, severity and variable; the sound kernels show none."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest

from torchmlx.kernels.simulator import ERROR, SPECIFICATION, compiler

# A softmax over rows of x, one threadgroup of 256 threads a row, as many published ones are.
SOFTMAX = """
    uint row = threadgroup_position_in_grid.x;
    uint thread_index = thread_index_in_threadgroup;
    uint lane = thread_index_in_simdgroup;
    uint group = simdgroup_index_in_threadgroup;
    uint n = x_shape[1];
    threadgroup float shared[32];
    const device float* in = x + row * n;
    float m = -INFINITY;
    for (uint i = thread_index; i < n; i += 256) {
        m = metal::max(m, in[i]);
    }
    m = simd_max(m);
    if (lane == 0) {
        shared[group] = m;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // first
    m = lane < 8 ? shared[lane] : -INFINITY;
    m = simd_max(m);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // second
    float sum = 0.0f;
    for (uint i = thread_index; i < n; i += 256) {
        sum += metal::exp(in[i] - m);
    }
    sum = simd_sum(sum);
    if (lane == 0) {
        shared[group] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // third
    sum = simd_sum(lane < 8 ? shared[lane] : 0.0f);
    for (uint i = thread_index; i < n; i += 256) {
        y[row * n + i] = metal::exp(in[i] - m) / sum;
    }
"""
FIRST, SECOND, THIRD = (
    f"threadgroup_barrier(mem_flags::mem_threadgroup);  // {name}"
    for name in ("first", "second", "third")
)
READ_MAX = "m = lane < 8 ? shared[lane] : -INFINITY;"
WRITE_SUM = "shared[group] = sum;"
READ_SUM = "sum = simd_sum(lane < 8 ? shared[lane] : 0.0f);"
STORE = "y[row * n + i] = metal::exp(in[i] - m) / sum;"
FIND_MAX = "m = metal::max(m, in[i]);"
INDEX = "uint i = thread_position_in_grid.x;\n"


@dataclass(frozen=True)
class Fault:
    """A kernel, and the report that it must give; `at` is text of the report's line."""

    name: str
    source: str
    kind: str
    at: str
    severity: str = ERROR
    variable: str = ""
    shape: tuple[int, ...] | None = None
    init_value: float | None = None
    grid: tuple[int, int, int] | None = None


def mutated(name, old, new, kind, at, severity=ERROR, variable=""):
    assert old in SOFTMAX
    return Fault(name, SOFTMAX.replace(old, new, 1), kind, at, severity, variable)


def small(name, source, kind, at, severity=ERROR, variable="", shape=(1024,), **more):
    return Fault(name, INDEX + source, kind, at, severity, variable, shape=shape, **more)


SHARED = "threadgroup float s[256];\ns[thread_index_in_threadgroup] = x[i];\n"
MOVED = SHARED + "threadgroup_barrier(mem_flags::mem_threadgroup);\n"

FAULTS = [
    mutated("no barrier before a read", FIRST, "", "race", READ_MAX, variable="shared"),
    mutated("no barrier before the last read", THIRD, "", "race", READ_SUM, variable="shared"),
    small("no barrier, reversed", SHARED + "y[i] = s[255 - thread_index_in_threadgroup];",
          "race", "y[i]", variable="s"),
    mutated("no barrier before a write", SECOND, "", "race", WRITE_SUM, variable="shared"),
    small("no barrier in a loop", "threadgroup float s[2];\nfor (int k = 0; k < 3; k++) {\n"
          "if (i % 256 == 40) s[0] = x[k];\nthreadgroup_barrier(mem_flags::mem_threadgroup);\n"
          "y[i] = s[0];\n}", "race", "s[0] = x[k];", variable="s"),
    mutated("barrier of a simdgroup", FIRST, FIRST.replace("thread", "simd", 1), "race", READ_MAX,
            variable="shared"),
    mutated("barrier of a simdgroup, last", THIRD, THIRD.replace("thread", "simd", 1), "race",
            READ_SUM, variable="shared"),
    mutated("barrier without memory", FIRST, "threadgroup_barrier(mem_flags::mem_none);", "race",
            READ_MAX, severity=SPECIFICATION, variable="shared"),
    mutated("barrier for device memory", FIRST, "threadgroup_barrier(mem_flags::mem_device);",
            "race", READ_MAX, severity=SPECIFICATION, variable="shared"),
    mutated("read past the end", "i < n; i += 256) {\n        m =",
            "i <= n; i += 256) {\n        m =", "bounds", FIND_MAX, variable="x"),
    small("read before the start", "y[i] = x[int(i) - 1];", "bounds", "x[int", variable="x"),
    small("read far away", "y[i] = x[i + 100000000];", "bounds", "x[i +", variable="x"),
    mutated("write past the end", "i < n; i += 256) {\n        y",
            "i <= n; i += 256) {\n        y", "bounds", STORE, variable="y"),
    small("write before the start", "y[i] = 0;\nif (i == 3) y[int(i) - 4] = 1;", "bounds",
          "if (i == 3)", variable="y"),
    mutated("unwritten slots read", READ_MAX, "m = shared[lane];", "uninitialised",
            "m = shared[lane];", variable="shared"),
    small("output read first", "y[i] += x[i];", "uninitialised", "y[i] +=", variable="y"),
    mutated("barrier in a branch of lanes", FIRST, "if (lane < 16) " + FIRST, "barrier", "first"),
    mutated("barrier in a branch of simdgroups", SECOND, "if (group < 4) " + SECOND, "barrier",
            "second"),
    small("barriers in both branches", "y[i] = 0;\nif (i % 64 < 32) "
          "threadgroup_barrier(mem_flags::mem_device);\nelse y[i] = 1, "
          "threadgroup_barrier(mem_flags::mem_device);", "barrier", "threadgroup_barrier"),
    mutated("return before a barrier", "uint n =",
            "if (thread_index > 200) return;\n    uint n =", "barrier", "first",
            severity=SPECIFICATION),
    small("whole simdgroup returns", "if (i % 256 < 32) { y[i] = 0; return; }\n"
          "threadgroup_barrier(mem_flags::mem_threadgroup);\ny[i] = x[i];", "barrier",
          "threadgroup_barrier", severity=SPECIFICATION),
    mutated("reduction in a branch", "m = simd_max(m);", "if (lane < 16) m = simd_max(m);",
            "divergence", "if (lane < 16)", severity=SPECIFICATION),
    small("shuffle from an idle lane", "float v = x[i];\nif (thread_index_in_simdgroup < 16)\n"
          "v = simd_shuffle(v, 20);\ny[i] = v;", "undefined-lane", "simd_shuffle",
          severity=SPECIFICATION),
    small("matrix product in a branch", "simdgroup_matrix<float, 8, 8> a(1.0f), b(2.0f);\n"
          "if (thread_index_in_simdgroup != 3)\nsimdgroup_multiply(a, b, b);\n"
          "y[i] = a.thread_elements()[0];", "divergence", "simdgroup_multiply"),
    mutated("threadgroup array too short", "float shared[32]", "float shared[4]", "bounds",
            "shared[group] = m;"),
    small("threadgroup pointer too far", "threadgroup float s[8];\nthreadgroup float* p = s + 1;\n"
          "if (i % 256 == 0) p[7] = 1;\ny[i] = 0;", "bounds", "p[7]", variable="s"),
    small("private array too short", "float v[4];\nfor (uint k = 0; k <= 4 + i % 2; k++)\n"
          "v[k % 4] = k;\ny[i] = v[i % 5];", "bounds", "v[i % 5]"),
    small("private row too short", "float v[2][3];\nv[0][0] = v[1][0] = 1;\ny[i] = v[i % 3][0];",
          "bounds", "v[i % 3]"),
    small("outputs left out", "if (i % 10) y[i] = x[i];", "unwritten", "", variable="y"),
    small("tail left out", "if (i < 1000) y[i] = x[i];", "unwritten", "", variable="y"),
    small("threadgroups add to one", "y[0] += x[i];", "race", "y[0] +=", variable="y", shape=(1,),
          init_value=0, grid=(1024, 1, 1)),
    small("threadgroups share an edge", "y[i] = x[i];\nif (i % 256 == 255 && i < 1000) "
          "y[i + 1] = 2;", "race", "y[i] = x[i];", variable="y"),
    small("simdgroups add to one", "if (i < 64) y[0] += x[i];", "race", "y[0] +=", variable="y",
          shape=(1,), init_value=0, grid=(64, 1, 1)),
    small("lanes exchange without a barrier", "threadgroup float s[32];\n"
          "uint lane = thread_index_in_simdgroup;\ns[lane] = x[i];\ny[i] = s[31 - lane];",
          "race", "y[i] =", severity=SPECIFICATION, variable="s", shape=(32,)),
    small("write to an input", "((device float*)x)[i] = 1;\ny[i] = 0;", "read-only",
          "device float*", variable="x"),
    small("33 KiB of threadgroup memory", "threadgroup float big[9000];\n"
          "big[thread_index_in_threadgroup] = 1;\ny[i] = big[thread_index_in_threadgroup];",
          "threadgroup-memory", "", variable="big"),
    small("33 KiB in two variables", "threadgroup float p[8000], q[500];\n"
          "p[i % 256] = 1; q[i % 256] = 2;\ny[i] = p[i % 256] + q[i % 256];",
          "threadgroup-memory", "", variable="q"),
    small("misaligned vector read", "y[i] = (*(const device float4*)(x + i % 512)).x;",
          "misaligned", "y[i] =", severity=SPECIFICATION),
    small("misaligned vector write", "y[i] = 0;\nif (i == 0)\n((device float2*)(y + 1))[i] = 2;",
          "misaligned", "float2*", severity=SPECIFICATION),
    small("shift by the width", "y[i] = float(1u << (i % 33));", "arithmetic", "y[i]",
          severity=SPECIFICATION),
    small("signed overflow", "int k = int(i) * 4000000;\ny[i] = k;", "arithmetic", "int k",
          severity=SPECIFICATION),
    small("variable not set", "float s;\nif (i > 5) s = x[i];\ny[i] = s;", "uninitialised",
          "y[i]", variable="y"),
    small("integer not set", "int k;\nif (i > 5) k = 1;\ny[i] = k;", "uninitialised", "if (i > 5)",
          severity=SPECIFICATION),
    small("maximum not set", "float m;\nfor (uint k = 0; k < 4; k++) m = metal::max(m, x[k]);\n"
          "y[i] = m;", "uninitialised", "metal::max", severity=SPECIFICATION),
    small("lanes disagree on a broadcast", "y[i] = simd_broadcast(x[i], ushort(i % 32 / 2));",
          "undefined-lane", "simd_broadcast", severity=SPECIFICATION),
    small("threadgroup atomic not set", "threadgroup atomic_int n;\n"
          "atomic_fetch_add_explicit(&n, 1, memory_order_relaxed);\n"
          "threadgroup_barrier(mem_flags::mem_threadgroup);\n"
          "y[i] = atomic_load_explicit(&n, memory_order_relaxed);", "uninitialised", "fetch_add",
          variable="n"),
    small("plain read of a counter", "device atomic_uint* n = (device atomic_uint*)y;\n"
          "atomic_fetch_add_explicit(n, 1u, memory_order_relaxed);\nif (i == 1023) y[1] = y[0];",
          "race", "if (i == 1023)", variable="y", init_value=0),
    small("private array not set", "float v[4];\nv[0] = x[i];\ny[i] = v[1 + (i & 1)];",
          "uninitialised", "y[i]", variable="y"),
    small("matrix not set", "simdgroup_float8x8 a, b(1.0f), c(0.0f);\n"
          "simdgroup_multiply_accumulate(c, a, b, c);\ny[i] = c.thread_elements()[0];",
          "uninitialised", "y[i]", variable="y"),
    small("private pointer too far", "float v[4] = {1, 2, 3, 4};\nthread float* p = v;\n"
          "for (uint k = 0; k < 4 + i % 2; k++) p[k] += x[i];\ny[i] = v[0];", "bounds", "p[k]"),
    small("component of a vector", "float4 v = float4(x[i]);\ny[i] = v[i % 5];", "bounds", "y[i]"),
    small("division by zero", "y[i] = float(5 / int(i % 3));", "arithmetic", "y[i]",
          severity=SPECIFICATION),
]  # fmt: skip


@pytest.fixture(scope="module")
def x():
    rng = np.random.default_rng(0)
    return mx.array(rng.standard_normal((4, 1000), np.float32))


def launch(run, fault, x, **options):
    if fault.shape is None:
        return run(fault.source, x, grid=(4 * 256, 1, 1), **options)
    values = x.reshape(-1)[:1024]
    return run(
        fault.source,
        values,
        shape=fault.shape,
        grid=fault.grid,
        init_value=fault.init_value,
        **options,
    )


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_planted_fault_is_found(run, x, fault):
    reports = launch(run, fault, x).reports
    assert fault.kind in [report.kind for report in reports], [str(r) for r in reports]
    lines = fault.source.split("\n")
    wanted = [n for n, text in enumerate(lines, 1) if fault.at and fault.at in text]
    matching = [r for r in reports if r.kind == fault.kind and r.severity == fault.severity]
    assert matching, [str(r) for r in reports]
    if fault.at:
        places = {f"source line {n}" for n in wanted}
        assert any(r.place in places and r.text for r in matching), [str(r) for r in reports]
        seen = [r for r in matching if "uninitialized" not in r.message]
        assert all(r.threadgroup is not None and r.thread is not None for r in seen)
    assert fault.variable in {r.variable for r in matching} or not fault.variable


def test_sound_kernel_gives_no_report(run, x):
    for seed in range(4):
        result = run(SOFTMAX, x, grid=(4 * 256, 1, 1), seed=seed)
        assert result.reports == ()
        np.testing.assert_allclose(result.outputs[0], mx.softmax(x, axis=1), rtol=2e-6)


def test_other_machines_switch_threads_by_the_system(run, x, monkeypatch):
    """As on arm64: same values, same reports."""
    monkeypatch.setenv("TORCHMLX_SIMULATOR_FIBERS", "ucontext")
    compiler.runner.cache_clear()
    try:
        assert compiler.runner().name == "runner-ucontext"
        result = run(SOFTMAX, x, grid=(4 * 256, 1, 1), seed=1)
        assert result.reports == ()
        np.testing.assert_allclose(result.outputs[0], mx.softmax(x, axis=1), rtol=2e-6)
        faulty = run(SOFTMAX.replace(FIRST, ""), x, grid=(4 * 256, 1, 1))
    finally:
        compiler.runner.cache_clear()
    assert {report.kind for report in faulty.errors} == {"race", "uninitialised"}


def test_a_race_names_both_places(run, x):
    errors = run(SOFTMAX.replace(FIRST, ""), x, grid=(1024, 1, 1)).errors
    report = next(r for r in errors if r.text == READ_MAX and r.kind == "race")
    assert (report.variable, report.simdgroup, report.lane) == ("shared", 1, 0)
    assert report.other_place == "source line 15"
    assert "read is not ordered after a write by thread 0 in another simdgroup" in report.message
    assert report.threadgroup == (0, 0, 0)


def test_barriers_that_order_give_no_report(run):
    """Each needs its own barrier, and no more."""
    x = mx.arange(256).astype(mx.float32)
    simdgroup = (
        INDEX + "threadgroup float s[256];\ns[i] = x[i];\n"
        "simdgroup_barrier(mem_flags::mem_threadgroup);\ny[i] = s[i ^ 1];\n"
        "simdgroup_barrier(mem_flags::mem_threadgroup);\ns[i ^ 2] = 0;"
    )
    device = (
        INDEX + "y[i] = x[i];\nthreadgroup_barrier(mem_flags::mem_device);\n"
        "float v = y[255 - i];\nthreadgroup_barrier(mem_flags::mem_device);\ny[i] = v;"
    )
    assert run(simdgroup, x).reports == ()
    assert run(device, x).reports == ()
    weaker = run(device.replace("mem_device", "mem_threadgroup"), x)
    assert {(r.kind, r.severity) for r in weaker.reports} == {("race", SPECIFICATION)}


def test_atomics_are_no_race(run):
    x = mx.ones((1024,))
    source = INDEX + "atomic_fetch_add_explicit(&y[0], x[i], memory_order_relaxed);"
    result = run(source, x, shape=(1,), grid=(1024, 1, 1), init_value=0, atomic_outputs=True)
    assert (result.reports, result.outputs[0].item()) == ((), 1024.0)
    mixed = source.replace("atomic_fetch_add", "if (i == 704) y[0].value = 3;\natomic_fetch_add")
    found = run(mixed, x, shape=(1,), grid=(1024, 1, 1), init_value=0, atomic_outputs=True)
    assert {report.kind for report in found.errors} == {"race"}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fast_mode_stops_at_guard_pages(run, seed):
    """Seeds are even or odd: buffers end or start at a page that faults."""
    x = mx.zeros((1024,))
    past, before = INDEX + "y[i] = x[i + 4 * (i == 1023)];", INDEX + "y[i] = x[int(i) - 8];"
    result = run(before if seed % 2 else past, x, mode="fast", seed=seed)
    (report,) = result.errors
    assert (report.kind, report.variable, report.place) == ("bounds", "x", "source line 2")
    assert not result.completed


def test_fast_mode_poisons_what_nobody_wrote(run):
    result = run(INDEX + "if (i) y[i] = x[i];", mx.ones((300,)), mode="fast")
    assert np.isnan(result.outputs[0]).tolist() == [True] + 299 * [False]


def test_orders_show_what_depends_on_them(run, x):
    """A race gives other values in other orders, in fast mode; a sound kernel does not."""
    racy = SOFTMAX.replace(FIRST, "")
    outputs = [run(racy, x, grid=(1024, 1, 1), mode="fast", seed=s).outputs[0] for s in range(6)]
    assert not all(mx.array_equal(outputs[0], other).item() for other in outputs[1:])
    outputs = [run(SOFTMAX, x, grid=(1024, 1, 1), mode="fast", seed=s).outputs[0] for s in range(6)]
    assert all(mx.array_equal(outputs[0], other).item() for other in outputs[1:])


def test_an_endless_loop_is_reported(run):
    result = run("while (x[0] < 1) { }\ny[0] = 0;", mx.zeros((8,)), mode="fast", timeout=1)
    (report,) = result.errors
    assert (report.kind, result.completed) == ("timeout", False)
