"""How quantised weights lie in files, told from shapes and dtypes alone."""

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import InputError
from ..serialization.safetensors import TensorInfo
from .config import ModelConfig
from .weights import Packing

BLOCK = 128


class ScaleForm(NamedTuple):
    """What a scale of codes [N, K] is for: "all" (shape [1, 1]), "rows" ([N, 1]), or a "grid" of
    square blocks."""

    kind: str
    shape: tuple[int, int]
    block: int = BLOCK


def scale_form(
    scale: Sequence[int], codes: tuple[int, ...], block: Sequence[int]
) -> ScaleForm | None:
    """The form of a scale of e4m3 `codes` [N, K], or None.

    One number; a row each, [N] or [N, 1]; or a grid of square blocks, of size `block` as the
    configuration says, 128 or 32. Axes of length 1 between and behind are ModelOpt's.
    """
    n, k = codes
    sizes = tuple(s for s in scale if s != 1)
    if not sizes:
        return ScaleForm("all", (1, 1))
    square = len(set(block)) == 1
    for side in dict.fromkeys((block[0] if square else BLOCK, BLOCK, 32)):
        grid = (-(-n // side), -(-k // side))
        if sizes == tuple(g for g in grid if g != 1) and tuple(scale) != (n, 1):
            return ScaleForm("grid", grid, side)
    return ScaleForm("rows", (n, 1)) if sizes == (n,) else None


MXFP8 = Packing(32, 8, "mxfp8")


def is_microscaling(scale: TensorInfo, codes: tuple[int, ...]) -> bool:
    """Whether e4m3 codes [N, K] have exponent bytes for groups of 32 along K (OCP MXFP8)."""
    n, k = codes
    return scale.dtype in ("F8_E8M0", "U8") and k % 32 == 0 and tuple(scale.shape) == (n, k // 32)


# MLX's microscaling formats: bits and group size of each mode.
MICROSCALING = {(4, 32): "mxfp4", (8, 32): "mxfp8", (4, 16): "nvfp4"}


def infer_packing(
    tensors: Sequence[tuple[str, Sequence[int]]], shape: tuple[int, ...]
) -> Packing | None:
    """How MLX packed a weight of `shape` [.., N, K] into (dtype, shape) of weight, scales, biases.

    None where these are no such thing. Biases mark affine mode.
    """
    if len(tensors) < 2:
        return None
    (kind, packed), (scale_kind, scales), *biases = tensors
    k = shape[-1]
    lead = tuple(shape[:-1])
    if kind != "U32" or tuple(packed[:-1]) != lead or tuple(scales[:-1]) != lead:
        return None
    bits, rest = divmod(32 * packed[-1], k)
    group, more = divmod(k, max(scales[-1], 1))
    if rest or more:
        return None
    if biases:
        fits = bits in (2, 3, 4, 5, 6, 8) and group in (32, 64, 128)
        alike = tuple(biases[0][1]) == tuple(scales) and scale_kind in ("F32", "F16", "BF16")
        return Packing(group, bits, "affine") if fits and alike else None
    mode = MICROSCALING.get((bits, group)) if scale_kind == "U8" else None
    return None if mode is None else Packing(group, bits, mode)


# How a checkpoint may say that it is quantised; which weights are, their scales tell.
METHODS = ("fp8", "compressed-tensors", "modelopt", "mxfp4")


def check_quantization(config: ModelConfig) -> None:
    """Refuse a quantisation that we do not read, before its tensors look like damage."""
    found = config.values.get("quantization_config")
    if found is None or config.values.get("quantization") is not None:  # the latter is MLX's
        return
    if not isinstance(found, dict):
        raise InputError(f"{config.path}: field 'quantization_config' must be an object")
    method = found.get("quant_method") or ("affine" if "group_size" in found else None)
    if method == "affine":
        return
    if method not in METHODS:
        raise InputError(
            f"{config.path}: quantization_config has quant_method {ascii(method)[:60]}; supported: "
            f"{', '.join(METHODS)}, and MLX's own"
        )
    formats = {str(part["format"]) for part in (found, *_groups(found)) if part.get("format")}
    wrong = formats - {"float-quantized", "mixed-precision", "dense"}
    algorithm = str(found.get("quant_algo") or "FP8")
    if method == "compressed-tensors" and wrong:
        raise InputError(
            f"{config.path}: compressed-tensors format {ascii(min(wrong))[:60]} is not supported; "
            "supported: float-quantized"
        )
    if method == "modelopt" and not algorithm.startswith("FP8"):
        raise InputError(
            f"{config.path}: quant_algo {ascii(algorithm)[:60]} is not supported; supported: FP8"
        )


def _groups(found: dict) -> list[dict]:
    groups = found.get("config_groups")
    return [g for g in groups.values() if isinstance(g, dict)] if isinstance(groups, dict) else []


def block_of(config: ModelConfig) -> tuple[int, ...]:
    """The block size that the configuration names for its scales, or 128 x 128."""
    found = config.values.get("quantization_config")
    found = found if isinstance(found, dict) else {}
    weights = [g["weights"] for g in _groups(found) if isinstance(g.get("weights"), dict)]
    named = [found.get("weight_block_size"), *(w.get("block_structure") for w in weights)]
    for block in named:
        whole = isinstance(block, list) and all(type(b) is int and b > 0 for b in block)
        if whole and len(block) == 2:
            return tuple(block)
    return (BLOCK, BLOCK)
