"""Rows by number, without looking at the numbers."""

from __future__ import annotations

import mlx.core as mx

from ..core.op import op


@op("ops.take_rows", at=("ops",))
def take_rows(x, indices):
    """x[indices] along the first axis, for integer indices that are in range and not negative.

    Indexing looks at the indices to raise IndexError, which waits for the device and cannot be
    compiled; here what lies out of range is undefined, as in mlx.core.take.
    """
    return mx.take(x, indices, axis=0)
