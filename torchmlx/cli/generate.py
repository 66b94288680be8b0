"""`torchmlx generate`: text from a checkpoint, streamed as it comes."""

import argparse
import os
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext

from ..errors import InputError
from . import terminal, values

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

EXAMPLES = """\
examples:
  torchmlx generate --model ./SmolLM2-135M --prompt "Why is the sky blue?"
  torchmlx generate --model Qwen/Qwen3-0.6B --prompt - --max-tokens 64 < question.txt
  torchmlx generate --model ./model --prompt "def fib(n):" --raw --temperature 0.8 --seed 1
"""


def add(commands) -> None:
    """Add the command and its flags to `commands`."""
    parser = commands.add_parser(
        "generate",
        help="generate text from a checkpoint",
        description="Generate text. It goes to stdout as it comes; speed and memory go to stderr.",
        epilog=EXAMPLES,
    )
    parser.set_defaults(run=run)
    _add_input_flags(parser)
    add_sampling_flags(parser)
    add_model_flags(parser)
    parser.add_argument(
        "--json", action="store_true", help="one JSON object on stdout at the end, no streaming"
    )


def _add_input_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    add_model_flag(flag)
    flag("--prompt", required=True, metavar="TEXT", help="the prompt; - reads it from stdin")
    flag("--system", metavar="TEXT", help="system message (default: the chat template's)")
    flag(
        "--raw",
        action="store_true",
        help="continue the prompt as it stands, without the chat template",
    )
    add_template_flag(flag)
    flag(
        "--prefill-step-size",
        type=values.max_tokens,
        metavar="N",
        help="read the prompt N tokens at a time (default: 2048)",
    )
    flag("--kv-bits", type=int, choices=(4, 8), help="keep keys and values in so many bits")
    flag(
        *("--prompt-cache", "--prompt-cache-file"),
        metavar="FILE",
        help="do not read again what FILE knows of the prompt; then keep this prompt in it",
    )
    flag(
        "--draft-model",
        metavar="PATH|REPO",
        help="a small model with the same tokens, which proposes what --model checks",
    )
    flag(
        "--mtp",
        action="store_true",
        help="let the checkpoint's own head for multi-token prediction propose (qwen3_5, 3.6)",
    )
    flag(
        "--num-draft-tokens",
        type=values.draft_tokens,
        metavar="N",
        help="tokens proposed at a time, 1 to 15 (default: 3)",
    )


def add_model_flag(flag) -> None:
    """--model, for every command that loads one."""
    flag(
        "--model",
        required=True,
        metavar="PATH|REPO",
        help="a checkpoint's folder, or a repository on the Hugging Face hub (owner/name)",
    )


def add_template_flag(flag) -> None:
    """--template-var, for commands that make prompts of messages."""
    flag(
        "--template-var",
        type=values.template_variable,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable of the chat template, e.g. enable_thinking=false; may be repeated",
    )


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen, and when to stop."""
    group = parser.add_argument_group(
        "sampling",
        "Where a flag is absent, the checkpoint's generation_config.json decides, and without\n"
        "it the most likely token is taken (greedy). Order: repetition penalty, temperature,\n"
        "top-k, top-p, min-p.",
    )
    flag = group.add_argument
    flag(
        "--max-tokens",
        type=values.max_tokens,
        default=512,
        metavar="N",
        help="generate at most N tokens (default: 512)",
    )
    flag("--temperature", type=values.temperature, metavar="T", help="0 is greedy, 1 unchanged")
    flag("--top-p", type=values.top_p, metavar="P", help="keep the likeliest of total mass P, 0..1")
    flag("--top-k", type=values.top_k, metavar="K", help="keep the K likeliest tokens; 0 keeps all")
    flag(
        "--min-p",
        type=values.min_p,
        metavar="P",
        help="drop tokens below P times the likeliest one's probability, 0..1",
    )
    flag(
        "--repetition-penalty",
        type=values.repetition_penalty,
        metavar="R",
        help="make tokens already present less likely by the factor R; 1 is none",
    )
    flag(
        "--stop",
        type=values.stop,
        action="append",
        default=[],
        metavar="TEXT",
        help="stop before this text, besides at the end-of-text tokens; may be repeated",
    )
    flag("--seed", type=values.seed, metavar="N", help="same seed, same text (default: random)")


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """How a model is loaded."""
    group = parser.add_argument_group("model")
    flag = group.add_argument
    flag("--dtype", choices=values.DTYPES, help="compute in this dtype (default: the checkpoint's)")
    flag("--device", choices=values.DEVICES, help="default: the GPU where there is one, else cpu")
    flag(
        "--dequantize",
        action="store_true",
        help="make quantised weights plain in the dtype: more memory, the same values",
    )
    flag("--revision", metavar="REV", help="branch, tag or commit of a hub repository")
    flag("--force", action="store_true", help="load even if memory looks too small for the model")


def run(args: argparse.Namespace) -> int:
    """Load, generate, report."""
    from ..models.prompt_cache import keep_prompt_cache, open_prompt_cache

    prompt = read_prompt(args.prompt)
    if args.raw and args.system is not None:
        raise InputError("--system needs the chat template: leave out --raw or --system")

    if args.mtp and args.draft_model is not None:
        raise InputError("--mtp and --draft-model exclude each other: leave out one")
    if args.raw and args.template_var:
        raise InputError("--template-var needs the chat template: leave out --raw")
    if args.prompt_cache is not None:
        check_writable(args.prompt_cache)
    started = time.perf_counter()
    model, tokenizer = load_model(args, mtp=args.mtp)
    loaded = time.perf_counter()
    variables = dict(args.template_var)
    ids = prompt if args.raw else as_chat(tokenizer, prompt, args.system, variables)
    with terminal.bar("reading the prompt") as progress:
        names = ("kv_bits", "prefill_step_size", "num_draft_tokens")
        reading = {name: getattr(args, name) for name in names}
        if args.draft_model is not None:
            reading["draft_model"] = load_model(args, args.draft_model)[0]
        if args.mtp:
            reading["mtp"] = True
        if args.prompt_cache is not None:
            reading["prompt_cache"] = open_prompt_cache(args.prompt_cache, model)
        responses = stream(model, tokenizer, ids, args, progress=progress, **reading)
        if args.json:
            _print_json(responses, load_seconds=loaded - started)
        else:
            _print_text(responses)
    if args.prompt_cache is not None:
        keep_prompt_cache(args.prompt_cache, reading["prompt_cache"], model)
    return 0


def check_writable(name: str) -> None:
    """Refuse a file that could not be written at the end, before work is put into it."""
    folder = os.path.dirname(os.path.abspath(name))
    if os.path.isdir(name):
        raise InputError(f"{name}: cannot write it: it is a folder")
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{name}: cannot write it: no folder {folder} that can be written to")


def load_model(args: argparse.Namespace, name: str | None = None, mtp: bool = False):
    """The model and tokenizer that the flags name, or another of that name; `mtp` as load's."""
    from .. import models

    where: str = args.model if name is None else name
    with _reading(where):
        return models.load(
            where,
            dtype=args.dtype,
            device=args.device,
            revision=args.revision,
            force=args.force,
            dequantize=args.dequantize,
            mtp=mtp,
        )


