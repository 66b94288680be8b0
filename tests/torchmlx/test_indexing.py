"""x[...] and x[...] = v: what makes a view, what gathers, and which errors come."""

from __future__ import annotations

import math

import numpy as np
import pytest


def grid(torch):
    return torch.arange(12).view(3, 4)


def test_ints_slices_none_and_ellipsis_are_views(torch):
    x = grid(torch)
    assert x[1, 2].item() == 6
    assert x[-1].tolist() == [8, 9, 10, 11]
    assert x[:, 1:3].tolist() == [[1, 2], [5, 6], [9, 10]]
    assert x[..., -1].tolist() == [3, 7, 11]
    assert x[None].shape == (1, 3, 4)
    assert x[:, None, 2].tolist() == [[2], [6], [10]]
    assert x[5:].shape == (0, 4)
    x[0, ...] = 0
    assert x[0].tolist() == [0, 0, 0, 0]


def test_index_tensors_copy(torch):
    x = grid(torch)
    picked = x[torch.tensor([2, -3])]
    picked.zero_()
    assert x[2].tolist() == [8, 9, 10, 11]
    assert x[torch.tensor([0, 1]), torch.tensor([3, 2])].tolist() == [3, 6]
    assert x[[0, 2], 1].tolist() == [1, 9]
    assert x[:, torch.tensor([[0], [3]])].shape == (3, 2, 1)
    assert x[torch.tensor(1)].tolist() == [4, 5, 6, 7]


def test_separated_index_tensors_come_first(torch):
    x = torch.arange(24).view(2, 3, 4)
    i = torch.tensor([0, 1])
    assert x[i, :, i].tolist() == [[0, 4, 8], [13, 17, 21]]
    assert x[:, i, i].tolist() == [[0, 5], [12, 17]]
    assert x[i, None, i].shape == (2, 1, 4)


def test_a_list_that_holds_sequences_is_a_tuple(torch):
    x = grid(torch)
    assert x[[[0, 1], [1, 2]]].tolist() == [1, 6]
    assert x[[slice(0, 1), 1]].tolist() == [1]


def test_masks(torch):
    x = grid(torch)
    assert x[x > 8].tolist() == [9, 10, 11]
    assert x[torch.tensor([True, False, True])].tolist() == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert x[:, torch.tensor([False, True, False, True])].tolist() == [[1, 3], [5, 7], [9, 11]]
    x[x % 2 == 0] = -1
    assert x.tolist() == [[-1, 1, -1, 3], [-1, 5, -1, 7], [-1, 9, -1, 11]]
    x[x < 0] = torch.arange(6)
    assert x[:, 0].tolist() == [0, 2, 4]
    assert x[torch.zeros(3, dtype=torch.bool)].shape == (0, 4)
    assert x[True].shape == (1, 3, 4)
    assert torch.tensor(5)[torch.tensor(True)].tolist() == [5]


def test_nonzero(torch):
    x = torch.tensor([[0, 1], [2, 0]])
    assert x.nonzero().tolist() == [[0, 1], [1, 0]]
    assert x.nonzero().dtype == torch.int64
    assert [c.tolist() for c in x.nonzero(as_tuple=True)] == [[0, 1], [1, 0]]
    assert torch.where(x > 0)[0].tolist() == [0, 1]


def test_assignment_casts_views_and_checks_gathers(torch):
    x = torch.zeros(3)
    x[0] = torch.tensor(2, dtype=torch.int64)
    x[1:] = torch.tensor([True, False])
    assert x.tolist() == [2, 1, 0]
    with pytest.raises(RuntimeError, match="dtypes match"):
        x[torch.tensor([0])] = torch.tensor([1])
    x[torch.tensor([0, 2])] = 5
    assert x.tolist() == [5, 1, 5]


