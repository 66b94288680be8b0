"""torch.optim."""

from __future__ import annotations

from . import lr_scheduler, swa_utils
from .adafactor import Adafactor
from .adaptive import Adam, Adamax, AdamW, NAdam, RAdam
from .classic import ASGD, Rprop
from .lbfgs import LBFGS
from .momentum import SGD, Adadelta, Adagrad, RMSprop
from .muon import Muon
from .optimizer import Optimizer

__all__ = [
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam",
    "Optimizer", "RAdam", "RMSprop", "Rprop", "SGD", "lr_scheduler", "swa_utils",
]  # fmt: skip
