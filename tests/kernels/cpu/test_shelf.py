"""Weights in huge pages: their values, where they lie, and when their memory goes."""

import gc

import mlx.core as mx
import numpy as np
import pytest

from torchmlx.kernels import native
from torchmlx.shelf import FEW, SLAB, Shelf


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    shapes = [(3, 5), (), (0, 4), (1000, 1001), (7,), (129, 4099), (SLAB // 6, 3)]
    return [
        mx.array(rng.integers(0, 255, shape, np.uint8)).astype(dtype)
        for shape in shapes
        for dtype in (mx.uint8, mx.bfloat16, mx.float32)
        if shape[0:1] != (SLAB // 6,) or dtype == mx.uint8
    ]


def address(array: mx.array) -> int:
    return np.array(array.view(mx.uint8), copy=False).ctypes.data


def test_arrays_keep_their_values(arrays):
    shelf = Shelf(sum(array.nbytes for array in arrays))
    placed = [shelf.put(array) for array in arrays]
    for old, new in zip(arrays, placed, strict=True):
        assert new.dtype == old.dtype
        np.testing.assert_array_equal(np.array(new.astype(mx.float32)), old.astype(mx.float32))


def test_arrays_follow_one_another(extension):
    shelf = Shelf(SLAB)
    x = mx.arange(100_000, dtype=mx.float32)
    places = [address(shelf.put(x)) for _ in range(3)]
    assert places[0] % (2 << 20) == 0
    assert places[1] - places[0] == places[2] - places[1] == 400_000
    assert address(shelf.put(mx.ones(SLAB // 4))) % (2 << 20) == 0


def test_another_order_in_memory_becomes_rows(extension):
    x = mx.arange(6).reshape(2, 3)
    assert mx.array_equal(Shelf(SLAB).put(x.T), x.T)


def test_few_bytes_stay_where_they_are():
    x = mx.ones(10)
    mx.eval(x)
    assert Shelf(FEW - 1).put(x) is x


def test_memory_goes_with_the_last_array(extension):
    gc.collect()
    before = mx.get_active_memory()
    shelf = Shelf(SLAB)
    placed = [shelf.put(mx.ones(1 << 20, mx.uint8)) for _ in range(4)]
    assert mx.get_active_memory() - before >= SLAB
    del shelf
    last = placed.pop()
    del placed
    assert mx.get_active_memory() - before >= SLAB
    assert last.sum().item() == 1 << 20
    del last
    assert mx.get_active_memory() - before < SLAB // 2


def test_what_does_not_fit_is_refused(extension):
    module = native.load()[0]
    memory = module.in_huge_pages([64], mx.uint8)
    with pytest.raises(ValueError, match="does not fit"):
        module.place(mx.ones(4), memory, 60)
