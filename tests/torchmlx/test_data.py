"""torch.utils.data: the same batches as torch, in the same order for a seed, workers included."""

from __future__ import annotations

import collections
import multiprocessing
import os
import threading

import numpy as np
import pytest

import torchmlx
from torchmlx.utils.data import workers

Pair = collections.namedtuple("Pair", "x y")


def plain(value):
    """Tensors as (dtype, values)."""
    if hasattr(value, "tolist"):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "named", tuple(plain(v) for v in value)
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [plain(v) for v in value]
    return value


def both(make):
    """make(lib) for torchmlx and for torch, compared."""
    torch = pytest.importorskip("torch")
    mine, theirs = make(torchmlx), make(torch)
    assert mine == theirs
    return mine


def dataset(lib, n=11):
    return lib.utils.data.TensorDataset(lib.arange(n), lib.arange(2.0 * n).reshape(n, 2))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": 4, "shuffle": True},
        {"batch_size": None, "shuffle": True},
        {"batch_size": 3, "shuffle": True, "num_workers": 2},
    ],
)
def test_batches_in_torchs_order(settings):
    def make(lib):
        lib.manual_seed(3)
        loader = lib.utils.data.DataLoader(dataset(lib), **settings)
        epochs = [[plain(b) for b in loader] for _ in range(2)]
        return epochs, len(loader), lib.rand(2).tolist()

    epochs, length, _ = both(make)
    assert len(epochs[0]) == length


def test_samplers():
    def make(lib):
        data, g = lib.utils.data, lib.Generator().manual_seed(5)
        source = range(70)
        samplers = [
            data.RandomSampler(source, generator=g),
            data.RandomSampler(source, replacement=True, num_samples=50, generator=g),
            data.RandomSampler(range(5), num_samples=13, generator=g),
            data.SubsetRandomSampler([5, 3, 9, 2], generator=g),
            data.WeightedRandomSampler([0.1, 0.5, 0.4], 20, generator=g),
            data.WeightedRandomSampler([0.1, 0.5, 0.4], 2, replacement=False, generator=g),
            data.BatchSampler(data.SequentialSampler(range(10)), 4, False),
            data.BatchSampler(data.SequentialSampler(range(10)), 4, True),
            data.DistributedSampler(source, 3, 1, seed=2),
        ]
        return [(list(s), len(s)) for s in samplers]

    both(make)


def test_splits_and_combinations():
    def make(lib):
        data = lib.utils.data
        g = lib.Generator().manual_seed(1)
        parts = data.random_split(dataset(lib), [0.5, 0.3, 0.2], generator=g)
        parts += data.random_split(range(10), [7, 3], generator=g)
        joined = data.ConcatDataset([dataset(lib, 3), dataset(lib, 4)]) + dataset(lib, 2)
        stacked = data.StackDataset(a=dataset(lib, 3), b=[1, 2, 3])
        return (
            [list(p.indices) for p in parts],
            [plain(joined[i]) for i in (0, 3, 8, -1)],
            plain(stacked[1]),
            len(joined),
        )

    both(make)


def test_collate():
    samples = [
        [1, 2], [1.5, 2.5], ["a", "b"], [True, False], [(1, "x"), (2, "y")], [[1, 2.0], [3, 4.0]],
        [{"a": 1, "b": [1, 2]}, {"a": 2, "b": [3, 4]}], [Pair(1, 2.0), Pair(3, 4.0)],
        [np.arange(3), np.arange(3)], [np.float32(1), np.float32(2)], [np.int64(1), np.int64(2)],
    ]  # fmt: skip
    both(lambda lib: [plain(lib.utils.data.default_collate(s)) for s in samples])
    both(lambda lib: [plain(lib.utils.data.default_convert(s)) for s in samples])
    with pytest.raises(TypeError, match="batch must contain tensors"):
        torchmlx.utils.data.default_collate([object()])
    with pytest.raises(RuntimeError, match="equal size"):
        torchmlx.utils.data.default_collate([[1], [1, 2]])


class Noisy:
    """Samples with random numbers, which belong to the worker."""

    def __init__(self, lib):
        self.lib = lib

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return self.lib.rand(()) + i


