"""Random small programs: leaves, operations, views, writes, hooks, backward passes.

A program is lines of Python on `torch`; run under torch and under torchmlx it has to leave the same
values, gradients, flags and complaints.
"""

from __future__ import annotations

import importlib
import math
import random
import warnings
from typing import Any

import numpy as np

SHAPES = [(2, 3), (2, 3), (1, 3), (3,), (3, 3)]
BINARY = [
    "X + Y", "X * Y", "X - Y", "X / (Y * Y + 1)", "torch.where(X > 0, X, Y)",
    "torch.cat([X, Y])", "torch.stack([X, Y])", "X @ Y", "torch.addcmul(X, X, Y)",
]  # fmt: skip
UNARY = [
    "exp()", "sin()", "tanh()", "sigmoid()", "relu()", "abs()", "neg()", "square()", "clone()",
    "cumsum(-1)", "softmax(-1)", "sum()", "mean()", "sum(0, keepdim=True)", "amax(-1)", "detach()",
    "prod()", "logsumexp(-1)", "double()", "clamp(-1, 1)", "reciprocal()",
]  # fmt: skip
VIEWS = [
    "X[0]", "X[..., 1]", "X[1:]", "X[..., :2]", "X.t()", "X.view(-1)", "X.reshape(-1)", "X[None]",
    "X.squeeze()", "X.transpose(0, -1)", "X.expand(2, *X.shape)", "X[[0, 1]]", "X[X > 0]", "X.data",
    "X.diagonal()", "X.narrow(0, 0, 1)", "X[::2]", "X.view_as(X)", "X.as_strided((2,), (1,))",
]  # fmt: skip
WRITES = [
    "X.mul_(2)", "X.add_(Y)", "X.mul_(Y)", "X[0] = Y[0]", "X[0] = 1.5", "X.zero_()", "X.copy_(Y)",
    "X.exp_()", "X[..., 0].mul_(3)", "X[..., 1:].copy_(Y[..., 1:])", "X.masked_fill_(X > 0, 0.25)",
    "X.relu_()", "X.data.mul_(1.5)", "X.detach().add_(1)", "X += Y", "X[X > 0] *= 2", "X.t_()",
    "X.unsqueeze_(0)", "X.requires_grad_()", "X.view(-1)[0] = 3.0", "X.addcmul_(Y, X)",
    "X.sigmoid_()", "X.diagonal().fill_(4.0)", "X.div_(Y)",
]  # fmt: skip
PASSES = [
    "X.sum().backward(retain_graph=True)", "X.backward(torch.ones_like(X))",
    "(X * X).sum().backward()", "X.retain_grad()", "X.register_hook(lambda g: g * 2)",
    "X.register_hook(lambda g: seen.append(g.sum().item()))",
]  # fmt: skip
OTHERS = [
    "Scaled.apply(X, 0.5)", "Scaled.apply(X, 2)", "Doubled.apply(X)",
    "checkpoint(lambda a: a.sin() * a, X, use_reentrant=False)",
]  # fmt: skip
ENDS = [
    ["(X * X).sum().backward()"],
    ["(X * X).sum().backward(retain_graph=True)", "X.sin().sum().backward()"],
    ["first = torch.autograd.grad((X ** 2).sum(), LEAVES, create_graph=True, allow_unused=True)",
     "sum((g * g).sum() for g in first if g is not None).backward()"],
]  # fmt: skip

# torch's complaints that we do not make: it forbids what is ambiguous or what shared memory makes
# wrong, and a result that was written since, of which we still have the old array.
EXCUSED = (
    "single memory location", "multiple views", "created in no_grad mode", "detached in-place",
    "'int' object has no attribute", "which is output",
)  # fmt: skip


def written(seed: int) -> tuple[list[str], list[str]]:
    """The lines of a program, and the names that it binds."""
    rng = random.Random(seed)
    lines, names = [], []

    def bind(expression: str) -> None:
        lines.append(f"v{len(names)} = {expression}")
        names.append(f"v{len(names)}")

    for _ in range(rng.randint(1, 3)):
        shape = rng.choice(SHAPES)
        values = [round(rng.uniform(-2, 2), 2) for _ in range(math.prod(shape))]
        bind(
            f"torch.tensor({values}).reshape({shape}).clone().requires_grad_({rng.random() < 0.75})"
        )
    leaves = f"[{', '.join(names)}]"

    def filled(choices: list[str]) -> str:
        x, y = rng.choice(names), rng.choice(names)
        return rng.choice(choices).replace("X", x).replace("Y", y)

    for _ in range(rng.randint(2, 8)):
        kind = rng.choices("buvwpon", (30, 14, 18, 22, 9, 4, 3))[0]
        if kind == "w":
            lines.append("with torch.no_grad(): " * (rng.random() < 0.2) + filled(WRITES))
        elif kind == "p":
            lines.append(filled(PASSES))
        elif kind == "n":
            name = f"v{len(names)}"
            lines.append(f"with torch.no_grad(): {name} = {filled(['X * 2', 'X.exp()'])}")
            names.append(name)
        else:
            several = {"b": BINARY, "v": VIEWS, "o": OTHERS, "u": ["X." + u for u in UNARY]}
            bind(filled(several[kind]))
    last = names[-1] if rng.random() < 0.7 else rng.choice(names)
    lines += [e.replace("X", last).replace("LEAVES", leaves) for e in rng.choice(ENDS)]
    return lines, names


def run(torch: Any, lines: list[str], names: list[str]) -> tuple[dict, int | None, Any]:
    """What the names are in the end, and the line that raised with its error, or None."""
    space = {"torch": torch, "seen": [], **_functions(torch)}
    failed, error = None, None
    for number, line in enumerate(lines):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(line, space)
        except Exception as problem:
            failed, error = number, problem
            break
    found = {name: described(space[name]) for name in names if name in space}
    return {**found, "seen": np.array(space["seen"])}, failed, error


def _functions(torch: Any) -> dict:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            y = x.exp() * factor
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y + g * x * 0.1, None

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, g):
            return g * 2

    checkpoint = importlib.import_module(f"{torch.__name__}.utils.checkpoint").checkpoint
    return {"Scaled": Scaled, "Doubled": Doubled, "checkpoint": checkpoint}


def described(x: Any) -> dict[str, Any]:
    """What a tensor is: its value, shape, dtype, gradient and place in the graph."""
    try:
        kept = x.grad if x.is_leaf or x.retains_grad else None
    except RuntimeError as error:
        return {"unreadable": str(error)}
    return {
        "value": np.array(x.detach().tolist(), np.float64),
        "shape": tuple(x.shape),
        "dtype": str(x.dtype),
        "requires_grad": x.requires_grad,
        "leaf": x.is_leaf,
        "grad": None if kept is None else np.array(kept.tolist(), np.float64),
    }


def difference(mine: Any, theirs: Any, place: str = "") -> str | None:
    """Where two results of `run` differ, or None."""
    if isinstance(theirs, dict):
        if "unreadable" in theirs:
            return None
        for key, value in theirs.items():
            if found := difference(mine.get(key), value, f"{place}.{key}"):
                return found
        return None
    if isinstance(theirs, np.ndarray) and isinstance(mine, np.ndarray):
        same = mine.shape == theirs.shape and np.allclose(mine, theirs, 2e-3, 2e-4, equal_nan=True)
    else:
        same = type(mine) is type(theirs) and mine == theirs
    return None if same else f"{place}: {mine} where torch has {theirs}"
