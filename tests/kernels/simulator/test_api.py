"""`simulate`, `simulated` and what they refuse."""

import re
from dataclasses import replace
from importlib import import_module

import mlx.core as mx
import numpy as np
import pytest

from torchmlx.kernels.dispatch import trace, use
from torchmlx.kernels.gemv import linear
from torchmlx.kernels.recording import record
from torchmlx.kernels.simulator import (
    NoClang,
    SimulationError,
    compiler,
    simulate,
    simulate_recorded,
    simulated,
)
from torchmlx.kernels.softmax import softmax

# The package offers a function of the same name.
module = import_module("torchmlx.kernels.simulator.simulate")

COPY = "uint i = thread_position_in_grid.x; y[i] = x[i];"
CALL = {
    "grid": (16, 1, 1),
    "threadgroup": (16, 1, 1),
    "output_shapes": [(16,)],
    "output_dtypes": [mx.float32],
}


def test_a_kernel_that_metal_kernel_made():
    """With template arguments, a header, scalars, a 0-d input and shapes."""
    kernel = mx.fast.metal_kernel(
        name="scaled",
        input_names=["x", "scale", "shift"],
        output_names=["y", "n"],
        header="template <typename T> T twice(T x) { return x + x; }",
        source="uint i = thread_position_in_grid.x;\n"
        "y[i] = twice(T(x[i])) * scale + shift + K;\nif (i == 0) n[0] = x_shape[1] + x_ndim;",
    )
    x = mx.arange(16).reshape(2, 8).astype(mx.float32)
    result = simulate(
        kernel,
        inputs=[x, 0.5, mx.array(3.0)],
        template=[("T", mx.float16), ("K", 4)],
        grid=(16, 1, 1),
        threadgroup=(32, 1, 1),
        output_shapes=[(2, 8), (1,)],
        output_dtypes=[mx.float32, mx.int32],
    )
    assert result.reports == ()
    np.testing.assert_array_equal(result.outputs[0], np.arange(16).reshape(2, 8) + 7)
    assert result.outputs[1].item() == 10


def test_layouts_and_empty_arrays(run):
    x = mx.arange(40).astype(mx.float32).reshape(5, 8)
    for view in (x.T, x[:, ::2], mx.broadcast_to(x[0], (3, 8))):
        result = run(COPY, view)
        assert mx.array_equal(result.outputs[0], view).item()
    strided = run(
        "uint i = thread_position_in_grid.x;\n"
        "y[i] = x[elem_to_loc(i, x_shape, x_strides, x_ndim)];",
        x.T,
        ensure_row_contiguous=False,
    )
    assert (strided.reports, mx.array_equal(strided.outputs[0], x.T).item()) == ((), True)
    empty = run("y[thread_position_in_grid.x] = a_shape[0];", mx.zeros((8,)), mx.zeros((0, 3)))
    assert empty.outputs[0].tolist() == 8 * [0]


def test_init_value_and_atomics(run):
    source = (
        "atomic_fetch_max_explicit(&y[0], int(x[thread_position_in_grid.x]), memory_order_relaxed);"
    )
    result = run(source, mx.arange(100), shape=(1,), dtype=mx.int32, grid=(100, 1, 1),
                 init_value=-5, atomic_outputs=True)  # fmt: skip
    assert (result.outputs[0].item(), result.reports) == (99, ())


def test_counts(run):
    source = (
        "uint i = thread_position_in_grid.x;\nthreadgroup float s[64];\ns[i % 64] = x[i];\n"
        "threadgroup_barrier(mem_flags::mem_threadgroup);\ny[i] = simd_sum(s[i % 64]);"
    )
    result = run(source, mx.ones((256,)), threadgroup=(64, 1, 1))
    assert (result.threads, result.threadgroups, result.threadgroup_bytes) == (256, 4, 256)
    assert (result.barriers, result.simdgroup_functions) == (4, 8)
    assert result.outputs[0].tolist() == 256 * [32.0]


def test_a_recorded_launch():
    x = mx.random.normal((3, 40))
    with use("metal"):
        (recorded,) = record(softmax, x)
    result = simulate_recorded(recorded, [x], mode="fast", seed=1)
    np.testing.assert_allclose(result.outputs[0], mx.softmax(x, axis=1), rtol=1e-6)
    with pytest.raises(ValueError, match="was recorded for"):
        simulate_recorded(recorded, [x[:2]])