def stream(model, tokenizer, prompt, args: argparse.Namespace, **options):
    """stream_generate with the sampling flags; options that are None are left out."""
    from .. import models

    options |= {name: getattr(args, name) for name in SAMPLING}
    return models.stream_generate(
        model,
        tokenizer,
        prompt,
        max_tokens=args.max_tokens,
        stop=args.stop,
        seed=args.seed,
        **{name: value for name, value in options.items() if value is not None},
    )


def read_prompt(text: str) -> str:
    """The prompt that the flag names: itself, or stdin without its last line end for `-`."""
    try:
        prompt = sys.stdin.read().removesuffix("\n") if text == "-" else text
        prompt.encode()
    except UnicodeError:
        raise InputError("the prompt is not valid UTF-8") from None
    if not prompt.strip():
        raise InputError("the prompt is empty: give --prompt some text")
    return prompt


def as_chat(tokenizer, prompt: str, system: str | None, variables: dict) -> str | list[int]:
    """The prompt inside the model's chat template; a model without one continues the prompt."""
    if tokenizer.chat_template is None:
        if system is not None:
            raise InputError("this model has no chat template, so --system has no place")
        if variables:
            raise InputError("this model has no chat template, so --template-var has no place")
        return prompt
    messages = [{"role": "user", "content": prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return tokenizer.encode_chat(messages, **variables)


def _reading(model: str):
    """A spinner while a folder is read; the hub's downloads show their own progress bars."""
    return terminal.status(f"reading {model}") if os.path.isdir(model) else nullcontext()


def _print_text(responses: Iterable) -> None:
    last = None
    for last in responses:
        print(last.text, end="", flush=True)
    print(flush=True)
    if last is not None:
        print(describe(last), file=sys.stderr)


def describe(response) -> str:
    """The last response's numbers in one line."""
    return (
        f"prompt: {response.prompt_tokens} tokens, {response.prompt_tps:.1f} tokens/s; "
        f"generated: {response.generation_tokens} tokens, "
        f"{response.generation_tps:.1f} tokens/s; "
        f"peak memory: {terminal.size(response.peak_memory)}"
    )


def _print_json(responses: Iterable, load_seconds: float) -> None:
    text, last = "", None
    for last in responses:
        text += last.text
    names = ("prompt_tokens", "prompt_tps", "generation_tokens", "generation_tps")
    numbers = {name: getattr(last, name, 0) for name in names}
    terminal.print_json(
        {
            "text": text,
            "finish_reason": getattr(last, "finish_reason", None),
            **numbers,
            "load_seconds": load_seconds,
            "peak_memory_bytes": getattr(last, "peak_memory", 0),
        }
    )
