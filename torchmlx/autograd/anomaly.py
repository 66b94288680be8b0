"""torch.autograd.detect_anomaly: the backward pass stops where NaN arises."""

from __future__ import annotations

from . import engine


class set_detect_anomaly:
    """Turn the check for NaN on or off; as a context manager, until its end."""

    def __init__(self, mode: bool, check_nan: bool = True):
        self._before = engine.checking.nan
        engine.checking.nan = bool(mode) and check_nan

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        engine.checking.nan = self._before


class detect_anomaly(set_detect_anomaly):
    """Inside, a gradient that is NaN raises and names the operation."""

    def __init__(self, check_nan: bool = True):
        super().__init__(True, check_nan)
