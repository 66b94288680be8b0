"""Tests that take `torch` run twice, on torchmlx and on torch 2.13 CPU: literals are torch's."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["torchmlx", "torch"])
def torch(request):
    """torchmlx, and torch where it is importable."""
    return pytest.importorskip(request.param)
