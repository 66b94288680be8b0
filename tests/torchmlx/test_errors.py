"""Python protocols of a tensor, and the errors of what it cannot do."""

from __future__ import annotations

import math
import pickle

import pytest


def test_size(torch):
    size = torch.zeros(2, 3).shape
    assert isinstance(size, torch.Size)
    assert (size == (2, 3), size.numel(), repr(size)) == (True, 6, "torch.Size([2, 3])")
    assert isinstance(size[:1], torch.Size)
    assert isinstance(size + (1,), torch.Size)
    assert hash(size) == hash((2, 3))
    assert pickle.loads(pickle.dumps(size)) == size
    assert torch.zeros(size[0], *size[1:]).shape == size


def test_numbers_from_tensors(torch):
    assert (int(torch.tensor(2.7)), int(torch.tensor([3]))) == (2, 3)
    assert float(torch.tensor(2)) == 2.0
    assert complex(torch.tensor(1 + 2j)) == 1 + 2j
    assert bool(torch.zeros(1, 1)) is False
    assert bool(torch.tensor(math.nan)) is True
    assert [10, 20, 30][torch.tensor(1)] == 20
    assert list(range(torch.tensor(2))) == [0, 1]
    assert torch.tensor(3).item() == 3


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda t: bool(t.zeros(2)), RuntimeError),
        (lambda t: bool(t.zeros(0)), RuntimeError),
        (lambda t: int(t.zeros(2)), ValueError),
        (lambda t: float(t.zeros(2)), ValueError),
        (lambda t: t.zeros(2).item(), RuntimeError),
        (lambda t: float(t.tensor(1j)), RuntimeError),
        (lambda t: int(t.tensor(math.nan)), ValueError),
        (lambda t: [1, 2][t.tensor(1.0)], TypeError),
        (lambda t: [1, 2][t.tensor([1, 0])], TypeError),
        (lambda t: len(t.tensor(1)), TypeError),
        (lambda t: iter(t.tensor(1)), TypeError),
        (lambda t: "a" in t.zeros(2), RuntimeError),
        (lambda t: t.zeros(1) + "a", TypeError),
        (lambda t: t.zeros(1).no_such_name, AttributeError),
        (lambda t: t.no_such_name, AttributeError),
        (lambda t: t.add(t.ones(1), [1]), TypeError),
        (lambda t: t.ones(2) + t.ones(3), RuntimeError),
        (lambda t: t.ones(2) & t.ones(2), NotImplementedError),
        (lambda t: t.tensor([1j]) < 1, NotImplementedError),
        (lambda t: t.tensor([2]) ** -1, RuntimeError),
        (lambda t: t.ones(1).add_(t.ones(3)), RuntimeError),
        (lambda t: t.ones(2).index_add_(0, t.tensor([0]), t.ones(2)), RuntimeError),
        (lambda t: t.ones(2).fill_(t.ones(2)), RuntimeError),
    ],
)
def test_errors(torch, read, error):
    with pytest.raises(error):
        read(torch)


def test_iteration_and_membership(torch):
    x = torch.arange(4).view(2, 2)
    assert [row.tolist() for row in x] == [[0, 1], [2, 3]]
    assert len(x) == 2
    assert 3 in x
    assert 5 not in x
    for row in x:
        row.zero_()
    assert x.tolist() == [[0, 0], [0, 0]]


def test_equality_with_other_types(torch):
    x = torch.ones(1)
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True
    assert len({x, x}) == 1


def test_reflected_operators(torch):
    x = torch.tensor([1.0, 2.0])
    assert (1 + x).tolist() == [2, 3]
    assert (1 - x).tolist() == [0, -1]
    assert (2 / x).tolist() == [2, 1]
    assert (2**x).tolist() == [2, 4]
    assert (5 // x).tolist() == [5, 2]
    assert (5 % x).tolist() == [0, 1]
    assert (1 & torch.tensor([3])).tolist() == [1]
