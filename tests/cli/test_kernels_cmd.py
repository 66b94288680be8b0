"""`torchmlx kernels check` and `bench`, on the device and in the simulator."""

import dataclasses
import json
import re
from importlib import import_module

import pytest

from torchmlx.kernels import measure, registry
from torchmlx.kernels.simulator import (
    NoClang,
    compiler,
    find_clang,
    published,
    report,
    traffic,
)

# The package offers a function of the same name.
simulate = import_module("torchmlx.kernels.simulator.simulate")
recorded_call = simulate.recorded_call


@pytest.fixture
def clang():
    try:
        find_clang()
    except NoClang:
        pytest.skip("no clang: apt-get install clang-19")


@pytest.fixture(autouse=True)
def few_cases(monkeypatch):
    """Two small cases a kernel, timed once."""
    every = report.cases

    def cases(names=()):
        kept: dict[str, int] = {}
        for kernel, case, dtype, variant in every(names):
            if report.work(kernel, case, dtype) < 50_000 and kept.get(kernel.name, 0) < 2:
                kept[kernel.name] = kept.get(kernel.name, 0) + 1
                yield kernel, case, dtype, variant

    monkeypatch.setattr(report, "cases", cases)
    monkeypatch.setattr(measure, "cases", cases)
    monkeypatch.setattr(measure, "REPEATS", 1)
    monkeypatch.setattr(measure, "copy_bandwidth", lambda: 8e9)


def test_check_runs_the_cases_on_the_device(torchmlx):
    outcome = torchmlx("kernels", "check", "softmax", "gemv", "--json")
    rows = json.loads(outcome.out)
    assert outcome.code == 0
    assert [row["kernel"] for row in rows] == ["softmax"] * 2 + ["gemv"] * 2
    for row in rows:
        assert row["fault"] == ""
        assert 0 <= row["nmse"] <= row["limit"]
        assert row["backend"] in ("metal", "cpu", "cuda", "fallback")
        assert row["of_copy"] == pytest.approx(row["bandwidth"] / 8e9)


def test_check_prints_what_json_tells(torchmlx):
    lines = torchmlx("kernels", "check", "softmax").out.splitlines()
    assert lines[0].split()[:4] == ["kernel", "case", "dtype", "verdict"]
    assert lines[0].endswith("GB/s  of a copy")
    assert [line.split()[3] for line in lines[1:3]] == ["pass", "pass"]
    assert lines[-1] == "2 of 2 cases pass"


def test_a_wrong_kernel_fails_the_check(torchmlx, monkeypatch):
    kernel = registry.get("softmax")
    wrong = kernel.reference
    monkeypatch.setitem(kernel.__dict__, "reference", lambda *a, **k: wrong(*a, **k) * 1.01)
    outcome = torchmlx("kernels", "check", "softmax")
    assert outcome.code == 1
    assert "FAIL" in outcome.out and "nmse" in outcome.out.splitlines()[3]
    assert outcome.out.splitlines()[-1] == "0 of 2 cases pass"


def test_check_in_the_simulator(torchmlx, clang):
    outcome = torchmlx("kernels", "check", "softmax", "--simulate", "--json")
    rows = json.loads(outcome.out)
    assert outcome.code == 0
    assert [(row["mode"], row["fault"], row["reports"]) for row in rows] == [
        ("checked", "", [])
    ] * 2


def test_a_report_fails_the_check(torchmlx, clang, monkeypatch):
    """Every store one element too far."""

    def shifted(*arguments, **call):
        recorded = recorded_call(*arguments, **call)
        source = re.sub(r"\bout\[(.+?)\] =", r"out[(\1) + 1] =", recorded.source)
        return dataclasses.replace(recorded, source=source)

    monkeypatch.setattr(simulate, "recorded_call", shifted)
    outcome = torchmlx("kernels", "check", "softmax", "--simulate")
    assert outcome.code == 1
    assert "error: bounds at " in outcome.out and "buffer 'out'" in outcome.out


def test_bench_counts_traffic_in_the_simulator(torchmlx, clang):
    outcome = torchmlx("kernels", "bench", "gemv", "--simulate", "--json")
    rows = json.loads(outcome.out)
    assert outcome.code == 0
    for row in rows:
        assert row["cached"] >= row["minimum"] > 0
        assert row["requested"] >= row["minimum"]
        assert 0 < row["coalesced"] <= 1
        assert (row["bar"], row["tile_ratio"], row["missed"]) == (1.05, None, [])
    lines = torchmlx("kernels", "bench", "gemv", "--simulate").out.splitlines()
    assert lines[0].split()[3:8] == ["minimum", "requested", "/min", "/tile", "coalesced"]
    assert len(lines) == 2 + len(rows)
    assert lines[-1] == "0 of 0 cases within their bars; 2 small ones"


def test_a_missed_bar_fails_the_bench(torchmlx, clang, monkeypatch):
    for name, value in {"SMALL_CALL": 0, "SHORT_K": 0, "TILED": 0.001}.items():
        monkeypatch.setattr(traffic, name, value)
    outcome = torchmlx("kernels", "bench", "conv2d", "--simulate")
    assert outcome.code == 1
    assert re.search(r"FAIL: requested / tiles \d\.\d\d > 0\.001", outcome.out)
    assert outcome.out.splitlines()[-1] == "0 of 2 cases within their bars; 0 small ones"


def test_what_cannot_be_fetched_is_one_line(torchmlx, clang, monkeypatch, tmp_path):
    monkeypatch.setattr(published, "cache_root", lambda: tmp_path)
    monkeypatch.setattr(published, "REQUIREMENT", "mlx-metal @ file:///nowhere/mlx_metal.whl")
    published.headers.cache_clear()
    outcome = torchmlx("kernels", "bench", "softmax", "--simulate", "--published")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert outcome.err.startswith("torchmlx: error: cannot fetch mlx-metal")
    assert "nowhere" in outcome.err
    assert outcome.err.endswith("leave out --published to do without\n")
    assert torchmlx("kernels", "bench", "softmax", "--published").code == 2


def test_bench_times_on_the_device(torchmlx):
    rows = json.loads(torchmlx("kernels", "bench", "gemv", "--json").out)
    assert all(row["seconds"] > 0 for row in rows)


def test_an_unknown_kernel_is_one_line(torchmlx):
    outcome = torchmlx("kernels", "check", "abacus")
    assert outcome.code == 2
    assert outcome.err.startswith("torchmlx: error: no kernel 'abacus'; there are: ")
    assert outcome.err.count("\n") == 1


def test_a_missing_compiler_is_one_line(torchmlx, monkeypatch):
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    compiler.find_clang.cache_clear()
    try:
        outcome = torchmlx("kernels", "check", "--simulate")
    finally:
        compiler.find_clang.cache_clear()
    assert outcome.code == 2
    assert outcome.err == (
        "torchmlx: error: no clang >= 16 found: apt-get install clang-19, or set TORCHMLX_CLANG\n"
    )


def test_the_measured_copy(monkeypatch):
    monkeypatch.undo()
    assert measure.copy_bandwidth() > 1e8


def test_the_device_runs_every_case(monkeypatch):
    """Also those that no Metal program of ours serves; in the simulator there are none of them."""
    monkeypatch.undo()
    labels = {(kernel.name, case.label) for kernel, case, _ in measure.cases(["gemv"])}
    assert labels == {("gemv", case.label) for case in registry.get("gemv").cases}
    assert len({dtype for _, _, dtype in measure.cases(["gemv"])}) == 3
    assert len(list(report.cases(["gemv"]))) < len(labels)
