"""SmolLM2-135M: a token and a prompt against transformers on torch and mlx-lm on mlx[cpu].

All have the same weights, in bfloat16, read the same prompt, and take turns: a side decodes a few
tokens, then the other one does. In fp8, weights are as `torchmlx convert` writes them.
"""

import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import torch

import torchmlx
from torchmlx.models import load
from torchmlx.models.assets import cache_folder
from torchmlx.models.quantize import quantize, to_blocks
from torchmlx.models.stepper import Stepper, prefill
from torchmlx.models.weights import FP8Linear

from .table import Work

# Tokens of the prompt, and of a turn of decoding.
PROMPT, TURN = 512, 8

# A side: a function that reads a prompt, and one that decodes some tokens more.
Side = tuple[Callable[[list[int]], object], Callable[[], object]]


def works() -> Iterator[Work | str]:
    """Issue 4's rows about the model, or why there are none; each needs the prompt read before."""
    folder = find_folder()
    if folder is None:
        yield "SmolLM2: left out, no checkpoint: run `torchmlx demo --model smollm2`"
        return
    ids = [(7 * i) % 49_000 + 100 for i in range(PROMPT)]
    model = load(str(folder), dtype="bfloat16")[0]
    side = ours(model)
    side[0](ids)
    yield from against_transformers(folder, ids, side, weight_bytes(model))
    yield from against_mlx_lm(folder, ids, side)
    yield from in_fp8(folder, ids, side)


def find_folder() -> Path | None:
    """SmolLM2's checkpoint, where `make demo` has left it."""
    folder = cache_folder() / "SmolLM2-135M-Instruct"
    return folder if folder.is_dir() else None


def weight_bytes(model) -> int:
    """Bytes of weights that a token reads; of an embedding that is no output layer too, none."""
    table = model.model.embed_tokens.weight
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    untied = model.lm_head.weight is not table
    return total - untied * table.numel() * table.element_size()


def against_transformers(folder: Path, ids: list[int], side: Side, size: int):
    """A prompt, and tokens after it with their share of the bandwidth."""
    try:
        read, step = theirs(folder)
    except ImportError:
        yield "SmolLM2 against transformers: left out, not installed (pip install transformers)"
        return
    name = f"SmolLM2 bfloat16 prefill {PROMPT}, transformers"
    yield Work(name, lambda: side[0](ids), lambda: read(ids), 0.9)
    yield Work("SmolLM2 bfloat16 decode, transformers", side[1], step, 3.5, size, TURN, 0.7)


def against_mlx_lm(folder: Path, ids: list[int], side: Side):
    """The same for mlx-lm; issue 4 asks for nothing at its prompts."""
    try:
        # With names in variables: type checkers need not find what may not be installed.
        cache, utils = (import_module(f"mlx_lm.{name}") for name in ("models.cache", "utils"))
    except ImportError:
        yield "SmolLM2 decode against mlx-lm: left out, not installed (pip install mlx-lm)"
        return
    model = utils.load_model(folder)[0]
    model.set_dtype(mx.bfloat16)
    read, step = mlx_lm(model, cache.make_prompt_cache)
    read(ids)
    yield Work("SmolLM2 bfloat16 decode, mlx-lm", side[1], step, 8.0, calls=TURN)


def in_fp8(folder: Path, ids: list[int], side: Side):
    """Tokens with weights in fp8 against bfloat16; the output layer in bfloat16, then in fp8."""
    with tempfile.TemporaryDirectory() as temporary:
        out = quantize(folder, Path(temporary) / "fp8", "fp8")
        model: Any = load(str(out), dtype="bfloat16")[0]
    for head, bar in (("bfloat16", 1.25), ("fp8", 1.4)):
        if head == "fp8":
            codes = to_blocks(model.lm_head.weight.mx.astype(mx.float32))
            model.lm_head = FP8Linear(*map(torchmlx.from_mx, codes), 128)
        read, step = ours(model)
        read(ids)
        name = f"SmolLM2 decode fp8, head {head}; ours bfloat16"
        yield Work(name, step, side[1], bar, weight_bytes(model), TURN)


def ours(model) -> Side:
    """The loop of torchmlx.models.generation, greedy, without text: the next token is under way
    while one is read."""
    state: dict = {}

    @torchmlx.inference_mode()
    def read(ids):
        cache = model.make_cache()
        logits = prefill(model, cache, ids, 2048)
        state.update(step=Stepper(model, cache), token=logits.argmax(-1, keepdim=True))
        mx.eval(state["token"].mx)

    @torchmlx.inference_mode()
    def step():
        for _ in range(TURN):
            following = state["step"](state["token"])[:, -1].argmax(-1, keepdim=True)
            mx.async_eval(following.mx)
            state["token"].item()
            state["token"] = following
        mx.eval(state["token"].mx)  # the other side's turn

    return read, step


def theirs(folder: Path) -> Side:
    """transformers on torch, greedy, with its dynamic cache."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    state: dict = {}

    @torch.inference_mode()
    def run(ids, past):
        out = model(torch.tensor(ids), cache=past, use_cache=True, logits_to_keep=1)
        state.update(past=out.cache, token=int(out.logits[0, -1].argmax()))

    def step():
        for _ in range(TURN):
            run([[state["token"]]], state["past"])

    return lambda ids: run([ids], None), step


def mlx_lm(model, make_prompt_cache) -> Side:
    """mlx-lm's model and cache, greedy, in the loop of its generate_step: as ours."""
    state: dict = {}

    def run(ids):
        logits = model(ids, cache=state["cache"])[:, -1]
        following = mx.argmax(logits, -1, keepdims=True)
        mx.async_eval(following)
        return following

    def read(ids):
        state["cache"] = make_prompt_cache(model)
        state["token"] = run(mx.array([ids]))
        mx.eval(state["token"])

    def step():
        for _ in range(TURN):
            following = run(state["token"])
            state["token"].item()
            state["token"] = following
        mx.eval(state["token"])

    return read, step
