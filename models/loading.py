"""From a folder or a hub repository to a model that runs."""

import importlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import mlx.core as mx

import torchmlx as torch
from torchmlx import nn

from ..core.tensor import from_array
from ..errors import InputError
from ..machine import memory_available
from .checkpoint import Checkpoint
from .config import ModelConfig, read_config
from .hub import resolve
from .tokenizer import Tokenizer

ARCHITECTURES = ("llama", "qwen2", "qwen3")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
WEIGHT_DTYPES = ("F64", "F32", "F16", "BF16")
# Left in older checkpoints; computed here.
DERIVED = ("rotary_emb.inv_freq",)


def load(
    path_or_repo: str,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    revision: str | None = None,
    force: bool = False,
) -> tuple[nn.Module, Tokenizer]:
    """The model and tokenizer of a Hugging Face folder or repository.

    `dtype` defaults to the checkpoint's, `device` to the GPU where there is one. Raises InputError,
    one line, for anything missing, damaged or unsupported, and when memory is too small (unless
    `force`). A local path never touches the network.
    """
    folder = resolve(path_or_repo, revision)
    config = read_config(folder)
    tokenizer = Tokenizer.from_folder(folder)
    return load_model(folder, config, dtype, device, force), tokenizer


def load_model(
    folder: Path, config: ModelConfig, dtype=None, device=None, force: bool = False
) -> nn.Module:
    """The model of a folder, its weights read one tensor at a time."""
    where = default_device() if device is None else usable_device(device)
    kind = compute_dtype(dtype, config)
    check_plain(config)
    architecture = find_architecture(config)
    args = config.fill(architecture.ModelArgs)
    with torch.device("meta"):
        model = architecture.Model(args)
    with Checkpoint(folder) as checkpoint:
        targets = match(checkpoint, model, args.tie_word_embeddings)
        if not force:
            check_memory(folder, model, kind)
        for name, parameter in targets.items():
            array = checkpoint.read(name).astype(kind.mx)
            with mx.stream(mx.cpu if where.type == "cpu" else mx.gpu):
                mx.eval(array)
            parameter.data = from_array(array, where)
    model.eos_token_ids = frozenset(config.eos_token_ids)
    model.generation_defaults = generation_defaults(config)
    return model.eval().requires_grad_(False)


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
    name = str(dtype).removeprefix("torch.") if dtype is not None else config.values["dtype"]
    name = name or "float32"
    if name not in DTYPES:
        raise InputError(f"{config.path}: dtype {name} is not one of {', '.join(DTYPES)}")
    return DTYPES[name]


def check_plain(config: ModelConfig) -> None:
    """Refuse what would silently give other numbers: quantised weights and unknown variants."""
    plain = {"hidden_act": "silu", "use_sliding_window": False, "quantization_config": None}
    for name, wanted in plain.items():
        if config.values.get(name, wanted) not in (wanted, None):
            raise InputError(
                f"{config.path}: {name} {ascii(config.values[name])[:60]} is not supported here"
            )


def find_architecture(config: ModelConfig) -> ModuleType:
    """The file of models/ for a configuration's model_type."""
    if config.model_type not in ARCHITECTURES:
        raise InputError(
            f"{config.path}: model_type {ascii(config.model_type)} is not supported; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    return importlib.import_module(f"{__package__}.{config.model_type}")


def match(checkpoint: Checkpoint, model: nn.Module, tied: bool) -> dict[str, nn.Parameter]:
    """Which parameter each tensor of the checkpoint fills; InputError where they do not fit."""
    parameters = dict(model.named_parameters())
    extra = [
        name
        for name in checkpoint.tensors
        if name not in parameters
        and not name.endswith(DERIVED)
        and not (tied and name == "lm_head.weight")
    ]
    missing = [name for name in parameters if name not in checkpoint.tensors]
    for names, what in ((missing, "is missing"), (extra, "does not belong to this model")):
        if names:
            raise InputError(f"{checkpoint.folder}: tensor {_first(names)} {what}")
    for name, parameter in parameters.items():
        info = checkpoint.tensors[name]
        if info.dtype not in WEIGHT_DTYPES:
            raise InputError(
                f"{checkpoint.file_of(name)}: tensor {name} is {info.dtype}; "
                f"supported: {', '.join(WEIGHT_DTYPES)}"
            )
        if tuple(info.shape) != tuple(parameter.shape):
            raise InputError(
                f"{checkpoint.file_of(name)}: tensor {name} has shape {list(info.shape)}, but "
                f"config.json asks for {list(parameter.shape)}"
            )
    return {name: parameters[name] for name in checkpoint.tensors if name in parameters}


def _first(names: Iterable[str]) -> str:
    first, *rest = names
    return f"{ascii(first)} (and {len(rest)} more)" if rest else ascii(first)


def check_memory(folder: Path, model: nn.Module, kind: torch.dtype) -> None:
    """Refuse a model that cannot fit, before reading it."""
    needed = sum(p.numel() for p in model.parameters()) * kind.itemsize
    available = memory_available()
    if available is not None and needed > available:
        raise InputError(
            f"{folder}: the weights need {needed / 2**30:.1f} GiB in {kind} and "
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
