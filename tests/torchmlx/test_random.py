"""The CPU generator gives torch's numbers; after any draws even its state has torch's bytes."""

from __future__ import annotations

import numpy as np
import pytest

import torchmlx

from .parity import same, torch

FLOATS = ("float32", "float64", "float16", "bfloat16")
SIZES = (*range(1, 41), 100, 1000)


def both(*draws, seed: int = 0) -> None:
    """Each draw, in one sequence, on torch and on torchmlx: equal values and equal final states."""
    outcomes = []
    for lib in (torch, torchmlx):
        lib.manual_seed(seed)
        outcomes.append([draw(lib) for draw in draws] + [lib.rand(2)])
    for theirs, ours in zip(*outcomes, strict=True):
        same(ours, theirs)
    np.testing.assert_array_equal(torchmlx.get_rng_state().numpy(), torch.get_rng_state().numpy())


@pytest.mark.parametrize("seed", [0, 1337, 2**40 + 3, -1])
@pytest.mark.parametrize("dtype", FLOATS)
def test_sizes_and_carried_state(seed, dtype):
    draws = []
    for n in SIZES:
        draws += [lambda lib, n=n: lib.randn(n, dtype=getattr(lib, dtype))]
        draws += [lambda lib, n=n: lib.rand(n, dtype=getattr(lib, dtype))]
    both(*draws, seed=seed)


METHODS = {
    "uniform_": (-3, 0.7), "normal_": (2, 0.3), "exponential_": (1.7,), "cauchy_": (),
    "log_normal_": (0, 0.5), "geometric_": (0.4,), "bernoulli_": (0.3,), "random_": (),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", METHODS)
def test_distributions(name, dtype):
    def draw(lib, n):
        return getattr(lib.empty(n, dtype=getattr(lib, dtype)), name)(*METHODS[name])

    both(*(lambda lib, n=n: draw(lib, n) for n in SIZES))


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8", "bool"])
def test_random_integers(dtype):
    both(lambda lib: lib.empty(50, dtype=getattr(lib, dtype)).random_())


def test_ranges():
    both(
        lambda lib: lib.randint(10, (5,)),
        lambda lib: lib.randint(-5, 2**40, (5, 2)),
        lambda lib: lib.randint(0, 2**28, (9,)),
        lambda lib: lib.randint(0, 2**28 - 1, (9,)),
        lambda lib: lib.randint(low=3, high=9, size=(4,)),
        lambda lib: lib.randint(3, (4,), dtype=lib.float32),
        lambda lib: lib.randint_like(lib.zeros(4), 2, 5),
        lambda lib: lib.randperm(100),
        lambda lib: lib.randperm(1),
    )


def test_memory_order():
    both(
        lambda lib: lib.empty(40, 5).t().normal_(),
        lambda lib: lib.zeros(7, 8)[:, ::2].uniform_(),
        lambda lib: lib.rand_like(lib.zeros(5, 3).t()),
        lambda lib: lib.randn_like(lib.zeros(3, 6, 2).permute(2, 0, 1)),
        lambda lib: lib.randn(4, 3, dtype=lib.complex64),
    )


def test_parameters_that_are_tensors():
    both(
        lambda lib: lib.normal(lib.arange(20).float(), 0.5),
        lambda lib: lib.normal(0.0, lib.arange(20).float()),
        lambda lib: lib.normal(lib.ones(5), lib.arange(5).float()),
        lambda lib: lib.normal(1.0, 2.0, (3, 4)),
        lambda lib: lib.bernoulli(lib.rand(40)),
        lambda lib: lib.bernoulli(lib.rand(40, dtype=lib.float64)),
        lambda lib: lib.bernoulli(lib.zeros(9), 0.4),
    )


def test_multinomial():
    both(
        lambda lib: lib.multinomial(lib.rand(50), 1),
        lambda lib: lib.multinomial(lib.rand(3, 50), 5),
        lambda lib: lib.multinomial(lib.rand(3, 50), 20, replacement=True),
        lambda lib: lib.multinomial(lib.rand(3, 50, dtype=lib.float64), 20, replacement=True),
    )


def test_dropout_mask():
    torch.manual_seed(3)
    torchmlx.manual_seed(3)
    kept = torch.nn.functional.dropout(torch.ones(6, 7), 0.4) != 0
    assert torchmlx.random.dropout_mask((6, 7), 0.4).tolist() == kept.tolist()


@pytest.mark.parametrize(
    "call",
    [
        "lib.empty(3).random_(5, 2)", "lib.randint(5, 5, (2,))", "lib.empty(3).normal_(0, -1)",
        "lib.empty(3).uniform_(2, 1)", "lib.empty(3).exponential_(0.0)", "lib.randperm(-1)",
        "lib.empty(3).bernoulli_(1.5)", "lib.multinomial(lib.zeros(2), 1)",
        "lib.multinomial(lib.ones(2), 3)", "lib.multinomial(lib.ones(2, dtype=lib.int64), 1)",
        "lib.randn(3, dtype=lib.int32)", "lib.rand(3, dtype=lib.int32)", "lib.manual_seed(2**65)",
        "lib.empty(2).geometric_(0)", "lib.set_rng_state(lib.zeros(3, dtype=lib.uint8))",
        "lib.randint(0, 300, (3,), dtype=lib.uint8)", "lib.bernoulli(lib.full((1,), 2.0))",
    ],
)  # fmt: skip
def test_errors(call):
    with pytest.raises(Exception) as theirs:
        eval(call, {"lib": torch})
    with pytest.raises(theirs.type) as ours:
        eval(call, {"lib": torchmlx})
    assert str(ours.value)[:20] == str(theirs.value)[:20]


def test_generators_and_their_states():
    ours, theirs = torchmlx.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    same(torchmlx.randn(7, generator=ours), torch.randn(7, generator=theirs))
    state = ours.get_state()
    np.testing.assert_array_equal(state.numpy(), theirs.get_state().numpy())
    first = torchmlx.rand(4, generator=ours).tolist()
    ours.set_state(state)
    assert torchmlx.rand(4, generator=ours).tolist() == first
    assert ours.initial_seed() == 5
    with torchmlx.random.fork_rng():
        inside = torchmlx.rand(2).tolist()
    assert torchmlx.rand(2).tolist() == inside


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_uneven_bounds_to_the_last_bit(dtype):
    """The first weights of a Linear: bounds that no float32 is are rounded before they are used."""
    for low, high in ((-(7**-0.5), 7**-0.5), (0.1, 0.7), (-3.3, 0.1), (1e-3, 5)):
        drawn = []
        for lib in (torch, torchmlx):
            lib.manual_seed(1)
            drawn.append(lib.empty(2000, dtype=getattr(lib, dtype)).uniform_(low, high).tolist())
        assert drawn[0] == drawn[1]
