"""The experts of a layer, from all layouts: stacked, per expert, and mlx-lm's three stacks.

Each projection's tensors are copied into one stack, so that none is in memory twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

import torchmlx as torch
from torchmlx import Tensor

from ..core.tensor import from_array
from ..errors import InputError
from ..serialization.safetensors import NAME_OF_MLX
from .forms import BLOCK, Packing, ScaleForm
from .moe import Experts
from .sources import Sources, bits, blank, read_scale
from .weights import FP8Experts, Packed, QuantizedExperts, dequantize_fp8

if TYPE_CHECKING:
    from .filling import Planner


@dataclass(frozen=True)
class Fill:
    """One planned piece of loading: it leaves `nbytes` in the model."""

    nbytes: int
    run: Callable[[], None]


@dataclass(frozen=True)
class Part:
    """A tensor `name` (of a module: `stem`.weight) and its place: expert (None: all), rows."""

    stem: str
    name: str
    expert: int | None
    first: int
    rows: int

    def shape(self, experts: int, columns: int) -> tuple[int, ...]:
        """What the tensor's shape must be."""
        lead = (experts,) if self.expert is None else ()
        return (*lead, self.rows, columns)

    def place(self, stack: np.ndarray, first: int, rows: int, columns: int) -> np.ndarray:
        """Its place in a stack, where it begins at row `first`."""
        expert = slice(None) if self.expert is None else self.expert
        return stack[expert, first : first + rows, :columns]


@dataclass(frozen=True)
class Stack:
    """One of the two stacks of weights [E, rows, columns] and where its parts come from."""

    attribute: str
    shape: tuple[int, int, int]
    parts: tuple[Part, ...]


MLX_OF_NAME = {name: dtype for dtype, name in NAME_OF_MLX.items()}

# The name of the scale of each part, and how it lies.
Scales = Mapping[str, tuple[str, ScaleForm]]


def plan_experts(planner: Planner, path: str, experts: Experts) -> Iterator[Fill]:
    """The fills of the experts at `path`; what is not there goes to planner.missing."""
    stacks = expert_stacks(planner.sources, path, experts)
    parts = [part for stack in stacks for part in stack.parts]
    lacking = [part.name for part in parts if part.name not in planner.sources]
    if lacking:
        planner.missing += lacking
    elif f"{parts[0].stem}.scales" in planner.sources:
        yield _packed(planner, path, experts, stacks)
    elif all(_scale_of(planner, part) is None for part in parts):
        for stack in stacks:
            for part in stack.parts:
                planner.take_floats(part.name, part.shape(experts.count, stack.shape[2]))
            yield _plain(planner, experts, stack, {})
    else:
        scales = {p.name: _take_fp8(planner, p, stack) for stack in stacks for p in stack.parts}
        if planner.target.dequantize:
            for stack in stacks:
                yield _plain(planner, experts, stack, scales)
        else:
            yield _fp8(planner, path, experts, stacks, scales)


def expert_stacks(sources: Sources, path: str, experts: Experts) -> tuple[Stack, Stack]:
    """Where the two stacks come from, by the layout that the names show."""
    e, k, i = experts.count, experts.hidden, experts.intermediate
    if f"{path}.gate_up_proj" in sources:
        up = (Part(f"{path}.gate_up_proj", f"{path}.gate_up_proj", None, 0, 2 * i),)
        down = (Part(f"{path}.down_proj", f"{path}.down_proj", None, 0, k),)
    elif f"{path}.down_proj.weight" in sources:
        up = tuple(
            _of_module(f"{path}.{kind}_proj", None, first, i)
            for kind, first in (("gate", 0), ("up", i))
        )
        down = (_of_module(f"{path}.down_proj", None, 0, k),)
    else:
        up = tuple(
            _of_module(f"{path}.{number}.{kind}_proj", number, first, i)
            for number in range(e)
            for kind, first in (("gate", 0), ("up", i))
        )
        down = tuple(_of_module(f"{path}.{n}.down_proj", n, 0, k) for n in range(e))
    return Stack("gate_up_proj", (e, 2 * i, k), up), Stack("down_proj", (e, k, i), down)


def _of_module(stem: str, expert: int | None, first: int, rows: int) -> Part:
    return Part(stem, f"{stem}.weight", expert, first, rows)


def _scale_of(planner: Planner, part: Part) -> str | None:
    """A part's scale: of X.weight as ever, of a stacked X as X_scale_inv or X_scale."""
    if part.name != part.stem:
        return planner.sources.scale_of(part.stem)
    endings = ("scale_inv", "scale", "weight_scale_inv", "weight_scale")
    return next((n for e in endings if (n := f"{part.stem}_{e}") in planner.sources), None)


def _plain(planner: Planner, experts: Experts, stack: Stack, scales: Scales) -> Fill:
    """A stack of floating weights; codes with scales are dequantised."""
    sources, dtype = planner.sources, planner.target.dtype

    def run() -> None:
        array, raw = blank(stack.shape, dtype.mx)
        for part in stack.parts:
            place = part.place(raw, part.first, part.rows, stack.shape[2])
            if part.name in scales:
                place[...] = bits(_dequantized(planner, part, *scales[part.name]), dtype.mx)
            elif sources.info(part.name).dtype == NAME_OF_MLX[dtype.mx]:
                sources.read_into(part.name, place)
            else:
                place[...] = bits(sources.read(part.name), dtype.mx)
        getattr(experts, stack.attribute).data = planner.placed(array)

    return Fill(prod(stack.shape) * dtype.itemsize, run)


