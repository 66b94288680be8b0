"""From a folder or a hub repository to a model that runs."""

import importlib
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import mlx.core as mx

import torchmlx as torch
from torchmlx import nn

from ..errors import InputError
from ..machine import memory_available
from .checkpoint import Checkpoint
from .config import ModelConfig, read_config
from .decoder import CausalLM
from .experts_filling import Fill
from .filling import Planner, Target
from .forms import block_of, check_quantization
from .hub import resolve
from .sources import Renames, Sources
from .tokenizer import Tokenizer
from .weights import QuantizedEmbedding

ARCHITECTURES = (
    *("gemma3_text", "gpt_oss", "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3"),
    *("qwen3_5", "qwen3_5_moe", "qwen3_moe", "qwen3_next", "smollm3"),
)
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

MTP_LAYER = re.compile(r"^(?:model\.)?mtp\.layers\.(\d{1,9})\.")

log = logging.getLogger(__name__)


def load(
    path_or_repo: str,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    revision: str | None = None,
    force: bool = False,
    dequantize: bool = False,
    mtp: bool = False,
) -> tuple[nn.Module, Tokenizer]:
    """The model and tokenizer of a Hugging Face folder or repository.

    `dtype` defaults to the checkpoint's, `device` to the GPU where there is one. Quantised weights
    stay as they are, unless `dequantize` makes them plain in `dtype`. `mtp` loads the checkpoint's
    head for multi-token prediction too, for stream_generate(.., mtp=True); where there is none, a
    line in the log says so. Raises InputError, one line, for anything missing, damaged or
    unsupported, and when memory is too small (unless `force`). A local path never touches the
    network.
    """
    folder = resolve(path_or_repo, revision)
    config = read_config(folder)
    tokenizer = Tokenizer.from_folder(folder)
    return load_model(folder, config, dtype, device, force, dequantize, mtp), tokenizer


def load_model(
    folder: Path,
    config: ModelConfig,
    dtype=None,
    device=None,
    force: bool = False,
    dequantize: bool = False,
    mtp: bool = False,
) -> CausalLM:
    """The model of a folder, its weights read one tensor at a time; see `load`."""
    where = default_device() if device is None else usable_device(device)
    kind = compute_dtype(dtype, config)
    model, renames = build(config)
    tied = model.args.tie_word_embeddings
    with Checkpoint(folder) as checkpoint:
        if mtp:
            model.mtp = build_mtp(checkpoint, config, model.args)
        sources = Sources(checkpoint, renames, mtp=model.mtp is not None)
        fills = plan(model, sources, Target(kind, where, dequantize), config, tied)
        if not force:
            check_memory(folder, sum(fill.nbytes for fill in fills))
        for fill in fills:
            fill.run()
            # What a fill read and cast would stay in MLX's cache beside the weights.
            mx.clear_cache()
    if tied:
        tie(model)
    model.eos_token_ids = frozenset(config.eos_token_ids)
    model.generation_defaults = generation_defaults(config)
    return model.eval().requires_grad_(False)


def build(config: ModelConfig) -> tuple[CausalLM, Renames]:
    """The model of a configuration without memory, and what its checkpoints call otherwise."""
    check_variants(config)
    architecture = find_architecture(config)
    args = config.fill(architecture.ModelArgs)
    check_layers(config, args)
    with torch.device("meta"):
        model = architecture.Model(args)
    return model, getattr(architecture, "RENAMES", ())


def build_mtp(checkpoint: Checkpoint, config: ModelConfig, args) -> nn.Module | None:
    """The head of a checkpoint that predicts further tokens, without memory; None, and a line in
    the log, where it has none that we know."""
    make = getattr(find_architecture(config), "build_mtp", None)
    layers = {int(n) for name in checkpoint.tensors for n in MTP_LAYER.findall(name)}
    if make is None or layers != {0}:
        log.warning(
            "%s: no head for multi-token prediction here: tokens come one by one", checkpoint.folder
        )
        return None
    with torch.device("meta"):
        return make(args)


