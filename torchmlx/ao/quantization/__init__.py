"""torch.ao.quantization: the stubs of models that can be quantised. Integers are not here."""

from __future__ import annotations

from typing import Any

from ...nn.modules.module import Module

__all__ = ["DeQuantStub", "QuantStub"]


class QuantStub(Module):
    """Where quantising would begin: gives back what it gets, as in torch before `convert`."""

    def __init__(self, qconfig: Any = None) -> None:
        super().__init__()
        if qconfig:
            self.qconfig = qconfig

    def forward(self, x):
        return x


class DeQuantStub(QuantStub):
    """Where quantising would end: gives back what it gets, as in torch before `convert`."""
