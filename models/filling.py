"""From a checkpoint's tensors to a model's parameters, whatever layout and precision they have.

A weight is quantised exactly if its scale is there. Plans come first, from the headers alone, so
that everything is checked and counted before a byte is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import mlx.core as mx

import torchmlx as torch
from torchmlx import Tensor, nn

from ..core.tensor import from_array
from ..errors import InputError
from ..serialization.safetensors import TensorInfo
from ..shelf import Shelf
from .experts_filling import Fill, plan_experts
from .forms import MXFP8, ScaleForm, infer_packing, is_microscaling, scale_form
from .moe import Experts
from .norms import ZeroCentredNorm
from .sources import SCALE_TYPES, Sources, read_scale
from .weights import (
    FP8Linear,
    Packed,
    Packing,
    QuantizedEmbedding,
    QuantizedLinear,
    dequantize_fp8,
)

FLOATS = ("F64", "F32", "F16", "BF16")
# Kept in float32 where a file has them so: the layers compute with them in float32.
KEPT_FLOAT32 = ("A_log",)


@dataclass(frozen=True)
class Target:
    """What plain weights become, where they live, and whether quantised ones become plain too."""

    dtype: torch.dtype
    device: torch.device
    dequantize: bool = False


class Planner:
    """Plans for every module of a model; `missing` names what the checkpoint lacks."""

    def __init__(self, model: nn.Module, sources: Sources, target: Target, block: Sequence[int]):
        self.model, self.sources, self.target = model, sources, target
        self.block = tuple(block)
        self.shelf = Shelf(0)
        self.missing: list[str] = []
        # Conversions by mlx-lm have convolutions as [C, taps, 1] and zero-centred norms plus one.
        self.converted = any(
            name.endswith("conv1d.weight") and sources.info(name).shape[-1] == 1 for name in sources
        )

    def plan(self, tied: bool) -> list[Fill]:
        """The fills of all modules, in their order; the head of a tied model is not its own."""
        fills: list[Fill] = []
        for path, module in list(self.model.named_modules()):
            if path == "lm_head" and tied:
                continue
            fills += self._of_module(path, module)
        self.shelf = Shelf(sum(fill.nbytes for fill in fills))
        return fills

    def _of_module(self, path: str, module: nn.Module) -> Iterator[Fill]:
        if isinstance(module, Experts):
            yield from plan_experts(self, path, module)
            return
        if hasattr(module, "plan_fills"):  # a layout of its own
            yield from module.plan_fills(self, path)
            return
        special = None
        if isinstance(module, (nn.Linear, nn.Embedding)):
            special = self._quantised(path, module)
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and not (special and name == "weight"):
                yield from self.plain(f"{path}.{name}" if path else name, parameter, module)
        if special is not None:  # after the bias, which it takes along
            yield special

    def plain(self, name: str, parameter: nn.Parameter, owner: nn.Module) -> Iterator[Fill]:
        if name not in self.sources:
            self.missing.append(name)
            return
        turned = self.converted and name.endswith("conv1d.weight")
        shape = tuple(parameter.shape)
        info = self.take_floats(name, shape[:1] + shape[:0:-1] if turned else shape)
        kept = info.dtype == "F32" and name.endswith(KEPT_FLOAT32)
        dtype = torch.float32 if kept else self.target.dtype
        less = 1.0 if self.converted and isinstance(owner, ZeroCentredNorm) else 0.0

        def run() -> None:
            array = self.sources.read(name)
            with mx.stream(mx.cpu):
                array = array.swapaxes(1, 2) if turned else array
                array = (array.astype(mx.float32) - less if less else array).astype(dtype.mx)
            parameter.data = self.placed(array)

        yield Fill(prod(parameter.shape) * dtype.itemsize, run)

    def take_floats(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """The entry of a tensor of plain numbers; InputError for another type or shape."""
        info = self.sources.take(name)
        if info.dtype.startswith("F8"):
            raise self.unscaled(name)
        if info.dtype not in FLOATS:
            raise InputError(
                f"{self.sources.place(name)} is {info.dtype}; supported: {', '.join(FLOATS)}"
            )
        self.check_shape(name, shape)
        return info

    def unscaled(self, name: str) -> InputError:
        return InputError(
            f"{self.sources.place(name)} is {self.sources.info(name).dtype}, but has no scale, "
            "such as weight_scale_inv; download it again"
        )

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        found = self.sources.info(name).shape
        if tuple(found) != shape:
            raise InputError(
                f"{self.sources.place(name)} has shape {list(found)}, but config.json asks for "
                f"{list(shape)}"
            )

    def placed(self, array: mx.array, dtype: torch.dtype | None = None) -> Tensor:
        """The array, evaluated, as a tensor on the target's device."""
        with mx.stream(mx.cpu if self.target.device.type == "cpu" else mx.gpu):
            mx.eval(array)
        if self.target.device.type == "cpu":
            array = self.shelf.put(array)
        return from_array(array, self.target.device, dtype)

    def replace(self, path: str, module: nn.Module) -> None:
        parent, _, name = path.rpartition(".")
        setattr(self.model.get_submodule(parent), name, module)

    def _quantised(self, path: str, module: nn.Linear | nn.Embedding) -> Fill | None:
        """The fill of a weight that is quantised, or None."""
        if f"{path}.weight" not in self.sources:
            return None
        if f"{path}.scales" in self.sources:
            return self._packed_weight(path, module)
        scale = self.sources.scale_of(path)
        if scale is None:
            return None
        if isinstance(module, nn.Embedding):
            raise InputError(f"{self.sources.place(scale)}: float8 embeddings are not supported")
        return self._fp8(path, module, scale)

    def _fp8(self, path: str, module: nn.Linear, scale_name: str) -> Fill:
        name, shape = f"{path}.weight", tuple(module.weight.shape)
        self.take_codes(name, shape)
        if is_microscaling(self.sources.info(scale_name), shape):
            return self._microscaling(path, module, scale_name)
        form = self.take_scale(scale_name, shape)
        width = self.target.dtype.itemsize if self.target.dequantize else 1

        def run() -> None:
            codes, scale = self.codes(name), read_scale(self.sources, scale_name)
            scale = self.placed(scale.reshape(form.shape))
            if self.target.dequantize:
                module.weight.data = dequantize_fp8(codes, scale, form.block, self.target.dtype)
                mx.eval(module.weight.mx)
            else:
                self.replace(path, FP8Linear(codes, scale, form.block, module.bias))

        return Fill(width * prod(shape) + self.sources.info(scale_name).nbytes, run)

    def _microscaling(self, path: str, module: nn.Linear, scale_name: str) -> Fill:
        """Codes with an exponent for each 32 of a row are MLX's mxfp8, byte for byte."""
        self.sources.take(scale_name)

        def run() -> None:
            codes, scales = (self.sources.read(n) for n in (f"{path}.weight", scale_name))
            with mx.stream(mx.cpu):
                words = codes.view(mx.uint32)
            self._put_packed(path, module, [self.placed(words), self.placed(scales)], MXFP8)

        width = self.target.dtype.itemsize if self.target.dequantize else 1
        return Fill(width * prod(module.weight.shape) + self.sources.info(scale_name).nbytes, run)

    def codes(self, name: str) -> Tensor:
        return self.placed(self.sources.read(name), torch.float8_e4m3fn)

    def take_codes(self, name: str, shape: tuple[int, ...]) -> None:
        info = self.sources.take(name)
        if info.dtype != "F8_E4M3":
            raise InputError(
                f"{self.sources.place(name)} has a scale, but is {info.dtype}, not F8_E4M3"
            )
        self.check_shape(name, shape)

    def take_scale(self, name: str, shape: tuple[int, ...]) -> ScaleForm:
        """How the scale of codes [N, K] lies; InputError where it fits no way that we know."""
        info = self.sources.take(name)
        if info.dtype not in SCALE_TYPES:
            raise InputError(
                f"{self.sources.place(name)} is {info.dtype}, which is no scale; supported: "
                f"{', '.join(SCALE_TYPES)}"
            )
        # Experts' scales are stacked like their codes.
        own = info.shape[len(shape) - 2 :] if len(info.shape) >= len(shape) else info.shape
        form = scale_form(own, shape[-2:], self.block)
        if form is None:
            raise InputError(
                f"{self.sources.place(name)} has shape {list(info.shape)}: it scales neither all, "
                f"nor rows, nor blocks of {' x '.join(map(str, self.block))} of the weights "
                f"{list(shape)}"
            )
        return form

    def _packed_weight(self, path: str, module: nn.Linear | nn.Embedding) -> Fill:
        n, k = module.weight.shape
        packing, names = self.take_packed(path, (n, k))
        plain = self.target.dequantize
        stored = sum(self.sources.info(name).nbytes for name in names)

        def run() -> None:
            arrays = [self.placed(self.sources.read(name)) for name in names]
            self._put_packed(path, module, arrays, packing)

        return Fill(n * k * self.target.dtype.itemsize if plain else stored, run)

    def _put_packed(self, path: str, module, arrays: Sequence[Tensor], packing: Packing) -> None:
        packed = Packed.of(arrays, packing)
        if self.target.dequantize:
            module.weight.data = packed.dequantize(self.target.dtype)
            mx.eval(module.weight.mx)
        elif isinstance(module, nn.Embedding):
            self.replace(path, QuantizedEmbedding(packed, self.target.dtype))
        else:
            self.replace(path, QuantizedLinear(packed, module.bias))

    def take_packed(self, path: str, shape: tuple[int, ...]) -> tuple[Packing, list[str]]:
        """How `path` is packed, as its shapes tell, and the names of its tensors."""
        endings = ("weight", "scales", "biases")
        names = [name for e in endings if (name := f"{path}.{e}") in self.sources]
        infos = [self.sources.take(name) for name in names]
        packing = infer_packing([(i.dtype, i.shape) for i in infos], shape)
        if packing is None:
            found = ", ".join(f"{i.dtype} {list(i.shape)}" for i in infos)
            raise InputError(
                f"{self.sources.place(names[0])}: {found} is no quantisation of {list(shape)} that "
                "MLX knows"
            )
        return packing, names
