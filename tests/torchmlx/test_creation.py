"""Tensors from data, constants and ranges."""

from __future__ import annotations

import warnings

import pytest


def test_dtypes_follow_the_data(torch):
    assert torch.tensor([1, 2]).dtype == torch.int64
    assert torch.tensor([1, 2.5]).tolist() == [1, 2.5]
    assert torch.tensor([True, False]).dtype == torch.bool
    assert torch.tensor([1j]).dtype == torch.complex64
    assert torch.tensor([]).dtype == torch.float32
    assert torch.tensor([[], []]).shape == (2, 0)
    assert torch.tensor([torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]


def test_numbers_are_rounded_once(torch):
    assert torch.tensor(0.1, dtype=torch.float64).item() == 0.1
    assert torch.tensor(2**53 + 1).item() == 2**53 + 1
    assert torch.tensor(16777217, dtype=torch.float32).item() == 16777216
    assert torch.tensor([2.7, -2.7], dtype=torch.int32).tolist() == [2, -2]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda t: t.tensor([[1], [1, 2]]), ValueError),
        (lambda t: t.tensor("a"), TypeError),
        (lambda t: t.tensor(2**63), ValueError),
        (lambda t: t.tensor(1j, dtype=t.float32), TypeError),
        (lambda t: t.tensor(object()), RuntimeError),
        (lambda t: t.zeros(-1), RuntimeError),
        (lambda t: t.arange(3, 0), RuntimeError),
        (lambda t: t.zeros(), TypeError),
    ],
)
def test_errors(torch, make, error):
    with pytest.raises(error):
        make(torch)


def test_constants(torch):
    assert torch.zeros(2, 1).tolist() == [[0], [0]]
    assert torch.ones((2,), dtype=torch.int8).tolist() == [1, 1]
    assert torch.full((2,), 7).dtype == torch.int64
    assert torch.full((2,), 0.5).tolist() == [0.5, 0.5]
    assert torch.full((1,), True).dtype == torch.bool
    assert torch.zeros(size=(3,)).shape == (3,)
    assert torch.eye(2, 3).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert torch.empty(3).shape == (3,)


def test_like_and_new(torch):
    x = torch.zeros(2, 3, dtype=torch.float16)
    assert torch.ones_like(x).dtype == torch.float16
    assert torch.full_like(x, 2, dtype=torch.int64).tolist() == [[2] * 3] * 2
    assert x.new_zeros(2, 1).dtype == torch.float16
    assert x.new_tensor([1, 2]).dtype == torch.float16
    assert x.new_full((1,), 3).tolist() == [3]


def test_ranges(torch):
    assert torch.arange(3).tolist() == [0, 1, 2]
    assert torch.arange(5, 0, -2).tolist() == [5, 3, 1]
    assert torch.arange(0, 1, 0.25).tolist() == [0, 0.25, 0.5, 0.75]
    assert torch.arange(3, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert torch.linspace(0, 1, 5).tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert torch.linspace(3, 3, 1).tolist() == [3]
    assert torch.logspace(0, 2, 3).tolist() == [1, 10, 100]


def test_a_tensor_of_a_tensor_is_a_copy(torch):
    x = torch.zeros(2)
    with warnings.catch_warnings(action="ignore"):  # torch advises clone().detach()
        y = torch.tensor(x)
    y.fill_(1)
    assert x.tolist() == [0, 0]


def test_legacy_constructor(torch):
    assert torch.Tensor(2, 3).shape == (2, 3)
    assert torch.Tensor([1, 2]).tolist() == [1, 2]
    assert torch.Tensor([1, 2]).dtype == torch.float32
    assert torch.Tensor().shape == (0,)


def test_out(torch):
    out = torch.zeros(2)
    assert torch.add(torch.ones(2), 1, out=out) is out
    assert out.tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(torch.ones(2), 1, out=torch.zeros(2, dtype=torch.int64))
