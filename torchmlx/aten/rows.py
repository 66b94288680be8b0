"""Rows and elements by number, without looking at the numbers."""

from __future__ import annotations

import mlx.core as mx

from ..core.op import op


@op("ops.take_rows", at=("ops",))
def take_rows(x, indices):
    """x[indices] along the first axis, for integer indices in range; -1 is the last row.

    Indexing looks at the indices to raise IndexError, which waits for the device and cannot be
    compiled; here what lies out of range is undefined, as in mlx.core.take.
    """
    return mx.take(x, indices, axis=0)


@op("ops.take_along", at=("ops",))
def take_along(x, indices):
    """x's elements at integer indices along the last axis, as torch.gather of dim -1 and the same
    other axes; of indices out of range see take_rows."""
    return mx.take_along_axis(x, indices, axis=-1)


@op("ops.put_along", at=("ops",))
def put_along(x, indices, values):
    """x with `values`, of x's dtype, at integer indices along the last axis, as torch.scatter of
    dim -1 and the same other axes; of indices out of range or given twice see take_rows."""
    return mx.put_along_axis(x, indices, values, axis=-1)
