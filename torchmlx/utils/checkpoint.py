"""torch.utils.checkpoint: nothing is kept for the backward pass; it runs the function again."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from .. import random
from ..autograd.graph import saved_tensors_hooks
from ..core import modes
from ..core.tensor import Tensor


class _Again:
    """Runs a function a second time and hands out, by number, what the tape would have kept."""

    def __init__(self, function, args, kwargs, rng, context):
        self.function, self.args, self.kwargs = function, args, kwargs
        self.rng, self.context = rng, context
        self.autocast = modes.autocast()
        self.count = 0
        self.kept: dict[int, Tensor] = {}

    def pack(self, tensor: Tensor) -> int:
        self.count += 1
        return self.count - 1

    def unpack(self, number: int) -> Tensor:
        if number not in self.kept:
            self.run()
        if number not in self.kept:
            raise RuntimeError(
                "torch.utils.checkpoint: A different number of tensors was saved during the "
                f"original forward and recomputation. Number of tensors saved during forward: "
                f"{self.count}, during recomputation: {len(self.kept)}."
            )
        return self.kept.pop(number)

    def run(self) -> None:
        self.kept = {}

        def keep(tensor: Tensor) -> int:
            self.kept[len(self.kept)] = tensor
            return len(self.kept) - 1

        now = random.get_rng_state()
        if self.rng is not None:
            random.set_rng_state(self.rng)
        try:
            with (
                self.context,
                modes.enable_grad(),
                modes.autocast_set(self.autocast),
                saved_tensors_hooks(keep, self.kept.get),
            ):
                self.function(*self.args, **self.kwargs)
        finally:
            if self.rng is not None:
                random.set_rng_state(now)


def checkpoint(
    function, *args, use_reentrant=None, context_fn=None, determinism_check="default", debug=False,
    early_stop=True, preserve_rng_state=True, **kwargs,
) -> Any:  # fmt: skip
    """function(*args, **kwargs), computed again in the backward pass instead of being kept.

    Both values of use_reentrant run the same way, which allows what either does: no input need
    require grad, and torch.autograd.grad works. torch.utils.checkpoint.checkpoint.
    """
    first, second = (nullcontext(), nullcontext()) if context_fn is None else context_fn()
    rng = random.get_rng_state() if preserve_rng_state else None
    again = _Again(function, args, kwargs, rng, second)
    with first, saved_tensors_hooks(again.pack, again.unpack):
        return function(*args, **kwargs)


def checkpoint_sequential(functions, segments, input, use_reentrant=None, **kwargs) -> Any:
    """A sequence of modules in `segments` checkpointed parts, the last one kept.

    torch.utils.checkpoint.checkpoint_sequential.
    """
    functions = list(functions.children() if hasattr(functions, "children") else functions)
    size = len(functions) // segments

    def run(part):
        def forward(x):
            for f in part:
                x = f(x)
            return x

        return forward

    for start in range(0, size * (segments - 1), size):
        part = run(functions[start : start + size])
        input = checkpoint(part, input, use_reentrant=use_reentrant, **kwargs)
    return run(functions[size * (segments - 1) :])(input)
