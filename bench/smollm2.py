"""SmolLM2-135M in bfloat16: tokens per second against transformers on torch and mlx-lm on mlx[cpu].

All have the same weights, read the same prompt, and take turns: a side decodes a few tokens, then
the next one does. Speeds are of median times. mlx-lm is left out where it is not installed.
"""

import os
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's idle threads would take our cores

import mlx.core as mx  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

import torchmlx  # noqa: E402
from torchmlx.kernels import native  # noqa: E402
from torchmlx.models import load  # noqa: E402
from torchmlx.models.assets import fetch_smollm2  # noqa: E402
from torchmlx.models.stepper import Stepper, prefill  # noqa: E402

from .cpu import read_bandwidth  # noqa: E402

# Tokens of the prompt, tokens that a turn decodes, turns.
PROMPT, TURN, TURNS = 512, 8, 4

# A side: a function that reads a prompt, and one that decodes one more token.
Side = tuple[Callable[[list[int]], object], Callable[[], object]]


def main() -> None:
    """Measure every side and print tokens per second, and ratios to ours."""
    threads = native.cores()
    torch.set_num_threads(threads)
    sides = dict(find_sides(find_folder()))
    ids = [(7 * i) % 49_000 + 100 for i in range(PROMPT)]
    prompts = {
        name: median(timed(read, ids) for _ in range(2)) for name, (read, _) in sides.items()
    }
    tokens: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(TURNS):
        for name, (_, step) in sides.items():
            tokens[name] += [timed(step) for _ in range(TURN)]
    report(threads, prompts, {name: median(times[1:]) for name, times in tokens.items()})


def find_folder() -> Path:
    """SmolLM2's checkpoint, as `make demo` leaves it."""
    folder = Path(fetch_smollm2()).parent / "SmolLM2-135M-Instruct"
    if not folder.exists():
        raise SystemExit("no SmolLM2 yet: run `make demo` first, which fetches and converts it")
    return folder


def report(threads: int, prompts: dict[str, float], tokens: dict[str, float]) -> None:
    """A line for each side; then how much of the read bandwidth our decoding uses."""
    print(f"{threads} threads, bfloat16, prompt of {PROMPT} tokens, then {TURN * TURNS} more\n")
    print(f"{'':14}{'prompt':>16}{'ratio':>8}{'decode':>16}{'ratio':>8}")
    for name in tokens:
        print(
            f"{name:14}{PROMPT / prompts[name]:12.0f} t/s{prompts[name] / prompts['ours']:7.2f}x"
            f"{1 / tokens[name]:12.1f} t/s{tokens[name] / tokens['ours']:7.2f}x"
        )
    bandwidth = read_bandwidth(native.load()[0])
    limit = bandwidth / WEIGHT_BYTES
    print(f"\nread bandwidth {bandwidth / 1e9:.1f} GB/s: at most {limit:.0f} tokens/s, ", end="")
    print(f"of which ours has {1 / tokens['ours'] / limit:.0%} (issue 4 asks for 70 %)")


# bfloat16; the embedding is the output layer too.
WEIGHT_BYTES = 2 * 134_515_008


def timed(function: Callable, *arguments) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def find_sides(folder: Path) -> Iterator[tuple[str, Side]]:
    """What is installed; ours first."""
    yield "ours", ours(folder)
    yield "transformers", theirs(folder)
    try:
        # With names in variables: type checkers need not find what may not be installed.
        cache, utils = (import_module(f"mlx_lm.{name}") for name in ("models.cache", "utils"))
    except ImportError:
        print("mlx-lm is not installed (pip install mlx-lm): left out")
        return
    model = utils.load_model(folder)[0]
    model.set_dtype(mx.bfloat16)
    yield "mlx-lm", mlx_lm(model, cache.make_prompt_cache)


def ours(folder: Path) -> Side:
    """The loop of torchmlx.models.generation, greedy, without text."""
    model, _ = load(str(folder), dtype="bfloat16")
    state: dict = {}

    @torchmlx.inference_mode()
    def read(ids):
        cache = model.make_cache()
        logits = prefill(model, cache, ids, 2048)
        state.update(step=Stepper(model, cache), token=logits.argmax(-1, keepdim=True))
        mx.eval(state["token"].mx)

    @torchmlx.inference_mode()
    def step():
        state["token"] = state["step"](state["token"])[:, -1].argmax(-1, keepdim=True)
        mx.eval(state["token"].mx)

    return read, step


def theirs(folder: Path) -> Side:
    """transformers on torch, greedy, with its dynamic cache."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    state: dict = {}

    @torch.inference_mode()
    def run(ids, past):
        out = model(torch.tensor(ids), past_key_values=past, use_cache=True, logits_to_keep=1)
        state.update(past=out.past_key_values, token=int(out.logits[0, -1].argmax()))

    return lambda ids: run([ids], None), lambda: run([[state["token"]]], state["past"])


def mlx_lm(model, make_prompt_cache) -> Side:
    """mlx-lm's model and cache, greedy."""
    state: dict = {}

    def run(ids):
        logits = model(mx.array([ids]), cache=state["cache"])[:, -1]
        state["token"] = mx.argmax(logits, -1).item()

    def read(ids):
        state["cache"] = make_prompt_cache(model)
        run(ids)

    return read, lambda: run([state["token"]])
