"""What has to hold for each C++ kernel: any number of threads, two threads of Python, two streams,
any layout in memory, sizes of zero, no memory kept. The registry's cases say with which arguments.
"""

import ctypes
import gc
import sys
import threading
from dataclasses import replace
from functools import cache

import mlx.core as mx
import numpy as np
import pytest

from tests.bounded import join
from torchmlx.kernels import registry
from torchmlx.kernels.accuracy import bound, judge, to_numpy
from torchmlx.kernels.dispatch import use

KERNELS = [kernel for name in registry.names() if (kernel := registry.get(name)).cpu]

# Cases of a kernel where the largest stand for it, and the most operations or bytes of one.
CASES, MOST = 3, 5e7

# The same where each case counts.
SMALL = 2e6

LAYOUTS = ("offset", "strided", "transposed", "reversed")


def size(case, kernel, dtype="float32"):
    cost = kernel.cost(*case.outline(dtype), **case.keywords)
    return max(cost.bytes, cost.flops)


@cache
def cases(name):
    kernel = registry.get(name)
    fitting = [case for case in kernel.cases if size(case, kernel) <= MOST]
    return sorted(fitting or kernel.cases, key=lambda case: -size(case, kernel))[:CASES]


def call(kernel, case, arrays):
    results = kernel.function(*arrays, **case.keywords)
    return tuple(results) if isinstance(results, tuple | list) else (results,)


def same(results, others, dtype):
    """Equal but for the order of sums: some units of the last place of the largest value."""
    tolerance = 4e-6 if dtype == "float32" else 1.6e-2
    for one, other in zip(results, others, strict=True):
        one, other = to_numpy(one), to_numpy(other)
        finite = np.abs(one[np.isfinite(one)])
        limit = tolerance * finite.max(initial=0.0)
        np.testing.assert_allclose(other, one, rtol=0, atol=limit, equal_nan=True)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_number_of_threads_gives_the_same(extension, kernel, dtype):
    for case in cases(kernel.name):
        arrays = case.make(dtype)
        with use("cpu"):
            extension.set_threads(1)
            want = call(kernel, case, arrays)
            mx.eval(arrays, want)
            for threads in (2, 3, 7):
                extension.set_threads(threads)
                assert extension.threads() == threads
                got = call(kernel, case, arrays)
                mx.eval(got)
                same(want, got, dtype)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_two_threads_of_python_on_streams_of_their_own(extension, kernel):
    """The pool serves one loop at a time, the other runs in its caller: equal but for rounding."""
    extension.set_threads(3)
    some = cases(kernel.name)[:2]
    inputs = [case.make("float32") for case in some]
    mx.eval([array for arrays in inputs for array in arrays if array is not None])
    with use("cpu"):
        wants = [call(kernel, case, each) for case, each in zip(some, inputs, strict=True)]
    mx.eval(wants)
    wrong = []

    def work(turn):
        try:
            with mx.stream(mx.new_stream(mx.cpu)), use("cpu"):
                for i in range(turn, turn + 6):
                    j = i % len(some)
                    same(wants[j], call(kernel, some[j], inputs[j]), "float32")
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(2)]
    for thread in threads:
        thread.start()
    join(*threads, seconds=120)
    assert not wrong, wrong[0]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_two_streams_in_one_graph(extension, kernel):
    """Results of one stream are inputs of the other, evaluated together."""
    extension.set_threads(2)
    case = cases(kernel.name)[0]
    arrays = case.make("float32")
    with use("cpu"):
        want = call(kernel, case, arrays)
        streams = [mx.new_stream(mx.cpu) for _ in range(2)]
        results = []
        for turn in range(4):
            # Made on the other stream first, so that the kernel has to wait for them.
            with mx.stream(streams[1 - turn % 2]):
                moved = [None if x is None else mx.concatenate([x.reshape(-1)]).reshape(x.shape)
                         for x in arrays]  # fmt: skip
            with mx.stream(streams[turn % 2]):
                results.append(call(kernel, case, moved))
        mx.eval(results)
    for result in results:
        same(want, result, "float32")


