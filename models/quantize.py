"""`torchmlx convert --quantize`: a checkpoint's weights in fewer bits, one tensor at a time.

fp8 is written as Qwen's and DeepSeek's releases are: e4m3 with bfloat16 scales of 128 x 128 blocks,
experts one by one; embedding, head, routers, norms and what feeds decays stay. The others are
written as mlx-community's are: MLX's own groups, experts stacked, embedding and head too.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import mlx.core as mx

import torchmlx as torch
from torchmlx import nn, ops

from ..core.tensor import from_array
from ..errors import InputError
from ..serialization.safetensors import DTYPES, save_sharded, write_text
from .checkpoint import Checkpoint, copy_settings, staged_folder
from .config import ModelConfig, read_config
from .experts_filling import Part, Stack, expert_stacks
from .filling import Target
from .forms import BLOCK
from .gated_delta_net import GatedDeltaNet
from .gpt_oss import MXFP4, ClampedExperts
from .loading import build, plan
from .moe import Experts
from .norms import ZeroCentredNorm
from .sources import Sources
from .weights import Packing

FORMATS = {
    "fp8": None,
    "int8": Packing(64, 8, "affine"),
    "int4": Packing(64, 4, "affine"),
    "mxfp8": Packing(32, 8, "mxfp8"),
    "mxfp4": Packing(32, 4, "mxfp4"),
}
# The maps that FP8 releases quantise; others are few, or decide too much: routers, gates, decays.
FP8_MAPS = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    *("in_proj_qkv", "in_proj_z", "in_proj_qkvz", "out_proj"),
)
# mlx-lm keeps what chooses and weighs experts in 8 bits, in every mode.
ROUTERS = ("mlp.gate", "mlp.router", "shared_expert_gate")
ROUTER_PACKING = Packing(64, 8, "affine")
SHARD_BYTES = 1 << 30
# Elements quantised at a time. Of 2^18, 2^20 and 2^22 the first made mxfp4 in the least time, 1.2 s
# for 28 million and whole 3.3; the other forms take as long either way (2 cores of an EPYC Zen 4).
PIECE = 1 << 18


@dataclass(frozen=True)
class Item:
    """A tensor to write: its safetensors dtype and shape, and what makes it."""

    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], mx.array]

    @property
    def nbytes(self) -> int:
        size = DTYPES[self.dtype].itemsize
        for n in self.shape:
            size *= n
        return size


def quantize(
    source: str | os.PathLike[str], out: str | os.PathLike[str], form: str, force: bool = False
) -> Path:
    """Write the model folder `source` with its weights in `form`, one of FORMATS, to `out`.

    Weights must be plain, except gpt-oss's experts, which stay in MXFP4: what is quantised already
    raises InputError, as do damaged checkpoints and weights that are not finite. `out` appears
    complete or not at all. No more than one shard (1 GiB) and one layer's experts of a projection
    are in memory.
    """
    source, out = Path(source), Path(out)
    if form not in FORMATS:
        raise InputError(f"--quantize {form}: choose from {', '.join(FORMATS)}")
    config = read_config(source)
    check_plain(config, form)
    model, renames = build(config)
    with Checkpoint(source) as checkpoint, staged_folder(out, source, force) as folder:
        sources = Sources(checkpoint, renames)
        target = Target(torch.float32, torch.device("cpu"))
        plan(model, sources, target, config, model.args.tie_word_embeddings)  # all fits, or raises
        writer = (FP8Writer if form == "fp8" else MLXWriter)(model, sources, FORMATS[form], config)
        items = dict(writer.items())

        def load(name: str) -> tuple[str, mx.array]:
            with mx.stream(mx.cpu):
                array = items[name].make()
                mx.eval(array)
            mx.clear_cache()
            return items[name].dtype, array

        save_sharded(folder, {n: i.nbytes for n, i in items.items()}, load, SHARD_BYTES)
        copy_settings(source, folder, skip=("config.json",))
        fields = writer.config(dict(config.raw))
        write_text(folder / "config.json", json.dumps(fields, indent=2, ensure_ascii=False) + "\n")
    return out


def check_plain(config: ModelConfig, form: str) -> None:
    """Refuse what is quantised already, and what the form has no layout for."""
    if config.model_type == "gpt_oss" and form == "fp8":
        raise InputError(
            f"{config.path}: no FP8 layout has experts with biases; choose mxfp4, mxfp8, int4 or "
            "int8"
        )
    for name in ("quantization_config", "quantization"):
        found = config.values.get(name)
        experts_only = config.model_type == "gpt_oss" and name == "quantization_config"
        if experts_only and isinstance(found, dict) and found.get("quant_method") == "mxfp4":
            continue
        if found is not None:
            raise InputError(f"{config.path}: the model is quantised already; convert the original")


class Writer:
    """What both layouts share: the walk over the model's modules."""

    def __init__(self, model: nn.Module, sources: Sources, config: ModelConfig):
        self.model, self.sources, self.source_config = model, sources, config
        # Parts of one stacked tensor follow each other.
        self.read = lru_cache(maxsize=1)(sources.read)

    def items(self) -> Iterator[tuple[str, Item]]:
        """Names as written, and what to write, in the model's order."""
        tied = self.model.args.tie_word_embeddings
        for path, module in self.model.named_modules():
            if path == "lm_head" and tied:
                continue
            if isinstance(module, Experts):
                yield from self.experts(path, *expert_stacks(self.sources, path, module))
                continue
            if isinstance(module, ClampedExperts):
                yield from self.clamped_experts(path, module)
                continue
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    yield from self.weight(path, name, module)

    def experts(self, path: str, up: Stack, down: Stack) -> Iterator[tuple[str, Item]]:
        raise NotImplementedError

    def clamped_experts(self, path: str, module: ClampedExperts) -> Iterator[tuple[str, Item]]:
        raise NotImplementedError

    def weight(self, path: str, name: str, module: nn.Module) -> Iterator[tuple[str, Item]]:
        raise NotImplementedError

    def as_is(self, name: str) -> Item:
        info = self.sources.info(name)
        return Item(info.dtype, tuple(info.shape), lambda: self.sources.read(name))

    def finite(self, name: str, array: mx.array) -> mx.array:
        """A weight in float32; InputError where it holds what no scale can hold."""
        array = array.astype(mx.float32)
        if not mx.isfinite(array).all().item():
            raise InputError(f"{self.sources.place(name)} holds NaN or infinity; no scale fits it")
        return array


