"""The extension as a guest: threads, fork, memory, MLX's graph, settings."""

import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from tests import bounded
from torchmlx.kernels import native
from torchmlx.kernels.gemv import linear
from torchmlx.kernels.matmul import matmul
from torchmlx.kernels.softmax import softmax

ROOT = Path(__file__).parents[3]


def random(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape, np.float32))


def test_two_threads_at_once(extension):
    """Each with its own stream; the pool serves one loop at a time, the other runs alone."""
    extension.set_threads(3)
    x, w = random(60, 300), random(200, 300, seed=1)
    want = np.array(x) @ np.array(w).T
    wrong = []

    def work():
        with mx.stream(mx.new_stream(mx.cpu)):
            for _ in range(100):
                got = np.array(linear(x, w))
                if not np.allclose(got, want, rtol=1e-4, atol=1e-4):
                    wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    bounded.join(*threads)
    assert not wrong


def test_the_number_of_threads_changes_while_others_compute(extension):
    x, w = random(60, 300), random(200, 300, seed=1)
    want = np.array(x) @ np.array(w).T
    stop = threading.Event()

    def change():
        while not stop.is_set():
            for count in (1, 4, 2):
                extension.set_threads(count)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(50):
            np.testing.assert_allclose(np.array(linear(x, w)), want, rtol=1e-4, atol=1e-4)
    finally:
        stop.set()
        bounded.join(thread)


def tasks() -> dict[str, float]:
    """Milliseconds on a processor of each thread of this process, by its number."""
    spent = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            stat = (task / "stat").read_text()
        except OSError:  # it has just ended
            continue
        user, system = stat.rpartition(")")[2].split()[11:13]
        spent[task.name] = (int(user) + int(system)) * 1e3 / os.sysconf("SC_CLK_TCK")
    return spent


@pytest.mark.skipif(sys.platform != "linux", reason="platform: /proc")
def test_idle_threads_sleep(extension):
    """The pool's own threads: others of this process may be at work."""
    extension.set_threads(1)
    x, w = random(60, 300), random(200, 300, seed=1)
    mx.eval(linear(x, w))
    others = tasks().keys()
    extension.set_threads(4)
    mx.eval(linear(x, w))
    before = {task: spent for task, spent in tasks().items() if task not in others}
    assert len(before) >= 3
    time.sleep(0.3)
    after = tasks()
    ticks = 20  # two of the clock's, in ms
    assert all(after.get(task, 0) - spent <= ticks for task, spent in before.items())


def test_short_calls_leak_no_memory(extension, memory_used_again):
    x, w = random(3, 64), random(32, 64, seed=1)

    def calls(count):
        for _ in range(count):
            mx.eval(softmax(linear(x.T.T, w)), matmul(x, w.T))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = calls(2_000)
    active = mx.get_active_memory()
    assert calls(10_000) - before < 4_096  # KiB
    assert mx.get_active_memory() <= active


FORK = """
import os, sys
import mlx.core as mx
from torchmlx.kernels import native
from torchmlx.kernels.gemv import linear
native.load()[0].set_threads(2)
x, w = mx.ones((64, 256)), mx.ones((512, 256))
mx.eval(linear(x, w))
child = os.fork()
if child == 0:
    # MLX's own stream threads do not survive a fork: a child needs a new stream.
    with mx.stream(mx.new_stream(mx.cpu)):
        good = (linear(x, w) == 256).all().item()
    os._exit(0 if good else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_of_fork_computes_on_a_new_stream(extension):
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_every_kernel_in_children_of_fork(extension):
    done = bounded.run([sys.executable, "-m", "tests.kernels.cpu.forks"], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("place", [(), ("--one-core",)], ids=["all cores", "one core"])
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_stress(extension, threads, place):
    options = ("--seconds", "4", "--threads", str(threads), *place)
    done = bounded.run([sys.executable, "-m", "tests.kernels.cpu.stress", *options], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_lazy_and_compiled(extension):
    x, w = random(4, 33), random(7, 33, seed=1)
    function = lambda x, w: softmax(linear(x, w) * 0.5)  # noqa: E731
    want = np.array(function(x, w))
    compiled = mx.compile(function)
    for rows in (4, 4, 3):
        np.testing.assert_allclose(np.array(compiled(x[:rows], w)), want[:rows], rtol=1e-6)


def test_compiled_for_any_shape(extension):
    """The primitives can; MLX's custom functions around them cannot (0.32.4)."""
    bare_linear, bare_softmax = native.function("linear"), native.function("softmax")
    function = mx.compile(lambda x, w: bare_softmax(bare_linear(x, w), axis=1), shapeless=True)
    for rows in (4, 2):
        x, w = random(rows, 33), random(7, 33, seed=1)
        want = np.array(softmax(linear(x, w)))
        np.testing.assert_allclose(np.array(function(x, w)), want, rtol=1e-6)