def plan(
    model: nn.Module, sources: Sources, target: Target, config: ModelConfig, tied: bool
) -> list[Fill]:
    """How each parameter is filled; InputError where checkpoint and model do not fit."""
    planner = Planner(model, sources, target, block_of(config))
    fills = planner.plan(tied)
    if tied and "lm_head.weight" in sources:
        sources.take("lm_head.weight")
    for names, what in (
        (planner.missing, "is missing"),
        (sources.unused, "does not belong to this model"),
    ):
        if names:
            raise InputError(f"{sources.folder}: tensor {_first(names)} {what}")
    if sources.skipped:
        left = " and ".join(f"{n} {kind}" for kind, n in sorted(sources.skipped.items()))
        log.warning("%s: text only: left out %s tensors", sources.folder, left)
    return fills


def tie(model: nn.Module) -> None:
    """Let the head share the embedding's weights, plain or quantised."""
    embedding = model.model.embed_tokens
    if isinstance(embedding, QuantizedEmbedding):
        model.lm_head = embedding.head()
    else:
        model.lm_head.weight = embedding.weight


def default_device() -> torch.device:
    """The GPU where there is one, else the CPU."""
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def usable_device(device) -> torch.device:
    """A device that this machine has."""
    where = torch.device(device)
    here = {"cpu", default_device().type}
    if where.type not in here:
        raise InputError(f"--device {where}: this machine has {' and '.join(sorted(here))} only")
    return where


def compute_dtype(dtype, config: ModelConfig) -> torch.dtype:
    """The dtype asked for, or else the checkpoint's; InputError for one we cannot compute in."""
    name = str(dtype).removeprefix("torch.") if dtype is not None else config.values["dtype"]
    name = name or "float32"
    if name not in DTYPES:
        raise InputError(
            f"{config.path}: dtype {ascii(name)[:60]} is not one of {', '.join(DTYPES)}"
        )
    return DTYPES[name]


def check_variants(config: ModelConfig) -> None:
    """Refuse what would silently give other numbers."""
    plain = {
        "hidden_act": "silu",
        "hidden_activation": "gelu_pytorch_tanh",
        "use_sliding_window": False,
        "use_bidirectional_attention": False,
        "attn_logit_softcapping": None,
    }
    for name, wanted in plain.items():
        if config.values.get(name, wanted) not in (wanted, None):
            raise InputError(
                f"{config.path}: {name} {ascii(config.values[name])[:60]} is not supported here"
            )
    check_quantization(config)


def check_layers(config: ModelConfig, args) -> None:
    """Refuse lists with an entry for each layer that do not fit the layers, and kinds of layers
    that the architecture does not have."""
    listed = config.values.get("layer_types")
    unknown = [k for k in listed if k not in args.layer_kinds] if isinstance(listed, list) else []
    if unknown:
        raise InputError(
            f"{config.path}: layer_types {ascii(unknown[0])[:60]} is not supported here: "
            f"{config.model_type} has {' and '.join(args.layer_kinds)} only"
        )
    for name in ("layer_types", "no_rope_layers"):
        found = getattr(args, name, None)
        if found is not None and len(found) != args.num_hidden_layers:
            raise InputError(
                f"{config.path}: field {name!r} has {len(found)} entries, num_hidden_layers is "
                f"{args.num_hidden_layers}; download it again"
            )


def find_architecture(config: ModelConfig) -> ModuleType:
    """The file of models/ for a configuration's model_type."""
    if config.model_type not in ARCHITECTURES:
        raise InputError(
            f"{config.path}: model_type {ascii(config.model_type)[:60]} is not supported; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    return importlib.import_module(f"{__package__}.{config.model_type}")


def _first(names: Iterable[str]) -> str:
    first, *rest = names
    return ascii(first)[:120] + (f" (and {len(rest)} more)" if rest else "")


def check_memory(folder: Path, needed: int) -> None:
    """Refuse a model that cannot fit, before reading it."""
    available = memory_available()
    if available is not None and needed > available:
        raise InputError(
            f"{folder}: the weights need {needed / 2**30:.1f} GiB and "
            f"{available / 2**30:.1f} GiB of memory are available; use a smaller model or dtype, "
            "or --force to try"
        )


def generation_defaults(config: ModelConfig) -> dict[str, float]:
    """Sampling options of generation_config.json; greedy unless it says do_sample."""
    found = config.generation
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    given = {n: v for n in names if (v := getattr(found, n)) is not None}
    if not found.do_sample:
        return {n: v for n, v in given.items() if n == "repetition_penalty"}
    return {"temperature": 1.0, "top_k": 50, **given}