def test_each_worker_draws_torchs_numbers():
    def make(lib):
        lib.manual_seed(7)
        loader = lib.utils.data.DataLoader(Noisy(lib), batch_size=2, num_workers=2)
        return [plain(b) for b in loader], lib.rand(1).tolist()

    both(make)


def test_streams():
    def make(lib):
        class Stream(lib.utils.data.IterableDataset):
            def __iter__(self):
                info = lib.utils.data.get_worker_info()
                step = 1 if info is None else info.num_workers
                return iter(range(0 if info is None else info.id, 11, step))

        data = lib.utils.data
        return [
            [plain(b) for b in data.DataLoader(Stream(), batch_size=3, num_workers=n, **more)]
            for n in (0, 2)
            for more in ({}, {"drop_last": True})
        ]

    both(make)


class Failing:
    def __len__(self):
        return 6

    def __getitem__(self, i):
        if i == 4:
            raise KeyError(f"sample {i}")
        return i


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_arrive(workers):
    loader = torchmlx.utils.data.DataLoader(Failing(), batch_size=2, num_workers=workers)
    seen = []
    with pytest.raises(KeyError, match="sample 4"):
        for batch in loader:
            seen.append(batch.tolist())
    assert seen == [[0, 1], [2, 3]]


def test_workers_go_when_a_pass_is_left():
    before = threading.active_count()
    for _ in torchmlx.utils.data.DataLoader(dataset(torchmlx), num_workers=3):
        break
    assert threading.active_count() == before


def double(batch):
    return torchmlx.utils.data.default_collate(batch) * 2


def test_processes():
    loader = torchmlx.utils.data.DataLoader(
        list(range(6)), 2, num_workers=1, multiprocessing_context="spawn", collate_fn=double
    )
    assert [b.tolist() for b in loader] == [[0, 2], [4, 6], [8, 10]]


def vanish(batch):
    os._exit(3)


def leave_the_thread(batch):
    raise SystemExit  # not an Exception: nobody else hears of it


@pytest.mark.parametrize(("context", "end"), [("spawn", vanish), (None, leave_the_thread)])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_is_gone_is_not_waited_for(monkeypatch, context, end):
    monkeypatch.setattr(workers, "LOOK", 0.2)
    loader = torchmlx.utils.data.DataLoader(
        list(range(4)), num_workers=1, multiprocessing_context=context, collate_fn=end
    )
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid\(s\) .*exited unexpectedly"):
        list(loader)


def large(batch):
    return torchmlx.zeros(len(batch), 200_000)


def test_processes_with_more_to_say_than_a_pipe_holds_go_at_once():
    loader = torchmlx.utils.data.DataLoader(
        list(range(6)), num_workers=1, multiprocessing_context="spawn", collate_fn=large
    )
    others = set(multiprocessing.active_children())
    batches = iter(loader)
    assert next(batches).shape == (1, 200_000)
    (worker,) = set(multiprocessing.active_children()) - others
    batches.close()
    assert worker.exitcode == 0  # by itself, not killed after 5 s


def unpicklable(batch):
    class LocalError(Exception):
        """No other process can name it."""

    if batch[0] == 1:
        raise LocalError("the second batch")
    return lambda: batch


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ([0], "worker process 0.\\nOriginal error: a batch cannot be pickled .*unpicklable"),
        ([1], "LocalError: the second batch"),
        ([lambda: 0], "what the sampler gives cannot be pickled"),
    ],
)
def test_what_a_process_cannot_pickle_is_said(capfd, samples, text):
    loader = torchmlx.utils.data.DataLoader(
        range(2),
        sampler=samples,
        num_workers=1,
        multiprocessing_context="spawn",
        collate_fn=unpicklable,
        timeout=60,
    )
    with pytest.raises(RuntimeError, match=text):
        list(loader)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "settings",
    [
        {"shuffle": True, "sampler": [0]},
        {"batch_sampler": [[0]], "batch_size": 2},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
        {"num_workers": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"timeout": -1},
    ],
)
def test_settings_that_contradict(settings):
    torch = pytest.importorskip("torch")
    for lib in (torch, torchmlx):
        with pytest.raises(ValueError):
            lib.utils.data.DataLoader(dataset(lib), **settings)
