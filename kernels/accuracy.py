"""How close a result must be to a kernel's float64 reference: one rule for tests and benchmarks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

# A largest error over ten times the root mean square bound is a wrong element, not rounding.
WORST = 10.0


@dataclass(frozen=True)
class Verdict:
    """nmse: mean square error over mean square of the reference, on its finite elements.

    limit: what was allowed: the kernel's bound plus the nmse of rounding the reference itself.
    worst: largest error over the largest finite reference. fault: what is wrong, or "".
    """

    nmse: float
    limit: float
    worst: float
    fault: str


def to_numpy(x: mx.array | None) -> Any:
    """float64 values of a floating array of any dtype, others as they are; None stays None."""
    if x is None or not mx.issubdtype(x.dtype, mx.floating):
        return None if x is None else np.array(x)
    return np.array(x if x.dtype == mx.float64 else x.astype(mx.float32), dtype=np.float64)


def bound(nmse: Mapping[str, float], dtype: mx.Dtype) -> float:
    """The bound for a result of `dtype`, from dtype names; integers must be exact."""
    return nmse[str(dtype).rpartition(".")[2]] if mx.issubdtype(dtype, mx.floating) else 0.0


def judge(got: mx.array, want: np.ndarray, bound: float) -> Verdict:
    """Compare `got` (any floating dtype) with the float64 reference `want` of the same shape."""
    if got.shape != want.shape:
        return Verdict(np.inf, bound, np.inf, f"shape {got.shape}, not {want.shape}")
    rounded = to_numpy(mx.array(want.astype(np.float32)).astype(got.dtype))
    values = to_numpy(got)
    finite = np.isfinite(rounded)
    if not np.array_equal(values[~finite], rounded[~finite], equal_nan=True):
        return Verdict(np.inf, bound, np.inf, "NaN or infinity in other places")
    limit = bound + _nmse(rounded[finite], want[finite])
    nmse = _nmse(values[finite], want[finite])
    worst = _worst(values[finite], want[finite])
    fault = ""
    if not nmse <= limit:
        fault = f"nmse {nmse:.3g} over {limit:.3g}"
    elif not worst <= WORST * np.sqrt(limit):
        fault = f"one element off by {worst:.3g} of the largest"
    return Verdict(nmse, limit, worst, fault)


def _nmse(values: np.ndarray, want: np.ndarray) -> float:
    error, power = np.square(values - want).sum(), np.square(want).sum()
    return float(error / power) if power else float(np.inf if error else 0.0)


def _worst(values: np.ndarray, want: np.ndarray) -> float:
    if not want.size:
        return 0.0
    return float(np.abs(values - want).max() / max(np.abs(want).max(), np.finfo(float).tiny))
