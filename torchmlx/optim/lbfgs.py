"""Limited-memory BFGS, with an optional search for a step that meets the strong Wolfe conditions.

Nocedal and Wright, "Numerical optimization", 2nd edition: algorithms 7.4, 3.5 and 3.6.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx

from ..aten._calling import collapse
from ..core import modes
from ..core.tensor import Tensor, from_array
from .optimizer import Optimizer, check_lr, number

CURVATURE = 1e-10  # a pair of changes with less says nothing of the curvature


class Point(NamedTuple):
    """A place on the line of search: step, loss, gradient and slope there."""

    step: float
    loss: float
    gradient: mx.array
    slope: float


def dot(a: mx.array, b: mx.array) -> mx.array:
    return collapse(mx.sum, a * b)


def largest(x: mx.array) -> float:
    """The largest absolute value, on the host."""
    return float(mx.max(mx.abs(x)))


class LBFGS(Optimizer):
    """Quasi-Newton steps over all parameters as one vector. torch.optim.LBFGS.

    step(closure) evaluates the closure, which must call backward, up to max_eval times; one group
    of parameters only. line_search_fn: None (steps of lr) or "strong_wolfe".
    """

    def __init__(
        self, params, lr=1, max_iter: int = 20, max_eval: int | None = None,
        tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
        line_search_fn: str | None = None,
    ):  # fmt: skip
        check_lr(lr)
        super().__init__(params, {
            "lr": lr, "max_iter": max_iter, "tolerance_grad": tolerance_grad,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_change": tolerance_change, "history_size": history_size,
            "line_search_fn": line_search_fn,
        })  # fmt: skip
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")
        self._params: list[Tensor] = self.param_groups[0]["params"]

    # ---- parameters as one vector

    def _gradient(self) -> mx.array:
        grads = [mx.zeros_like(p._read()) if p.grad is None else p.grad._read()
                 for p in self._params]  # fmt: skip
        return mx.concatenate([mx.reshape(g, (-1,)) for g in grads])

    def _values(self) -> list[mx.array]:
        return [p._read() for p in self._params]

    def _move(self, start: list[mx.array], step: float, direction: mx.array) -> None:
        at = 0
        for p, value in zip(self._params, start, strict=True):
            part = mx.reshape(direction[at : at + value.size], value.shape)
            p._write(value + (part * step).astype(value.dtype))
            at += value.size

    # ---- steps

    def step(self, closure: Callable[[], Any] | None = None):
        """Up to max_iter iterations; returns the loss at the start."""
        if closure is None:
            raise TypeError("LBFGS.step() missing 1 required positional argument: 'closure'")
        for hook in tuple(self._pre_hooks.values()):
            hook(self, (closure,), {})

        def evaluate() -> Any:
            with modes.enable_grad():
                return closure()

        with modes.no_grad():
            first = evaluate()
            self._iterate(evaluate, float(first), self._gradient())
        for hook in tuple(self._post_hooks.values()):
            hook(self, (closure,), {})
        return first

    def _iterate(self, evaluate, loss: float, gradient: mx.array) -> None:
        group, state = self.param_groups[0], self.state[self._params[0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        state["func_evals"] += 1
        evaluations, tolerance = 1, group["tolerance_change"]
        if self._flat_enough(gradient):
            return
        for iteration in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            direction = self._direction(state, gradient, group["history_size"])
            state["prev_flat_grad"], state["prev_loss"] = self._kept(gradient), loss
            step = number(group["lr"])
            if state["n_iter"] == 1:
                step *= min(1.0, 1.0 / float(mx.sum(mx.abs(gradient))))
            slope = float(dot(gradient, direction))
            state["d"], state["t"] = self._kept(direction), step
            if slope > -tolerance:
                return
            last, before = iteration == group["max_iter"], loss
            here = Point(step, loss, gradient, slope)
            there, count = self._line(evaluate, here, direction, last)
            step, loss, gradient = there.step, there.loss, there.gradient
            state["t"] = step
            evaluations += count
            state["func_evals"] += count
            if (
                last
                or evaluations >= group["max_eval"]
                or self._flat_enough(gradient)
                or largest(direction * step) <= tolerance
                or abs(loss - before) < tolerance
            ):
                return

    def _flat_enough(self, gradient: mx.array) -> bool:
        return largest(gradient) <= self.param_groups[0]["tolerance_grad"]

    def _kept(self, x: mx.array) -> Tensor:
        return from_array(x, self._params[0].device)

    def _line(self, evaluate, here: Point, direction, last: bool) -> tuple[Point, int]:
        """Move along the direction; the point reached and how often the closure was called."""
        group, start = self.param_groups[0], self._values()
        if group["line_search_fn"] is None:
            self._move(start, here.step, direction)
            if last:
                return here, 0
            loss = float(evaluate())
            return Point(here.step, loss, self._gradient(), 0.0), 1
        if group["line_search_fn"] != "strong_wolfe":
            raise RuntimeError("only 'strong_wolfe' is supported")

        def at(step: float) -> Point:
            self._move(start, step, direction)
            loss, gradient = float(evaluate()), self._gradient()
            return Point(step, loss, gradient, float(dot(gradient, direction)))

        there, count = strong_wolfe(at, here, largest(direction), group["tolerance_change"])
        self._move(start, there.step, direction)
        return there, count

    def _direction(self, state: dict[str, Any], gradient: mx.array, history: int) -> mx.array:
        """Minus the inverse Hessian's estimate times the gradient (the two-loop recursion)."""
        if state["n_iter"] == 1:
            state["old_dirs"], state["old_stps"], state["ro"] = [], [], []
            state["H_diag"] = 1
            return -gradient
        y = gradient - state["prev_flat_grad"]._read()
        s = state["d"]._read() * state["t"]
        curvature = dot(y, s)
        lists = state["old_dirs"], state["old_stps"], state["ro"]
        if float(curvature) > CURVATURE:
            if len(state["old_dirs"]) == history:
                for kept in lists:
                    kept.pop(0)
            for kept, new in zip(lists, (y, s, 1.0 / curvature), strict=True):
                kept.append(self._kept(new))
            state["H_diag"] = self._kept(curvature / dot(y, y))
        changes = [[x._read() for x in kept] for kept in lists]
        q, alphas = -gradient, []
        for y, s, rho in zip(*map(reversed, changes), strict=True):
            alphas.append(dot(s, q) * rho)
            q = q - alphas[-1] * y
        scale = state["H_diag"]
        r = q * (scale._read() if isinstance(scale, Tensor) else scale)
        for y, s, rho in zip(*changes, strict=True):
            r = r + s * (alphas.pop() - dot(y, r) * rho)
        return r


