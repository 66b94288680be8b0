import json
import os
import sys
from pathlib import Path

import pytest

from tests import bounded
from tests.conftest import ROOT
from torchmlx import machine
from torchmlx.cli import doctor
from torchmlx.kernels import dispatch, native, registry


def test_json_has_every_part(torchmlx):
    outcome = torchmlx("doctor", "--json")
    assert outcome.code == 0
    report = json.loads(outcome.out)
    assert report["versions"]["mlx"] == "0.32.4"
    assert report["device"]["kind"] in ("metal", "cuda", "cpu")
    assert 1 <= report["machine"]["cores"] <= os.cpu_count()
    assert 0 < report["machine"]["memory_available"] <= report["machine"]["memory_total"]
    assert "softmax" in {row["kernel"] for row in report["kernels"]}


def test_text_tells_what_json_tells(torchmlx):
    report = json.loads(torchmlx("doctor", "--json").out)
    text = torchmlx("doctor").out
    assert report["machine"]["os"] in text and report["cache"] in text
    for item in report["advice"] + report["missing_extras"]:
        assert item["what"] in text and item["mend"] in text


def test_the_kernels_instruction_set_and_threads_are_told(monkeypatch):
    """As forced by the environment, which a process reads once."""
    if native.obstacle():
        pytest.skip(f"{native.obstacle()}; make native")
    command = [sys.executable, "-m", "torchmlx", "doctor"]
    settings = {"TORCHMLX_CPU_ISA": "portable", "TORCHMLX_NUM_THREADS": "3"}
    told = bounded.run(command, env={**os.environ, **settings}, cwd=ROOT).stdout
    (line,) = [line for line in told.splitlines() if line.startswith("C++ ")]
    assert line.split(None, 1)[1].startswith("portable, forced by TORCHMLX_CPU_ISA; ")
    assert line.endswith("; 3 threads")
    assert doctor.describe_native()["instruction_sets"][-1] == "portable"


@pytest.mark.parametrize(
    ("sets", "flags", "told"),
    [
        (["amx", "avx512bf16"], "amx_bf16", "it computes what it should"),
        (["avx512bf16"], "avx512f amx_bf16", "the system does not grant it"),
        (["avx2"], "avx2", "this processor has none"),
    ],
)
def test_what_is_told_of_amx(monkeypatch, sets, flags, told):
    monkeypatch.setattr(machine, "_read", lambda path: f"model name\t: x\nflags\t\t: {flags}\n")
    assert doctor._amx(sets).startswith(told)


def test_without_the_extension_the_reason_is_told(monkeypatch):
    monkeypatch.setattr(native, "load", lambda: (None, "no C++ extension is built"))
    assert "no C++ extension" in doctor._native_line(doctor.describe_native())


def test_kernels_list_json_and_table_agree(torchmlx):
    rows = json.loads(torchmlx("kernels", "list", "--json").out)
    lines = torchmlx("kernels", "list").out.splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [[r["kernel"], r["backend"]] for r in rows]


def test_impossible_override_is_one_line(torchmlx, monkeypatch):
    def listing():
        raise dispatch.OverrideError("TORCHMLX_BACKEND: unknown backend 'abacus'")

    monkeypatch.setattr(registry, "listing", listing)
    outcome = torchmlx("kernels", "list")
    assert outcome.code == 2
    assert outcome.err == "torchmlx: error: TORCHMLX_BACKEND: unknown backend 'abacus'\n"


@pytest.mark.parametrize("kind", ["metal", "cuda"])
def test_a_gpu_needs_no_advice(kind):
    assert doctor.advise(kind) == []


def test_missing_compiler_is_told_on_the_cpu(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert any("g++" in item["mend"] for item in doctor.advise("cpu"))


def test_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("TORCHMLX_CACHE", "/named")
    assert machine.cache_root() == Path("/named")
    monkeypatch.delenv("TORCHMLX_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert machine.cache_root() == Path("/xdg/torchmlx")


def test_memory_of_a_limited_control_group(monkeypatch):
    files = {
        "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   2097152 kB\n",
        "/sys/fs/cgroup/memory.max": f"{2**30}\n",
        "/sys/fs/cgroup/memory.current": f"{2**28}\n",
    }
    monkeypatch.setattr(machine, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr("sys.platform", "linux")
    assert machine.memory_available() == 2**30 - 2**28
    assert machine.memory_total() == 2**30
