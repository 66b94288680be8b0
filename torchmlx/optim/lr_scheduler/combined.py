"""Schedules made of others, and the one that watches a metric."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

from .base import LRScheduler, current, for_each_group, set_lr


def _check_parts(name: str, optimizer, schedulers) -> None:
    if len(schedulers) < 1:
        raise ValueError(f"{name} expects at least one scheduler, but got no scheduler.")
    for i, s in enumerate(schedulers):
        if not hasattr(s, "optimizer"):
            raise TypeError(f"{name} at index {i} should have `optimizer` as its attribute.")
        if isinstance(s, ReduceLROnPlateau):
            raise ValueError(
                f"{name} does not support `ReduceLROnPlateau` scheduler as it requires additional "
                f"kwargs to be specified when calling `step`, but got one at index {i} in the "
                "given schedulers sequence."
            )
        if s.optimizer is not optimizer:
            raise ValueError(
                f"{name} expects all schedulers to belong to the same optimizer, but got scheduler "
                f"{type(s).__name__} at index {i} has {s.optimizer}, which is different from "
                f"{type(optimizer).__name__}."
            )


class _Parts(LRScheduler):
    """A schedule that keeps others."""

    _hidden = ("_schedulers",)
    _schedulers: list[LRScheduler]

    def state_dict(self) -> dict[str, Any]:
        parts = [s.state_dict() for s in self._schedulers]
        return super().state_dict() | {"_schedulers": parts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = self._schedulers
        super().load_state_dict(state_dict)
        self._schedulers = own
        for s, part in zip(own, state_dict["_schedulers"], strict=True):
            s.load_state_dict(part)


class SequentialLR(_Parts):
    """One schedule after the other; each starts at its milestone."""

    def __init__(self, optimizer, schedulers, milestones, last_epoch: int = -1):
        _check_parts("SequentialLR", optimizer, schedulers)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than "
                f"the number of milestone points, but got number of schedulers {len(schedulers)} "
                f"and the number of milestones to be equal to {len(milestones)}"
            )
        self.optimizer, self._schedulers = optimizer, schedulers
        self._milestones, self.last_epoch = milestones, last_epoch + 1
        for group in optimizer.param_groups:
            set_lr(group, group["initial_lr"])
        _undo(schedulers)  # each has made its first step already
        first = schedulers[bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        self.last_epoch += 1
        i = bisect_right(self._milestones, self.last_epoch)
        active = self._schedulers[i]
        if i > 0 and self._milestones[i - 1] == self.last_epoch:
            active._update_lr(0)
        else:
            active.step()
        self._last_lr = active.get_last_lr()


def _undo(schedulers) -> None:
    for s in schedulers:
        if hasattr(s, "_schedulers"):
            _undo(s._schedulers)
        else:
            s.last_epoch -= 1


class ChainedScheduler(_Parts):
    """All schedules at once, each on what the others left."""

    def __init__(self, schedulers, optimizer=None):
        if len(schedulers) < 1:
            raise ValueError(
                "ChainedScheduler expects at least one scheduler to be chained, but got no "
                "scheduler."
            )
        self.optimizer = optimizer or schedulers[0].optimizer
        _check_parts("ChainedScheduler", self.optimizer, schedulers)
        self._schedulers = list(schedulers)
        self._last_lr = current(self.optimizer)

    def step(self, epoch: int | None = None) -> None:
        for s in self._schedulers:
            s.step()
        self._last_lr = current(self.optimizer)


class ReduceLROnPlateau(LRScheduler):
    """Times factor once a metric has not improved for `patience` epochs."""

    def __init__(
        self, optimizer, mode="min", factor=0.1, patience=10, threshold=1e-4, threshold_mode="rel",
        cooldown=0, min_lr=0, eps=1e-8,
    ):  # fmt: skip
        if factor >= 1.0:
            raise ValueError("Factor should be < 1.0.")
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown!")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown!")
        self.optimizer, self.factor, self.eps = optimizer, factor, eps
        self.min_lrs = for_each_group("min_lr", optimizer, min_lr)
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.mode_worse = math.inf if mode == "min" else -math.inf
        self.patience, self.cooldown = patience, cooldown
        self.last_epoch = 0
        self._last_lr = current(optimizer)
        self._reset()

    def _reset(self) -> None:
        self.best, self.cooldown_counter, self.num_bad_epochs = self.mode_worse, 0, 0

    @property
    def in_cooldown(self) -> bool:
        return self.cooldown_counter > 0

    def is_better(self, value: float, best: float) -> bool:
        """Whether the metric has improved by more than the threshold."""
        sign = 1 if self.mode == "max" else -1
        if self.threshold_mode == "rel":
            bound = best * (1.0 + sign * self.threshold)
        else:
            bound = best + sign * self.threshold
        return value > bound if self.mode == "max" else value < bound

    def step(self, metrics, epoch: int | None = None) -> None:  # type: ignore[override]
        """An epoch ended with this metric."""
        value = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.is_better(value, self.best):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = current(self.optimizer)

    def _reduce(self) -> None:
        for group, low in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
            old = float(group["lr"])
            new = max(old * self.factor, low)
            if old - new > self.eps:
                set_lr(group, new)
