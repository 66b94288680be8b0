"""NumPy and a tensor see each other's writes, as long as either side is alive."""

from __future__ import annotations

import gc

import numpy as np
import pytest


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "int64", "uint8", "bool", "complex64", "float16"]
)
def test_numpy_shares_both_ways(torch, dtype):
    x = torch.zeros(3).to(getattr(torch, dtype))
    a = x.numpy()
    assert a.dtype.name == dtype
    a[0] = 1
    x[2] = 1
    assert x.tolist() == [1, 0, 1]
    assert a.tolist() == [1, 0, 1]


def test_from_numpy_shares_both_ways(torch):
    a = np.arange(6.0).reshape(2, 3)
    x = torch.from_numpy(a)
    a[0, 0] = 10
    x[1].mul_(2)
    assert x.tolist() == [[10, 1, 2], [6, 8, 10]]
    assert a.tolist() == [[10, 1, 2], [6, 8, 10]]
    assert x.dtype == torch.float64


def test_views_share_too(torch):
    x = torch.zeros(2, 3)
    a = x.t()[1:].numpy()
    a[0, 1] = 5
    assert x.tolist() == [[0, 0, 0], [0, 5, 0]]
    x[0, 2] = 7
    assert a.tolist() == [[0, 5], [7, 0]]
    assert a.strides == (4, 12)


def test_reinterpreted_views_share(torch):
    z = torch.zeros(2, dtype=torch.complex64)
    torch.view_as_real(z).numpy()[1, 0] = 3
    z.imag.numpy()[0] = 4
    assert z.tolist() == [4j, 3]
    x = torch.zeros(2)
    x.view(torch.int32).numpy()[0] = 0x3F800000
    assert x.tolist() == [1, 0]


def test_a_view_read_before_sees_later_writes_of_numpy(torch):
    x = torch.zeros(3)
    view = x[1:]
    a = x.numpy()
    assert view.tolist() == [0, 0]
    a[2] = 9
    assert view.tolist() == [0, 9]
    a[1] = 8
    del a
    assert x.tolist() == [0, 8, 9]
    assert view.tolist() == [8, 9]


def test_memory_outlives_either_side(torch):
    x = torch.ones(3)
    a = x.numpy()
    del x
    gc.collect()
    a[0] = 5
    assert a.tolist() == [5, 1, 1]
    y = torch.from_numpy(a)
    del a
    gc.collect()
    y.add_(1)
    assert y.tolist() == [6, 2, 2]


def test_strided_and_fortran_arrays(torch):
    a = np.asfortranarray(np.arange(6).reshape(2, 3))
    x = torch.from_numpy(a)
    assert (x.stride(), x.tolist()) == ((1, 2), [[0, 1, 2], [3, 4, 5]])
    b = np.arange(10)[::3]
    y = torch.from_numpy(b)
    assert (y.stride(), y.tolist()) == ((3,), [0, 3, 6, 9])
    y[1] = -1
    assert b.tolist() == [0, -1, 6, 9]


def test_what_cannot_be_shared(torch):
    with pytest.raises(ValueError):
        torch.from_numpy(np.arange(3)[::-1])
    with pytest.raises(TypeError):
        torch.from_numpy(np.array(["a"]))
    with pytest.raises(TypeError):
        torch.from_numpy([1])
    with pytest.raises(TypeError):
        torch.ones(1, dtype=torch.bfloat16).numpy()
    with pytest.raises(RuntimeError, match="requires grad"):
        torch.ones(1, requires_grad=True).numpy()


def test_tensor_copies_and_as_tensor_shares(torch):
    a = np.zeros(2, np.float32)
    copied, shared = torch.tensor(a), torch.as_tensor(a)
    a[0] = 1
    assert copied.tolist() == [0, 0]
    assert shared.tolist() == [1, 0]


def test_numpy_scalars_are_numbers(torch):
    x = torch.ones(2)
    for scalar in (np.float32(2), np.float64(2), np.int64(2)):
        for result in (x * scalar, scalar * x, torch.mul(x, scalar)):
            assert (result.dtype, result.tolist()) == (torch.float32, [2, 2])
    assert torch.tensor(np.float64(0.1)).dtype == torch.float64


def test_np_asarray(torch):
    assert np.asarray(torch.ones(2), dtype=np.float64).tolist() == [1, 1]
    assert np.array(torch.arange(3)).tolist() == [0, 1, 2]
