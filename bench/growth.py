"""SmolLM2-135M in bfloat16: how a token's and a prompt's time grow with the tokens before.

Decoding should stay flat up to what attention adds, reading a prompt linear in its tokens until
attention dominates. Prints each as a text plot.
"""

import time
from statistics import median

import mlx.core as mx

import torchmlx
from torchmlx.models import load
from torchmlx.models.stepper import Stepper, prefill

from .smollm2 import find_folder

# Tokens of the prompts; tokens decoded after the shortest, and how many share a line of the plot.
PROMPTS, DECODED, SHARE = (64, 128, 256, 512, 1024), 768, 96
BAR = 50


def main() -> None:
    """Read prompts of several lengths, then decode on from the shortest."""
    folder = find_folder()
    if folder is None:
        print("growth: left out, no checkpoint: run `torchmlx demo --model smollm2`")
        return
    model, _ = load(str(folder), dtype="bfloat16")
    with torchmlx.inference_mode():
        read(model, PROMPTS[0])
        rows = [(f"{n} tokens", min(read(model, n) for _ in range(2))) for n in PROMPTS]
        plot("prompt, ms a token", [(n, t / int(n.split()[0])) for n, t in rows])
        plot("prompt, ms", rows)
        times = decode(model, PROMPTS[0], DECODED)
    shares = range(0, DECODED, SHARE)
    rows = [(f"{PROMPTS[0] + i} on", median(times[i : i + SHARE])) for i in shares]
    plot("decoding, ms a token, by tokens before", rows)


def read(model, tokens: int) -> float:
    """Seconds to read a prompt."""
    start = time.perf_counter()
    mx.eval(prefill(model, model.make_cache(), prompt(tokens), 2048).mx)
    return time.perf_counter() - start


def decode(model, tokens: int, count: int) -> list[float]:
    """Seconds of each of `count` greedy tokens after a prompt."""
    cache = model.make_cache()
    token = prefill(model, cache, prompt(tokens), 2048).argmax(-1, keepdim=True)
    step, times = Stepper(model, cache), []
    for _ in range(count):
        start = time.perf_counter()
        token = step(token)[:, -1].argmax(-1, keepdim=True)
        mx.eval(token.mx)
        times.append(time.perf_counter() - start)
    return times


def prompt(tokens: int) -> list[int]:
    return [(7 * i) % 49_000 + 100 for i in range(tokens)]


def plot(title: str, rows: list[tuple[str, float]]) -> None:
    """A bar for each (name, seconds), the longest as wide as BAR."""
    most = max(value for _, value in rows)
    print(f"\n{title}")
    for name, value in rows:
        print(f"{name:>12} {value * 1e3:9.2f} {'#' * round(BAR * value / most)}")
