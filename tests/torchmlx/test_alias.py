"""Aliases share a mutable cell: what one handle writes, the others read (facade.md section 2)."""

from __future__ import annotations

import copy
import pickle


def test_data_is_the_same_storage(torch):
    p = torch.zeros(3)
    p.data.add_(2)
    p.data[0] = 7
    assert p.tolist() == [7, 2, 2]
    assert p.data is not p


def test_assigning_data_rebinds_to_another_storage(torch):
    p, other = torch.zeros(2), torch.ones(2)
    view = p[0:1]
    p.data = other
    other.mul_(5)
    assert p.tolist() == [5, 5]
    assert view.tolist() == [0]


def test_detach_shares_both_ways(torch):
    x = torch.arange(4.0)
    y = x.detach()
    y[1] = 10
    x[2] = 20
    assert x.tolist() == y.tolist() == [0, 10, 20, 3]
    assert y.data_ptr() == x.data_ptr()


def test_a_dictionary_of_detached_entries_writes_to_the_originals(torch):
    weight = torch.zeros(2, 2)
    entries = {"weight": weight.detach()}
    entries["weight"].copy_(torch.arange(4.0).view(2, 2))
    assert weight.tolist() == [[0, 1], [2, 3]]


def test_operations_that_return_self_return_the_same_object(torch):
    x = torch.ones(2, 2)
    assert x.to(torch.float32) is x
    assert x.contiguous() is x
    assert x.flatten(0, 0) is x
    assert x.add_(1) is x
    assert x.to(torch.float64) is not x


def test_a_write_raises_the_version_of_every_alias(torch):
    x = torch.zeros(3)
    y = x[1:]
    before = x._version
    y.fill_(1)
    assert x._version == y._version == before + 1


def test_set_makes_a_tensor_another_handle(torch):
    x, y = torch.zeros(2), torch.ones(3)
    x.set_(y)
    y[0] = 4
    assert x.tolist() == [4, 1, 1]


def test_copy_shares_and_deepcopy_does_not(torch):
    x = torch.zeros(2)
    copy.copy(x).fill_(3)
    assert x.tolist() == [3, 3]
    copy.deepcopy(x).fill_(9)
    assert x.tolist() == [3, 3]


def test_deepcopy_keeps_sharing_inside_what_is_copied(torch):
    x = torch.arange(6.0).view(2, 3)
    whole, row, turned = copy.deepcopy([x, x[0], x.t()])
    whole[0, 0] = 99
    assert row.tolist() == [99, 1, 2]
    assert turned.tolist() == [[99, 3], [1, 4], [2, 5]]
    assert turned.stride() == (1, 3)
    assert x[0, 0] == 0


def test_pickle_keeps_values_dtype_and_layout(torch):
    x = torch.arange(6, dtype=torch.bfloat16).view(2, 3).t()
    y = pickle.loads(pickle.dumps(x))
    assert y.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert (y.dtype, y.stride()) == (torch.bfloat16, (1, 3))


def test_untyped_storage_identifies_shared_memory(torch):
    x = torch.ones(4)
    assert x[1:].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert x.clone().untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert x.untyped_storage().nbytes() == 16
    assert x[1:].data_ptr() - x.data_ptr() == 4