class FP8Writer(Writer):
    """Hugging Face's layout; what the text model does without is kept."""

    def __init__(self, model: nn.Module, sources: Sources, packing: None, config: ModelConfig):
        super().__init__(model, sources, config)
        self.plain: list[str] = []

    def items(self) -> Iterator[tuple[str, Item]]:
        yield from super().items()
        checkpoint = self.sources.checkpoint
        for stored in self.sources.left_out:
            info = checkpoint.tensors[stored]
            yield stored, Item(info.dtype, tuple(info.shape), partial(checkpoint.read, stored))

    def weight(self, path: str, name: str, module: nn.Module) -> Iterator[tuple[str, Item]]:
        own = f"{path}.{name}"
        stored = self.sources.stored(own)
        if name == "weight" and isinstance(module, nn.Linear) and path.endswith(FP8_MAPS):
            yield from self._codes(stored, own, lambda: self.sources.read(own), module.weight.shape)
            return
        if name == "weight":
            self.plain.append(stored.removesuffix(".weight"))
        yield stored, self.as_is(own)

    def experts(self, path: str, up: Stack, down: Stack) -> Iterator[tuple[str, Item]]:
        for stack in (up, down):
            for part in stack.parts:
                shape = (part.rows, stack.shape[2])
                if part.expert is not None:
                    read = partial(self.sources.read, part.name)
                    yield from self._codes(self.sources.stored(part.name), part.name, read, shape)
                    continue
                yield from self._unstack(path, part, stack)

    def _unstack(self, path: str, part: Part, stack: Stack) -> Iterator[tuple[str, Item]]:
        """Experts one by one from a tensor of all; the first half of gate_up_proj is the gate."""
        stem = self.sources.stored(part.name).removesuffix(".weight").rpartition(".")[0]
        kinds = [part.stem.rpartition(".")[2]]
        kinds = ["gate_proj", "up_proj"] if kinds == ["gate_up_proj"] else kinds
        rows = part.rows // len(kinds)
        for expert in range(stack.shape[0]):
            for i, kind in enumerate(kinds):
                name = f"{stem}.{expert}.{kind}.weight".replace(".switch_mlp.", ".experts.")

                def read(expert=expert, first=i * rows) -> mx.array:
                    return self.read(part.name)[expert, first : first + rows]

                yield from self._codes(name, part.name, read, (rows, stack.shape[2]))

    def _codes(self, stored: str, place: str, read, shape) -> Iterator[tuple[str, Item]]:
        """A weight's codes and its scales; both come of one pass."""
        once = cache(lambda: to_blocks(self.finite(place, read())))

        def codes() -> mx.array:
            return once()[0]

        def scale() -> mx.array:
            result = once()[1]
            once.cache_clear()
            return result

        grid = tuple(-(-n // BLOCK) for n in shape)
        yield stored, Item("F8_E4M3", tuple(shape), codes)
        yield f"{stored}_scale_inv", Item("BF16", grid, scale)

    def config(self, fields: dict[str, Any]) -> dict[str, Any]:
        return fields | {
            "quantization_config": {
                "quant_method": "fp8",
                "fmt": "e4m3",
                "activation_scheme": "dynamic",
                "weight_block_size": [BLOCK, BLOCK],
                "modules_to_not_convert": self.plain,
            }
        }


def to_blocks(weight: mx.array) -> tuple[mx.array, mx.array]:
    """float32 [N, K] as e4m3 codes (uint8), and bfloat16 scales of 128 x 128 blocks.

    The largest value of a block becomes 448 or a little less: scales are rounded up, so that none
    saturates.
    """
    n, k = weight.shape
    rows, columns = -(-n // BLOCK), -(-k // BLOCK)
    padded = mx.pad(weight, [(0, -n % BLOCK), (0, -k % BLOCK)])
    cells = padded.reshape(rows, BLOCK, columns, BLOCK)
    exact = mx.abs(cells).max(axis=(1, 3)) / 448
    # bfloat16 is float32's upper half: adding just less than one of its units rounds up.
    words = (exact.view(mx.uint32) + 0xFFFF) & 0xFFFF0000
    scale = mx.where(exact > 0, words.view(mx.float32), 1.0)
    values = (cells / scale[:, None, :, None]).reshape(padded.shape)[:n, :k]
    codes = ops.to_fp8(from_array(values, torch.device("cpu"))).mx
    return codes, scale.astype(mx.bfloat16)


def grouped(weight: mx.array, packing: Packing) -> list[mx.array]:
    """mx.quantize of [.., N, K], some rows at a time: mxfp4 takes 75 bytes an element meanwhile."""
    rows = weight.reshape(-1, weight.shape[-1])
    step = max(1, PIECE // rows.shape[1])
    pieces = []
    for first in range(0, len(rows), step):
        pieces.append(mx.quantize(rows[first : first + step], **packing.options))
        mx.eval(pieces[-1])
    lead = weight.shape[:-1]
    return [mx.concatenate(list(p)).reshape(*lead, -1) for p in zip(*pieces, strict=True)]


class MLXWriter(Writer):
    """mlx-community's layout, with the names and the forms of tensors that mlx-lm has."""

    def __init__(self, model: nn.Module, sources: Sources, packing: Packing, config: ModelConfig):
        super().__init__(model, sources, config)
        self.packing = packing
        self.overrides: dict[str, dict] = {}
        self.hybrid = any(isinstance(m, GatedDeltaNet) for m in model.modules())
        kind = config.model_type
        self.prefix = "language_model." if kind.startswith("qwen3_5") else ""
        self.mixtral = kind == "mixtral"
        self.stack = ".experts." if kind == "gpt_oss" else ".switch_mlp."

    def name(self, own: str) -> str:
        """mlx-lm's name for ours."""
        own = own.replace(".mlp.", ".block_sparse_moe.") if self.mixtral else own
        return self.prefix + own.replace(".experts.", self.stack)

    def weight(self, path: str, name: str, module: nn.Module) -> Iterator[tuple[str, Item]]:
        own = f"{path}.{name}"
        if name == "weight" and isinstance(module, (nn.Linear, nn.Embedding)):
            router = path.endswith(ROUTERS) or (self.mixtral and path.endswith(".gate"))
            packing = ROUTER_PACKING if router else self.packing
            shape = tuple(module.weight.shape)
            if shape[-1] % packing.group_size == 0:
                if router:
                    self.overrides[self.name(path)] = packing.options
                yield from self._packed(path, own, lambda: self.sources.read(own), shape, packing)
                return
        yield self.name(own), self._converted(own, module)

    def _converted(self, own: str, module: nn.Module) -> Item:
        """As it is; except that hybrids have norms plus one, and convolutions as [C, taps, 1]."""
        item = self.as_is(own)
        if self.hybrid and isinstance(module, ZeroCentredNorm):

            def shifted() -> mx.array:
                array = item.make()
                return (array.astype(mx.float32) + 1).astype(array.dtype)

            return Item(item.dtype, item.shape, shifted)
        if own.endswith("conv1d.weight"):
            channels, _, taps = item.shape
            return Item(item.dtype, (channels, taps, 1), lambda: item.make().swapaxes(1, 2))
        return item

    def experts(self, path: str, up: Stack, down: Stack) -> Iterator[tuple[str, Item]]:
        count, _, columns = up.shape
        inner = down.shape[2]
        for kind, stack, first, rows in (
            ("gate_proj", up, 0, inner),
            ("up_proj", up, inner, inner),
            ("down_proj", down, 0, down.shape[1]),
        ):
            read = self._stacked(stack, first, rows)
            shape = (count, rows, columns if stack is up else inner)
            stem, place = f"{path}.{kind}", stack.parts[0].name
            if shape[-1] % self.packing.group_size:
                dtype = self.sources.info(place).dtype
                yield self.name(f"{stem}.weight"), Item(dtype, shape, read)
            else:
                yield from self._packed(stem, place, read, shape, self.packing)

    def clamped_experts(self, path: str, module: ClampedExperts) -> Iterator[tuple[str, Item]]:
        """gpt-oss's, its biases apart; what is MXFP4 in the release stays so, whatever the form."""
        for each in module.maps(self.sources, path):
            stem = f"{path}.{each.kind}"
            lead, k = each.shape[:2], each.shape[2]
            yield f"{stem}.bias", Item(self.sources.info(each.bias_name).dtype, lead, each.bias)
            if each.packed:
                self.overrides[stem] = MXFP4.options
                yield f"{stem}.weight", Item("U32", (*lead, k // 8), lambda e=each: e.weight()[0])
                yield f"{stem}.scales", Item("U8", (*lead, k // 32), lambda e=each: e.weight()[1])
            elif k % self.packing.group_size:
                raise InputError(
                    f"{self.sources.place(each.name)}: {k} columns are no multiple of the groups "
                    f"of {self.packing.group_size}; choose another form"
                )
            else:
                read = partial(lambda e: e.weight()[0], each)
                yield from self._packed(stem, each.name, read, each.shape, self.packing)

    def _stacked(self, stack: Stack, first: int, rows: int) -> Callable[[], mx.array]:
        """What reads rows `first` and on of all experts, as one array."""
        last = first + rows

        def read() -> mx.array:
            if stack.parts[0].expert is None:
                whole = mx.concatenate([self.sources.read(p.name) for p in stack.parts], axis=1)
                return whole[:, first:last]
            chosen = [p for p in stack.parts if first <= p.first < last]
            return mx.stack([self.sources.read(p.name) for p in chosen])

        return read

    def _packed(self, path: str, place: str, read, shape, packing: Packing):
        """Weight, scales and (affine) biases; all come of one pass."""
        dtype = self.sources.info(place).dtype
        if dtype == "F64":
            raise InputError(f"{self.sources.place(place)} is F64; convert to float32 first")

        def pack() -> list[mx.array]:
            array = read()
            self.finite(place, array)
            return grouped(array, packing)

        once = cache(pack)
        *lead, k = shape
        forms = [("weight", "U32", k * packing.bits // 32)]
        affine = packing.mode == "affine"
        forms += [("scales", dtype if affine else "U8", k // packing.group_size)]
        forms += [("biases", dtype, k // packing.group_size)] if affine else []
        for i, (ending, kind, columns) in enumerate(forms):

            def make(i=i) -> mx.array:
                array = once()[i]
                if i == len(forms) - 1:
                    once.cache_clear()
                return array

            yield self.name(f"{path}.{ending}"), Item(kind, (*lead, columns), make)

    def config(self, fields: dict[str, Any]) -> dict[str, Any]:
        found = {**self.packing.options, **self.overrides}
        kind = fields["model_type"]
        if "text_config" in fields:
            fields["text_config"] = self._with_old_names(fields["text_config"])
        else:
            fields = self._with_old_names(fields)
            if kind.startswith("qwen3_5"):
                fields["model_type"] = kind.removesuffix("_text")
        return fields | {"quantization": found, "quantization_config": found}

    def _with_old_names(self, fields: dict[str, Any]) -> dict[str, Any]:
        """With the names that transformers 5 no longer writes: mlx-lm reads no others, and has
        defaults of its own for most."""
        values = self.source_config.values
        rope, local = values["rope"], values["rope_local"]
        old = {
            "rope_theta": rope.theta,
            "partial_rotary_factor": rope.partial_rotary_factor,
            "tie_word_embeddings": self.model.args.tie_word_embeddings,
            "num_experts": values.get("num_experts"),
            "head_dim": values.get("head_dim"),
            "rope_local_base_freq": None if local is None else local.theta,
        }
        scaling = values.get("rope_parameters") or {}
        scaling = scaling.get("full_attention", scaling)
        if rope.rope_type != "default" and scaling:
            old["rope_scaling"] = {**scaling, "type": rope.rope_type}
        old |= self._period(list(values.get("layer_types") or ()))
        return fields | {n: v for n, v in old.items() if v is not None and fields.get(n) is None}

    def _period(self, kinds: list[str]) -> dict[str, int]:
        """Every which layer sees everything, where kinds of layers alternate in that way."""
        whole = [kind == "full_attention" for kind in kinds]
        period = whole.index(True) + 1 if True in whole else 0
        if period < 2 or whole != [n % period == 0 for n in range(1, len(kinds) + 1)]:
            return {}
        return {"full_attention_interval" if self.hybrid else "sliding_window_pattern": period}