def test_our_kernels_in_a_block():
    """Several launches, in order; a variant can be picked; the block ends."""
    x = mx.random.normal((2, 3000))
    with simulated() as seen, trace() as calls:
        y = softmax(x)
        with use(softmax="metal:looped"):
            z = softmax(x)
        out = linear(x, x)
    names = [result.name.split("__")[0] for result in seen.results]
    assert names == [f"custom_kernel_{name}" for name in
                     ("softmax_partial", "softmax_finalize", "softmax_looped", "gemv")]  # fmt: skip
    assert [call.variant for call in calls] == ["split", "looped", "1x16"]
    for got in (y, z):
        np.testing.assert_allclose(got, mx.softmax(x, axis=1), rtol=1e-5)
    np.testing.assert_allclose(out, x @ x.T, rtol=1e-4, atol=1e-3)
    with trace() as calls:
        softmax(x)
    assert calls[0].backend != "metal"


def test_a_fault_in_a_block_raises(monkeypatch):
    recorded_call = module.recorded_call

    def shifted(*arguments, **call):
        recorded = recorded_call(*arguments, **call)
        source = recorded.source.replace("out[start + c] =", "out[start + c + 1] =")
        assert source != recorded.source
        return replace(recorded, source=source)

    monkeypatch.setattr(module, "recorded_call", shifted)
    x = mx.zeros((3, 41))
    message = r"error: bounds at source line \d+.*'out'"
    with pytest.raises(SimulationError, match=message) as raised, simulated():
        softmax(x)
    assert "out[start + c + 1] = T(finish(values[i], scale));" in str(raised.value)
    with simulated(strict=False) as seen:
        softmax(x)
    assert {report.kind for report in seen.reports} == {"bounds", "unwritten"}


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"mode": "slow"}, ValueError, "mode 'slow' is none of checked, fast"),
        ({"threadgroup": (2048, 1, 1)}, ValueError, "2048 threads; 1024 are the limit"),
        ({"inputs": [mx.zeros((16,))] * 2}, Exception, "input"),
        ({"header": '#include "nowhere.h"\n'}, FileNotFoundError, "nowhere.h"),
    ],
)
def test_refused(changes, error, message):
    arguments = {"inputs": [mx.zeros((16,))], "input_names": ["x"], "output_names": ["y"], **CALL}
    with pytest.raises(error, match=message):
        simulate(COPY, **{**arguments, **changes})


def test_no_clang_is_one_line(monkeypatch):
    """It says what to install."""
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    compiler.find_clang.cache_clear()
    try:
        with pytest.raises(NoClang, match=r"^no clang >= 16 found: apt-get install clang-19, or"):
            compiler.find_clang()
    finally:
        compiler.find_clang.cache_clear()


def test_a_named_clang_must_be_one(monkeypatch, tmp_path):
    old = tmp_path / "clang++"
    old.write_text("#!/bin/sh\necho 'Debian clang version 14.0.6'\n")
    old.chmod(0o755)
    monkeypatch.setenv("TORCHMLX_CLANG", str(old))
    compiler.find_clang.cache_clear()
    try:
        with pytest.raises(NoClang):
            compiler.find_clang()
        old.write_text("#!/bin/sh\necho 'clang version 22.1.8'\n")
        assert compiler.find_clang() == compiler.Clang(str(old), 22)
    finally:
        compiler.find_clang.cache_clear()


def test_compiled_kernels_are_kept(run, monkeypatch):
    x = mx.zeros((16,))
    first = run(COPY, x, mode="fast")

    def forbidden(*_):
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiler, "_run", forbidden)
    assert mx.array_equal(run(COPY, x, mode="fast").outputs[0], first.outputs[0]).item()


def test_a_report_reads_well(run):
    (report,) = run(
        "uint i = thread_position_in_grid.x;\ny[i] = x[i + 1];", mx.zeros((300,))
    ).reports
    assert str(report) == (
        "error: bounds at source line 2: read out of bounds (there are 1200 bytes): 4 bytes at "
        "byte 1200 of buffer 'x', threadgroup (1, 0, 0) thread (43, 0, 0) (simdgroup 1 lane 11)\n"
        "    y[i] = x[i + 1];"
    )


def test_the_readme_tells_what_happens(capsys):
    """Its first program, and the reports that it shows, which it wraps."""
    text = (compiler.HERE / "README.md").read_text()
    source, shown = re.search(r"```python\n(.*?)```.*?```\n(.*?)```", text, re.DOTALL).groups()
    exec(source, {})
    printed = " ".join(capsys.readouterr().out.split())
    for report in re.split(r"^(?=error)", shown, flags=re.MULTILINE)[1:]:
        assert " ".join(report.split()) in printed
