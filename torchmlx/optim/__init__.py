"""torch.optim."""

from __future__ import annotations

from . import lr_scheduler
from .adaptive import Adam, Adamax, AdamW, NAdam, RAdam
from .classic import ASGD, Rprop
from .lbfgs import LBFGS
from .momentum import SGD, Adadelta, Adagrad, RMSprop
from .muon import Muon
from .optimizer import Optimizer

__all__ = [
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam",
    "Optimizer", "RAdam", "RMSprop", "Rprop", "SGD", "lr_scheduler",
]  # fmt: skip
