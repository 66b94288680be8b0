"""Averages of a model's weights over training. torch.optim.swa_utils."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any, Literal

from ..core.modes import no_grad
from ..core.op import TABLE
from ..core.tensor import Tensor
from ..nn.modules.batchnorm import Normalisation
from ..nn.modules.module import Module
from .lr_scheduler import LRScheduler
from .optimizer import Optimizer

__all__ = [
    "SWALR", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn",
    "get_swa_multi_avg_fn", "update_bn",
]  # fmt: skip


def _checked(decay: float) -> float:
    if decay < 0.0 or decay > 1.0:
        raise ValueError(
            f"Invalid decay value {decay} provided. Please provide a value in [0,1] range."
        )
    return decay


def _moved(average: Tensor, new: Tensor, weight) -> Tensor:
    if average.dtype.is_floating_point or average.dtype.is_complex:
        return average.lerp(new, weight)  # type: ignore[attr-defined]
    return average * (1 - weight) + new * weight


def get_ema_avg_fn(decay: float = 0.999):
    """average(ema, parameter, count) of an exponential moving average."""
    decay = _checked(decay)

    def average(ema_param, current_param, num_averaged):
        with no_grad():
            return decay * ema_param + (1 - decay) * current_param

    return average


def get_ema_multi_avg_fn(decay: float = 0.999):
    """The same on lists of tensors, in place."""
    decay = _checked(decay)

    def average(ema_param_list, current_param_list, _):
        with no_grad():
            for ema, new in zip(ema_param_list, current_param_list, strict=True):
                ema.copy_(_moved(ema, new, 1 - decay))

    return average


def get_swa_avg_fn():
    """average(mean, parameter, count) of an equal mean of all updates."""

    def average(averaged_param, current_param, num_averaged):
        with no_grad():
            return averaged_param + (current_param - averaged_param) / (num_averaged + 1)

    return average


def get_swa_multi_avg_fn():
    """The same on lists of tensors, in place."""

    def average(averaged_param_list, current_param_list, num_averaged):
        with no_grad():
            for mean, new in zip(averaged_param_list, current_param_list, strict=True):
                mean.copy_(_moved(mean, new, 1 / (num_averaged + 1)))

    return average


class AveragedModel(Module):
    """A copy of a model, whose weights `update_parameters` moves towards the model's.

    An equal mean of all updates unless avg_fn or multi_avg_fn say otherwise.
    torch.optim.swa_utils.AveragedModel.
    """

    n_averaged: Tensor

    def __init__(self, model, device=None, avg_fn=None, multi_avg_fn=None, use_buffers=False):
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        long = TABLE["tensor"].call(0, device=device)
        self.register_buffer("n_averaged", long)
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def _averaged(self, model) -> list[Tensor]:
        parameters = list(model.parameters())
        return [*parameters, *model.buffers()] if self.use_buffers else parameters

    def update_parameters(self, model) -> None:
        """Take the model's present weights into the average."""
        own, new = self._averaged(self.module), self._averaged(model)
        pairs = [(a, n.detach().to(a.device)) for a, n in zip(own, new, strict=True)]  # type: ignore[attr-defined]
        with no_grad():
            if int(self.n_averaged) == 0:
                for average, value in pairs:
                    average.copy_(value)  # type: ignore[attr-defined]
            elif self.avg_fn is not None:
                for average, value in pairs:
                    average.copy_(self.avg_fn(average.detach(), value, self.n_averaged))  # type: ignore[attr-defined]
            else:
                function = self.multi_avg_fn or get_swa_multi_avg_fn()
                function([a.detach() for a, _ in pairs], [n for _, n in pairs], self.n_averaged)  # type: ignore[attr-defined]
            if not self.use_buffers:
                for average, value in zip(self.module.buffers(), model.buffers(), strict=True):
                    average.detach().copy_(value.detach().to(average.device))  # type: ignore[attr-defined]
            self.n_averaged += 1


def update_bn(loader: Any, model: Module, device=None) -> None:
    """Compute the batch norms' running statistics anew from one pass over `loader`, in place.

    The model is the first of what the loader gives, if that is a list or tuple.
    """
    norms = [m for m in model.modules() if isinstance(m, Normalisation) and m.track_running_stats]
    if not norms:
        return
    momenta = {norm: norm.momentum for norm in norms}
    training = model.training
    model.train()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # type: ignore[assignment]
    with no_grad():
        for batch in loader:
            given = batch[0] if isinstance(batch, (list, tuple)) else batch
            model(given if device is None else given.to(device))
    for norm, momentum in momenta.items():
        norm.momentum = momentum
    model.train(training)


class SWALR(LRScheduler):
    """Anneals the learning rate to swa_lr in anneal_epochs steps. torch.optim.swa_utils.SWALR."""

    def __init__(
        self, optimizer: Optimizer, swa_lr, anneal_epochs: int = 10,
        anneal_strategy: Literal["cos", "linear"] = "cos", last_epoch: int = -1,
    ):  # fmt: skip
        groups = optimizer.param_groups
        several = isinstance(swa_lr, (list, tuple))
        if several and len(swa_lr) != len(groups):
            raise ValueError(
                "swa_lr must have the same length as optimizer.param_groups: swa_lr has "
                f"{len(swa_lr)}, optimizer.param_groups has {len(groups)}"
            )
        for group, rate in zip(groups, swa_lr if several else [swa_lr] * len(groups), strict=True):
            group["swa_lr"] = rate
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must by one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self._cosine, self.anneal_epochs = anneal_strategy == "cos", anneal_epochs
        super().__init__(optimizer, last_epoch)

    def _share(self, epoch: int) -> float:
        """How much of swa_lr there is in an epoch's rate."""
        t = max(0, min(1, epoch / max(1, self.anneal_epochs)))
        return (1 - math.cos(math.pi * t)) / 2 if self._cosine else t

    def get_lr(self):
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._share(max(0, step - 1)), self._share(max(0, step))
        rates = []
        for group in self.optimizer.param_groups:
            rate, goal = group["lr"], group["swa_lr"]
            start = rate if before == 1 else (rate - before * goal) / (1 - before)
            rates.append(goal * now + start * (1 - now))
        return rates
