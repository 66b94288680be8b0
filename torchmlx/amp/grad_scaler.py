"""GradScaler: a loss is multiplied so that half precision gradients do not vanish."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import mlx.core as mx

from ..aten._calling import collapse
from ..core import modes
from ..core.op import TABLE
from ..core.tensor import Tensor
from ..optim import Optimizer


class GradScaler:
    """Scales losses, unscales gradients, and skips steps whose gradients overflowed.

    torch.amp.GradScaler.
    """

    def __init__(
        self, device="cuda", init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5,
        growth_interval=2000, enabled=True,
    ):  # fmt: skip
        if enabled and growth_factor <= 1.0:
            raise AssertionError("The growth factor must be > 1.0.")
        if enabled and backoff_factor >= 1.0:
            raise AssertionError("The backoff factor must be < 1.0.")
        self._device, self._enabled = device, enabled
        self._scale, self._growth_tracker = float(init_scale), 0
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval = growth_interval
        self._stages: dict[int, str] = {}  # an optimizer's id: "unscaled" or "stepped"
        self._overflowed: dict[int, bool] = {}

    def scale(self, outputs: Any) -> Any:
        """A tensor, or those in a sequence, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * TABLE["tensor"].call(self._scale, device=outputs.device)
        if isinstance(outputs, Iterable):
            scaled = [self.scale(x) for x in outputs]
            return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled
        raise ValueError("outputs must be a Tensor or an iterable of Tensors")

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, for clipping."""
        if not self._enabled:
            return
        stage = self._stages.get(id(optimizer))
        if stage == "unscaled":
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update()."
            )
        if stage == "stepped":
            raise RuntimeError("unscale_() is being called after step().")
        finite = mx.array(True)
        with modes.no_grad():
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        gradient = p.grad._read()
                        finite = finite & collapse(mx.all, mx.isfinite(gradient))
                        p.grad._write(gradient.astype(mx.float32) * (1.0 / self._scale))
        self._overflowed[id(optimizer)] = not bool(finite.item())
        self._stages[id(optimizer)] = "unscaled"

    def step(self, optimizer: Optimizer, *args, **kwargs):
        """optimizer.step(), unless a gradient is infinite or NaN."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        if self._stages.get(id(optimizer)) == "stepped":
            raise RuntimeError("step() has already been called since the last update().")
        if self._stages.get(id(optimizer)) is None:
            self.unscale_(optimizer)
        self._stages[id(optimizer)] = "stepped"
        if self._overflowed[id(optimizer)]:
            return None
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Lower the scale after an overflow, raise it after growth_interval steps without one."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
        elif not self._overflowed:
            raise AssertionError("No inf checks were recorded prior to update.")
        elif any(self._overflowed.values()):
            self._scale, self._growth_tracker = self._scale * self._backoff_factor, 0
        else:
            self._growth_tracker += 1
            if self._growth_tracker == self._growth_interval:
                self._scale, self._growth_tracker = self._scale * self._growth_factor, 0
        self._stages, self._overflowed = {}, {}

    def get_scale(self) -> float:
        """The scale; 1 when disabled."""
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """The scale and how it changes; empty when disabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale, "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor, "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of another scaler."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled "
                "instance of GradScaler."
            )
        self._scale, self._growth_tracker = state_dict["scale"], state_dict["_growth_tracker"]
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