def test_inputs_of_every_layout(extension):
    base = random(6, 10, 12)
    w = random(5, 12, seed=1)
    views = {
        "sliced rows": base[:, 1:9:2],
        "swapped axes": base.swapaxes(0, 1),
        "reversed": base[:, :, ::-1],
        "broadcast": mx.broadcast_to(base[:1], (4, 10, 12)),
        "one axis": base[0, 0],
        "moved": mx.moveaxis(random(12, 6, 10), 0, -1),
    }
    for name, view in views.items():
        want = np.array(view) @ np.array(w).T
        np.testing.assert_allclose(linear(view, w), want, rtol=1e-4, atol=1e-5, err_msg=name)
        flipped = w[::-1, ::-1]
        want = np.array(view) @ np.array(flipped).T
        np.testing.assert_allclose(linear(view, flipped), want, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.huge
def test_more_than_2_to_31_elements(extension):
    w = mx.broadcast_to(mx.arange(2, dtype=mx.bfloat16), (2**30 + 8, 2))
    got = linear(mx.array([[2.0, 3.0], [4.0, 5.0]], mx.bfloat16), w)
    assert got.size > 2**31
    assert mx.array_equal(got[:, -3:], mx.array([[3.0] * 3, [5.0] * 3], mx.bfloat16)).item()


def run(code, **environment):
    command = [sys.executable, "-c", f"from torchmlx.kernels import native; {code}"]
    done = bounded.run(command, env={**os.environ, **environment})
    return done.stdout.strip() + done.stderr.strip().rpartition("\n")[2]


def test_settings_from_the_environment(extension):
    ask = "m = native.load()[0]; print(m.threads(), m.instruction_set())"
    assert run(ask, TORCHMLX_NUM_THREADS="3", TORCHMLX_CPU_ISA="portable") == "3 portable"
    message = run(ask, TORCHMLX_CPU_ISA="mmx")
    assert message.startswith("ValueError: TORCHMLX_CPU_ISA: this machine and build have ")
    assert message.endswith("portable, not 'mmx'")
    assert "a positive number of threads, not '0'" in run(ask, TORCHMLX_NUM_THREADS="0")


def test_another_mlx_is_refused(monkeypatch):
    native.load.cache_clear()
    monkeypatch.setattr(mx, "__version__", "0.33.0")
    try:
        if native.load()[1] != "no C++ extension is built":
            assert native.obstacle() == "the C++ extension was built for mlx 0.32.4, not 0.33.0"
    finally:
        native.load.cache_clear()


def test_a_stale_extension_is_refused(extension, tmp_path, monkeypatch):
    """Every file of the interface counts; without the message a call fails by a TypeError."""
    sources = shutil.copytree(native.INTERFACE, tmp_path / "bind")
    monkeypatch.setattr(native, "INTERFACE", sources)
    assert native.interface() == extension.interface
    for path in sorted(sources.iterdir()):
        text = path.read_bytes()
        path.write_bytes(text + b"\n")
        assert native.interface() != extension.interface, path.name
        path.write_bytes(text)
    (sources / "new.cpp").touch()
    native.load.cache_clear()
    try:
        assert "is stale" in str(native.obstacle()) and "make native" in native.MEND
        with pytest.raises(RuntimeError, match="is stale"):
            native.function("linear")
    finally:
        native.load.cache_clear()


def test_threads_follow_affinity_and_control_group(tmp_path, monkeypatch):
    assert 1 <= native.cores() <= len(os.sched_getaffinity(0))
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert native._quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert native._quota(tmp_path) is None
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert native._quota(tmp_path) is None
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("400000\n")
    assert native._quota(tmp_path) == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(native, "_quota", lambda: 2.5)
    assert native.cores() == 3