def laid(case, layout):
    """The same values, each array in that layout as far as it has the axes."""
    axes = {"transposed": 2, "offset": 0}.get(layout, 1)
    arrays = {
        name: spec and replace(spec, layout=layout if len(spec.shape) >= axes else "contiguous")
        for name, spec in case.arrays.items()
    }
    return replace(case, arrays=arrays)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_layout_gives_the_same(extension, kernel, dtype):
    """Misaligned by one element, every other element, axes swapped, axes reversed."""
    for case in kernel.cases:
        if size(case, kernel) > SMALL:
            continue
        with use("cpu"):
            want = call(kernel, case, laid(case, "contiguous").make(dtype))
            for layout in LAYOUTS:
                same(want, call(kernel, case, laid(case, layout).make(dtype)), dtype)


def emptied(case):
    """The case without each size in turn: wherever it stands there is 0 instead."""
    specs = [spec for spec in case.arrays.values() if spec]
    for gone in sorted({n for spec in specs for n in spec.shape}):
        arrays = {
            name: spec and replace(spec, shape=tuple(n if n != gone else 0 for n in spec.shape))
            for name, spec in laid(case, "contiguous").arrays.items()
        }
        fill = {name: "normal" for name, spec in arrays.items() if spec and spec.fill == "specials"}
        yield replace(
            case, arrays={k: v and replace(v, fill=fill.get(k, v.fill)) for k, v in arrays.items()}
        )


def poison(results):
    """Leave NaN in the memory that results of these shapes will be given."""
    mx.eval([mx.full(result.shape, mx.nan) for result in results])


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_sizes_of_zero(extension, kernel, dtype):
    """Where the reference has a value, ours is that or a refusal of our own; never a crash."""
    compared = 0
    for case in (each for one in kernel.cases for each in emptied(one)):
        try:
            arrays = case.make(dtype)
            with np.errstate(all="ignore"):
                want = kernel.reference(*map(to_numpy, arrays), **case.keywords)
        except (ValueError, IndexError, ZeroDivisionError):
            continue  # no such problem
        want = want if isinstance(want, tuple) else (want,)
        poison(want)
        try:
            with use("cpu"):
                got = call(kernel, case, arrays)
        except ValueError as refusal:
            assert not str(refusal).startswith("["), refusal  # as MLX begins: that is no check
            continue
        for one, other in zip(got, want, strict=True):
            assert judge(one, other, bound(kernel.nmse, one.dtype)).fault == "", case.label
        compared += 1
    assert compared


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_calls_keep_no_memory(extension, kernel):
    """The smallest case, over and over: MLX's count of bytes in use returns to what it was."""
    case = min(kernel.cases, key=lambda case: size(case, kernel))
    arrays = case.make("bfloat16")
    with use("cpu"):
        for _ in range(3):
            mx.eval(call(kernel, case, arrays))
        mx.synchronize()
        before = mx.get_active_memory()
        for _ in range(200):
            mx.eval(call(kernel, case, arrays))
        mx.synchronize()
    assert mx.get_active_memory() <= before


class Used(ctypes.Structure):
    """struct mallinfo2 of the C library; malloc_info(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks"),
            *("fordblks", "keepcost"),
        )
    ]


def allocated() -> int:
    """Bytes that the process has from malloc and has not given back."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        pytest.skip("platform: needs glibc 2.33")
    ask.restype = Used
    used = ask()
    return used.uordblks + used.hblkhd


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_10_000_short_calls_leak_no_memory(extension, memory_used_again, kernel):
    """Bytes of malloc, Python's blocks, MLX's arrays; also of inputs that have to be copied."""
    case = min(kernel.cases, key=lambda case: size(case, kernel))
    inputs = [laid(case, layout).make("bfloat16") for layout in ("contiguous", "reversed")]

    def calls(count):
        with use("cpu"):
            for i in range(count):
                mx.eval(call(kernel, case, inputs[i % 2]))
        mx.synchronize()
        gc.collect()
        return allocated(), sys.getallocatedblocks(), mx.get_active_memory()

    before = calls(2_000)
    grown = [after - then for after, then in zip(calls(10_000), before, strict=True)]
    # Less than ten bytes and a hundredth of a block a call.
    assert grown[0] < 100_000 and grown[1] < 100 and grown[2] <= 0, grown