def test_assignment_broadcasts_and_drops_leading_ones(torch):
    x = torch.zeros(2, 3)
    x[:, 1] = torch.tensor([[4.0, 5.0]])
    x[0] = torch.tensor([[1.0, 2.0, 3.0]])
    assert x.tolist() == [[1, 2, 3], [0, 5, 0]]
    with pytest.raises(RuntimeError):
        x[0] = torch.ones(2)


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (5, IndexError), (-4, IndexError), ((0, 4), IndexError), ((0, 0, 0), IndexError),
        (slice(None, None, -1), ValueError), (slice(None, None, 0), ValueError),
        (1.5, IndexError), ("a", TypeError),
    ],
)  # fmt: skip
def test_bad_indices(torch, index, error):
    with pytest.raises(error):
        grid(torch)[index]


def test_an_index_tensor_out_of_range_is_an_error(torch):
    x = grid(torch)
    for bad in (3, -4, 2**31, 2**40):
        with pytest.raises(IndexError, match="out of bounds"):
            x[torch.tensor([0, bad])]
        with pytest.raises(IndexError):
            x[torch.tensor([0, bad])] = 0
    with pytest.raises(IndexError):
        x.index_select(0, torch.tensor([3]))
    with pytest.raises(RuntimeError):
        x.gather(0, torch.tensor([[3]]))
    with pytest.raises(RuntimeError):
        x.scatter(0, torch.tensor([[3]]), 1)
    with pytest.raises(IndexError):
        x[torch.tensor([True, False])]
    with pytest.raises(IndexError):
        x[torch.tensor([0.5])]


def test_gather_scatter_and_the_index_family(torch):
    x = grid(torch)
    assert x.gather(1, torch.tensor([[3, 0], [1, 1], [2, 2]])).tolist() == [
        [3, 0],
        [5, 5],
        [10, 10],
    ]
    assert x.index_select(1, torch.tensor([2, 0])).tolist() == [[2, 0], [6, 4], [10, 8]]
    assert x.take(torch.tensor([11, -12])).tolist() == [11, 0]
    y = torch.zeros(2, 3)
    y.scatter_(1, torch.tensor([[2], [0]]), torch.tensor([[1.0], [2.0]]))
    y.scatter_add_(1, torch.tensor([[2, 2], [1, 1]]), torch.ones(2, 2))
    assert y.tolist() == [[0, 0, 3], [2, 2, 0]]
    y.index_add_(1, torch.tensor([0, 0]), torch.ones(2, 2), alpha=2)
    y.index_copy_(0, torch.tensor([1]), torch.tensor([[7.0, 8.0, 9.0]]))
    y.index_fill_(1, torch.tensor([1]), -1)
    assert y.tolist() == [[4, -1, 3], [7, -1, 9]]
    y.index_put_((torch.tensor([0, 0]), torch.tensor([0, 0])), torch.ones(2), accumulate=True)
    assert y[0, 0] == 6


def test_empty_writes_and_reads(torch):
    x = torch.zeros(0, 3)
    x[torch.tensor([], dtype=torch.int64)] = 1
    x.index_fill_(1, torch.tensor([0]), 2)
    assert x[:, torch.tensor([0])].shape == (0, 1)
    assert torch.zeros(2)[torch.tensor([], dtype=torch.int64)].shape == (0,)
    assert torch.zeros(2)[[]].shape == (0,)


def test_numpy_integers_and_arrays_as_indices(torch):
    x = grid(torch)
    assert x[np.int64(1), np.array([0, 2])].tolist() == [4, 6]
    assert x[np.array([True, False, False])].tolist() == [[0, 1, 2, 3]]


def test_float_values_survive_masks(torch):
    x = torch.tensor([1.0, math.inf, -2.0])
    x[torch.isinf(x)] = 0.0
    assert x.masked_select(x < 0).tolist() == [-2]
    assert x.masked_fill(x == 0, math.nan).isnan().tolist() == [False, True, False]


def test_a_non_number_cannot_be_assigned(torch):
    for value in ([1, 2], np.ones(2), "a", None):
        with pytest.raises(TypeError):
            torch.zeros(2)[:] = value
