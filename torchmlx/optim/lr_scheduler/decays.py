"""Schedules that multiply the learning rate by a factor each epoch.

They change what the group has now, so that they can be chained, and that a learning rate set by
hand stays; `_get_closed_form_lr` answers for an epoch that is jumped to.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter

from .base import ByFunction, LRScheduler, current


class LambdaLR(ByFunction):
    """The first learning rate times a function of the epoch."""

    def get_lr(self):
        pairs = zip(self.lr_lambdas, self.base_lrs, strict=True)
        return [base * function(self.last_epoch) for function, base in pairs]


class MultiplicativeLR(ByFunction):
    """The last learning rate times a function of the epoch."""

    def get_lr(self):
        lrs = current(self.optimizer)
        if self._is_initial:
            return lrs
        pairs = zip(self.lr_lambdas, lrs, strict=True)
        return [lr * function(self.last_epoch) for function, lr in pairs]


class _Factor(LRScheduler):
    """A factor a step, and the product of all factors so far."""

    def factor(self, epoch: int) -> float:
        """What the learning rate is multiplied with as `epoch` begins."""
        raise NotImplementedError

    def product(self, epoch: int) -> float:
        """The first learning rate's multiple in `epoch`."""
        raise NotImplementedError

    def get_lr(self):
        factor = self.factor(self.last_epoch)
        return [lr * factor for lr in current(self.optimizer)]

    def _get_closed_form_lr(self):
        product = self.product(self.last_epoch)
        return [base * product for base in self.base_lrs]


class StepLR(_Factor):
    """Times gamma every step_size epochs."""

    def __init__(self, optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1):
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def factor(self, epoch):
        return 1.0 if epoch == 0 or epoch % self.step_size else self.gamma

    def product(self, epoch):
        return self.gamma ** (epoch // self.step_size)


class MultiStepLR(_Factor):
    """Times gamma at each milestone."""

    def __init__(self, optimizer, milestones, gamma: float = 0.1, last_epoch: int = -1):
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def factor(self, epoch):
        return self.gamma ** self.milestones[epoch] if epoch in self.milestones else 1.0

    def product(self, epoch):
        return self.gamma ** bisect_right(sorted(self.milestones.elements()), epoch)


class ConstantLR(_Factor):
    """Times factor during the first total_iters epochs."""

    def __init__(self, optimizer, factor=1.0 / 3, total_iters: int = 5, last_epoch: int = -1):
        if not 0 <= factor <= 1.0:
            raise ValueError("Constant multiplicative factor expected to be between 0 and 1.")
        self._factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def factor(self, epoch):
        if epoch == 0:
            return self._factor
        return 1.0 / self._factor if epoch == self.total_iters else 1.0

    def product(self, epoch):
        return 1.0 if epoch >= self.total_iters else self._factor


class LinearLR(_Factor):
    """From start_factor to end_factor in total_iters epochs."""

    def __init__(
        self, optimizer, start_factor=1.0 / 3, end_factor=1.0, total_iters=5, last_epoch=-1
    ):
        if not 0 < start_factor <= 1.0:
            raise ValueError(
                "Starting multiplicative factor expected to be greater than 0 and less or equal "
                "to 1."
            )
        if not 0 <= end_factor <= 1.0:
            raise ValueError("Ending multiplicative factor expected to be between 0 and 1.")
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def factor(self, epoch):
        if epoch == 0:
            return self.start_factor
        if self._is_initial or epoch > self.total_iters:
            return 1.0
        rise = self.end_factor - self.start_factor
        return 1.0 + rise / (self.total_iters * self.start_factor + (epoch - 1) * rise)

    def product(self, epoch):
        done = min(self.total_iters, epoch) / self.total_iters
        return self.start_factor + (self.end_factor - self.start_factor) * done


class ExponentialLR(_Factor):
    """Times gamma each epoch."""

    def __init__(self, optimizer, gamma: float, last_epoch: int = -1):
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def factor(self, epoch):
        return 1.0 if self._is_initial else self.gamma

    def product(self, epoch):
        return self.gamma**epoch


class PolynomialLR(_Factor):
    """(1 - epoch / total_iters) ** power, 0 from total_iters on."""

    def __init__(self, optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1):
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def factor(self, epoch):
        if self._is_initial or epoch > self.total_iters:
            return 1.0
        left = 1.0 - epoch / self.total_iters
        return (left / (1.0 - (epoch - 1) / self.total_iters)) ** self.power

    def product(self, epoch):
        return (1.0 - min(self.total_iters, epoch) / self.total_iters) ** self.power


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the first learning rate to eta_min in T_max epochs, and back."""

    def __init__(self, optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1):
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        lrs, epoch, low = current(self.optimizer), self.last_epoch, self.eta_min
        if self._is_initial:
            return lrs
        if self._step_count == 1 and epoch > 0:
            return self._get_closed_form_lr()
        pairs = zip(lrs, self.base_lrs, strict=True)
        if (epoch - 1 - self.T_max) % (2 * self.T_max) == 0:  # away from the bottom: 0 / 0
            first = (1 - math.cos(math.pi / self.T_max)) / 2
            return [lr + (base - low) * first for lr, base in pairs]
        before = 1 + math.cos(math.pi * (epoch - 1) / self.T_max)
        ratio = (1 + math.cos(math.pi * epoch / self.T_max)) / before
        return [ratio * (lr - low) + low for lr in lrs]

    def _get_closed_form_lr(self):
        share = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]
