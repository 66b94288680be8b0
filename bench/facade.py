"""The facade's cost: a small operation against MLX's own, a training step against mlx.nn and torch.

An operation is timed in inference mode and with the tape recording it; the least time of many short
runs that take turns, since the machine may be shared. `target` is what issue 7 asks for.
"""

import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn
import mlx.optimizers
import mlx.utils
import numpy as np

import torchmlx as torch

CALLS, ROUNDS = 200, 60

# A small GPT: layers, heads, width, vocabulary, batch, length.
LAYERS, HEADS, WIDTH, VOCABULARY, BATCH, LENGTH = 4, 4, 128, 96, 8, 64


def main() -> None:
    """Measure and print both tables."""
    operations()
    training()


def operations() -> None:
    a, b = mx.ones((4, 4)), mx.ones((4, 4))
    x, y = torch.ones(4, 4), torch.ones(4, 4)
    w = torch.ones(4, 4, requires_grad=True)
    works: dict[str, tuple[Callable, Callable]] = {
        "add": (lambda: a + b, lambda p, q: p + q),
        "mul": (lambda: a * b, lambda p, q: p * q),
        "exp": (lambda: mx.exp(a), lambda p, q: p.exp()),
        "maximum": (lambda: mx.maximum(a, b), lambda p, q: torch.maximum(p, q)),
    }
    print(f"{'operation, 4x4 f32':22}{'mlx us':>8}{'inference':>11}{'target':>8}", end="")
    print(f"{'tape':>9}{'target':>8}")
    for name, (bare, ours) in works.items():
        with torch.inference_mode():
            first, quiet = least(bare, lambda ours=ours: ours(x, y))
        second, taped = least(bare, lambda ours=ours: ours(w, y))
        print(
            f"{name:22}{1e6 * first:8.2f}{quiet / first:10.1f}x{5:7}x{taped / second:8.1f}x{20:7}x"
        )


def least(*functions: Callable) -> list[float]:
    """The least seconds a call of each function, which take turns."""
    best = [float("inf")] * len(functions)
    for _ in range(ROUNDS):
        for i, function in enumerate(functions):
            started = time.perf_counter()
            for _ in range(CALLS):
                function()
            best[i] = min(best[i], (time.perf_counter() - started) / CALLS)
    return best


def training() -> None:
    """One step of a small GPT with AdamW: forward, backward, update, evaluated."""
    ours, theirs = facade_step(), mlx_step()
    for step in (ours, theirs):
        for _ in range(3):
            step()
    times: list[list[float]] = [[], []]
    for _ in range(15):
        for kept, step in zip(times, (ours, theirs), strict=True):
            started = time.perf_counter()
            step()
            kept.append(time.perf_counter() - started)
    mine, other = (min(t) for t in times)
    print(f"\nGPT step: {1e3 * mine:.1f} ms, mlx.nn {1e3 * other:.1f} ms, ", end="")
    print(f"{mine / other:.2f}x, target 1.3x")


def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, LENGTH + 1))


def facade_step() -> Callable[[], float]:
    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (
                p.view(b, t, HEADS, c // HEADS).transpose(1, 2)
                for p in self.qkv(self.before(x)).split(c, 2)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
            return x + self.down(F.gelu(self.up(self.between(x))))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, WIDTH)
            self.places = nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
            self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

        def forward(self, x):
            h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
            return self.head(self.last(self.blocks(h)))

    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.from_numpy(tokens())

    def step() -> float:
        logits = model(data[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), data[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mx.eval([p.mx for p in model.parameters()])
        return loss.item()

    return step


def mlx_step() -> Callable[[], float]:
    nn = mlx.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def __call__(self, x):
            b, t, c = x.shape
            q, k, v = (
                p.reshape(b, t, HEADS, c // HEADS).swapaxes(1, 2)
                for p in mx.split(self.qkv(self.before(x)), 3, axis=2)
            )
            scale = (c // HEADS) ** -0.5
            y = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal")
            x = x + self.out(y.swapaxes(1, 2).reshape(b, t, c))
            return x + self.down(nn.gelu(self.up(self.between(x))))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, WIDTH)
            self.places = nn.Embedding(LENGTH, WIDTH)
            self.blocks = [Block() for _ in range(LAYERS)]
            self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

        def __call__(self, x):
            h = self.tokens(x) + self.places(mx.arange(x.shape[1]))
            for block in self.blocks:
                h = block(h)
            return self.head(self.last(h))

    model: Any = GPT()
    optimizer = mlx.optimizers.AdamW(learning_rate=1e-3)
    data = mx.array(tokens())

    def loss_of(model):
        return nn.losses.cross_entropy(model(data[:, :-1]), data[:, 1:], reduction="mean")

    run = nn.value_and_grad(model, loss_of)

    def step() -> float:
        loss, gradients = run(model)
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state)
        return float(loss.item())

    return step