# ---- the search along a line

C1, C2 = 1e-4, 0.9  # sufficient decrease, flattening
SEARCHES = 25


def strong_wolfe(
    at: Callable[[float], Point], here: Point, width: float, tolerance: float
) -> tuple[Point, int]:
    """A step that lowers the loss enough and flattens the slope, and the number of evaluations.

    here: the first step to try, with loss, gradient and slope at the start. width: the direction's
    largest element; steps closer than tolerance / width are one.
    """
    start = here._replace(step=0.0)
    bracket, done, count = _bracket(at, start, here.step)
    low, high = (0, 1) if bracket[0].loss <= bracket[-1].loss else (1, 0)
    stalled = False
    while not done and count <= SEARCHES:
        if abs(bracket[1].step - bracket[0].step) * width < tolerance:
            break
        step, stalled = _inside(bracket, stalled)
        new = at(step)
        count += 1
        if new.loss > start.loss + C1 * step * start.slope or new.loss >= bracket[low].loss:
            bracket[high] = new
            low, high = (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)
            continue
        if abs(new.slope) <= -C2 * start.slope:
            done = True
        elif new.slope * (bracket[high].step - bracket[low].step) >= 0:
            bracket[high] = bracket[low]
        bracket[low] = new
    return bracket[low if len(bracket) > 1 else 0], count


def _bracket(at, start: Point, step: float) -> tuple[list[Point], bool, int]:
    """Two points around a good step, or one that is good (then True)."""
    before, new = start, at(step)
    for count in range(1, SEARCHES + 1):
        rises = new.loss > start.loss + C1 * new.step * start.slope
        if rises or (count > 2 and new.loss >= before.loss):
            return [before, new], False, count
        if abs(new.slope) <= -C2 * start.slope:
            return [new], True, count
        if new.slope >= 0:
            return [before, new], False, count
        least, most = new.step + 0.01 * (new.step - before.step), new.step * 10
        before, new = new, at(cubic(before, new, least, most))
    return [start, new], False, SEARCHES + 1


def _inside(bracket: list[Point], stalled: bool) -> tuple[float, bool]:
    """The next step between two points, kept from their ends, and whether it came near one."""
    low, high = sorted(p.step for p in bracket)
    step = cubic(bracket[0], bracket[1], low, high)
    margin = 0.1 * (high - low)
    if min(high - step, step - low) >= margin:
        return step, False
    if not stalled and low < step < high:
        return step, True
    return (high - margin if abs(step - high) < abs(step - low) else low + margin), False


def cubic(a: Point, b: Point, least: float, most: float) -> float:
    """The minimum of the cubic through two points and slopes, within bounds."""
    if a.step > b.step:
        a, b = b, a
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.step - b.step)
    square = d1 * d1 - a.slope * b.slope
    if square < 0:
        return (least + most) / 2.0
    d2 = math.sqrt(square)
    share = (b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2)
    return min(max(b.step - (b.step - a.step) * share, least), most)