def _dequantized(planner: Planner, part: Part, scale_name: str, form: ScaleForm) -> mx.array:
    cpu = torch.device("cpu")
    codes = from_array(planner.sources.read(part.name), cpu, torch.float8_e4m3fn)
    scale = read_scale(planner.sources, scale_name).reshape(*codes.shape[:-2], *form.shape)
    scale = from_array(scale, cpu)
    return dequantize_fp8(codes, scale, form.block, planner.target.dtype).mx


def _take_fp8(planner: Planner, part: Part, stack: Stack) -> tuple[str, ScaleForm]:
    scale = _scale_of(planner, part)
    shape = part.shape(stack.shape[0], stack.shape[2])
    if scale is None:
        raise planner.unscaled(part.name)
    planner.take_codes(part.name, shape)
    form = planner.take_scale(scale, shape)
    if form.block != BLOCK and not planner.target.dequantize:
        raise InputError(
            f"{planner.sources.place(scale)}: experts with blocks of {form.block} are supported "
            "dequantised only; use --dequantize"
        )
    return scale, form


def _fp8(
    planner: Planner, path: str, experts: Experts, stacks: tuple[Stack, Stack], scales: Scales
) -> Fill:
    """Codes stay codes.

    Where gate and up have grids of their own each is padded to whole blocks with zeros, which
    add nothing, so that the grids can stand one behind the other.
    """
    sources, inner = planner.sources, experts.intermediate
    rows = any(form.kind == "rows" for _, form in scales.values())
    if rows and any(form.kind == "grid" for _, form in scales.values()):
        raise InputError(f"{sources.folder}: {path} has scales of rows and of blocks")
    pad = -inner % BLOCK if not rows and len(stacks[0].parts) > 1 else 0
    shapes = [
        (experts.count, 2 * (inner + pad), experts.hidden),
        (experts.count, experts.hidden, inner + pad),
    ]
    exact = any(sources.info(name).dtype != "BF16" for name, _ in scales.values())
    dtype, unit = mx.float32 if exact else mx.bfloat16, 1 if rows else BLOCK

    def build(stack: Stack, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        codes, raw = blank(shape, mx.uint8)
        columns = 1 if rows else -(-shape[2] // BLOCK)
        grid, raw_grid = blank((shape[0], -(-shape[1] // unit), columns), dtype)
        for part in stack.parts:
            first = part.first + pad if part.first else 0
            sources.read_into(part.name, part.place(raw, first, part.rows, stack.shape[2]))
            name, form = scales[part.name]
            place = part.place(raw_grid, first // unit, -(-part.rows // unit), columns)
            # One number serves all places of its expert.
            place[...] = bits(read_scale(sources, name), dtype).reshape(
                *place.shape[:-2], *form.shape
            )
        return planner.placed(codes, torch.float8_e4m3fn), planner.placed(grid)

    def run() -> None:
        pairs = [build(stack, shape) for stack, shape in zip(stacks, shapes, strict=True)]
        planner.replace(path, FP8Experts(*pairs))

    kept = sum(map(prod, shapes)) + sum(sources.info(name).nbytes for name, _ in scales.values())
    return Fill(kept, run)


def _packed(planner: Planner, path: str, experts: Experts, stacks: tuple[Stack, Stack]) -> Fill:
    """What mlx-lm has quantised; gate and up become one stack."""
    plans = [_take_packed_stack(planner, stack) for stack in stacks]

    def build(stack: Stack, packing: Packing, names: list[list[str]]) -> Packed:
        arrays = []
        for kind in zip(*names, strict=True):
            infos = [planner.sources.info(name) for name in kind]
            dtype = MLX_OF_NAME[infos[0].dtype]
            array, raw = blank((*stack.shape[:2], infos[0].shape[-1]), dtype)
            for part, name in zip(stack.parts, kind, strict=True):
                place = part.place(raw, part.first, part.rows, raw.shape[2])
                planner.sources.read_into(name, place)
            arrays.append(planner.placed(array))
        return Packed.of(arrays, packing)

    def run() -> None:
        built = [build(stack, *plan) for stack, plan in zip(stacks, plans, strict=True)]
        if planner.target.dequantize:
            for stack, packed in zip(stacks, built, strict=True):
                plain = packed.dequantize(planner.target.dtype)
                getattr(experts, stack.attribute).data = planner.placed(plain.mx)
        else:
            planner.replace(path, QuantizedExperts(*built))

    sizes = [planner.sources.info(n).nbytes for _, names in plans for kind in names for n in kind]
    return Fill(sum(sizes), run)


def _take_packed_stack(planner: Planner, stack: Stack) -> tuple[Packing, list[list[str]]]:
    """The packing that all parts of a stack have, and each part's tensors."""
    found = [
        planner.take_packed(part.stem, part.shape(stack.shape[0], stack.shape[2]))
        for part in stack.parts
    ]
    packings = {packing for packing, _ in found}
    dtypes = {tuple(planner.sources.info(n).dtype for n in names) for _, names in found}
    if len(packings) > 1 or len(dtypes) > 1:
        place = planner.sources.place(stack.parts[0].name)
        raise InputError(f"{place} is quantised otherwise than up_proj, which is not supported")
    return packings.pop(), [names for _, names in found]
