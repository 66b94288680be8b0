"""The base of the schedulers: which epoch it is, and the learning rates of the groups."""

from __future__ import annotations

import functools
import types
import warnings
from typing import Any

from ...core.tensor import Tensor
from ..optimizer import Optimizer


def set_lr(group: dict[str, Any], lr) -> None:
    """A group's learning rate; a tensor is filled."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


def current(optimizer: Optimizer, key: str = "lr") -> list:
    """Each group's setting; tensors are copied."""
    values = [g[key] for g in optimizer.param_groups]
    return [v.clone() if isinstance(v, Tensor) else v for v in values]


def for_each_group(name: str, optimizer: Optimizer, value) -> list:
    """One value for all groups, or one each."""
    groups = optimizer.param_groups
    if not isinstance(value, (list, tuple)):
        return [value] * len(groups)
    if len(value) != len(groups):
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups. {name} has "
            f"{len(value)} values, param_groups has {len(groups)}."
        )
    return list(value)


class LRScheduler:
    """Sets learning rates by epoch; base of the schedules. torch.optim.lr_scheduler.LRScheduler."""

    _is_initial = False
    _hidden: tuple[str, ...] = ()  # attributes that a state_dict leaves out

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1):
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                lr = group["lr"]
                group.setdefault("initial_lr", lr.clone() if isinstance(lr, Tensor) else lr)
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming "
                    "scheduler with last_epoch >= 0."
                )
        self.base_lrs = current(optimizer, "initial_lr")
        self.last_epoch = last_epoch
        _count_steps(optimizer)
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        self.step()
        self._is_initial = False

    def get_lr(self) -> list:
        """Each group's learning rate in the epoch `last_epoch`."""
        raise NotImplementedError

    def get_last_lr(self) -> list:
        """Each group's learning rate as last set."""
        return self._last_lr

    def step(self, epoch: int | None = None) -> None:
        """The next epoch (or a given one) begins."""
        if self._step_count == 1 and not getattr(self.optimizer, "_opt_called", False):
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`. In PyTorch "
                "1.1.0 and later, you should call them in the opposite order: `optimizer.step()` "
                "before `lr_scheduler.step()`.  Failure to do this will result in PyTorch skipping "
                "the first value of the learning rate schedule. See more details at "
                "https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate",
                stacklevel=2,
            )
        self._step_count += 1
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        closed = getattr(self, "_get_closed_form_lr", None)
        values = self.get_lr() if epoch is None or closed is None else closed()
        for group, lr in zip(self.optimizer.param_groups, values, strict=True):
            set_lr(group, lr)
        self._last_lr = current(self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer and functions."""
        hidden = ("optimizer", *self._hidden)
        return {k: v for k, v in self.__dict__.items() if k not in hidden}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of another scheduler of this kind."""
        self.__dict__.update(state_dict)


def _count_steps(optimizer: Optimizer) -> None:
    """Let the optimizer tell whether it has made a step."""
    if hasattr(optimizer.step, "_counted"):
        return
    step = optimizer.step

    @functools.wraps(step)
    def counted(*args, **kwargs):
        optimizer._opt_called = True  # type: ignore[attr-defined]
        return step(*args, **kwargs)

    counted._counted = True  # type: ignore[attr-defined]
    optimizer.step = counted  # type: ignore[method-assign]


class ByFunction(LRScheduler):
    """A schedule that calls a function of the epoch for each group."""

    _hidden = ("lr_lambdas",)

    def __init__(self, optimizer: Optimizer, lr_lambda, last_epoch: int = -1):
        several = isinstance(lr_lambda, (list, tuple))
        self.lr_lambdas = list(lr_lambda) if several else [lr_lambda] * len(optimizer.param_groups)
        if len(self.lr_lambdas) != len(optimizer.param_groups):
            raise ValueError(
                f"Expected {len(optimizer.param_groups)} lr_lambdas, but got {len(self.lr_lambdas)}"
            )
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Callable objects leave their attributes, functions nothing."""
        objects = (f if not isinstance(f, types.FunctionType) else None for f in self.lr_lambdas)
        attributes = [None if f is None else dict(f.__dict__) for f in objects]
        return super().state_dict() | {"lr_lambdas": attributes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = self.lr_lambdas
        super().load_state_dict(state_dict)
        self.lr_lambdas = own
        for function, attributes in zip(own, state_dict["lr_lambdas"], strict=True):
            if attributes is not None:
                function.__dict__.update(attributes)
