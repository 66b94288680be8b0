"""x times weights that MLX quantised: integers with scales and biases, or small floats with scales.

On Apple GPUs MLX's own quantized_matmul serves: it is bound by reading the codes (its gathered
form is published with 542 GB/s of an M3 Ultra's 819 at four rows, mlx#4509; not measured by us).
MLX's on the Linux CPU is not: 106 ms for 1x2048 -> 8192 in four bits, eight times its own bfloat16
product. There ours in C++ serves 4 and 8 bits.
"""

from math import prod

import mlx.core as mx
import numpy as np

from . import e4m3
from .gemv import fallback as plain_linear
from .kernel import Kernel
from .matmul import matmul
from .spec import Case, Cost, Spec

# mode -> (group size, bits) where they are not given; of all but affine the only ones.
DEFAULTS = {"affine": (64, 4), "mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}

GROUPS, BITS = (32, 64, 128), (2, 3, 4, 5, 6, 8)

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def codes(w: np.ndarray, bits: int) -> np.ndarray:
    """The codes [N, K] in w [N, K * bits / 32]: from the low bits of each row to the high ones."""
    w = np.ascontiguousarray(w, np.uint32)
    flat = np.unpackbits(w.view(np.uint8), axis=1, bitorder="little")
    return flat.reshape(len(w), -1, bits) @ (1 << np.arange(bits))


def factors(scales: np.ndarray, mode: str) -> np.ndarray:
    """What codes are multiplied by, in float64: mx modes store exponents, nvfp4 e4m3."""
    if mode == "affine":
        return np.asarray(scales, np.float64)
    if mode == "nvfp4":
        return e4m3.widen(scales)
    return 2.0 ** (np.asarray(scales, np.float64) - 127)


def reference(x, w, scales, biases=None, *, group_size: int, bits: int, mode: str) -> np.ndarray:
    """x @ (codes * scales + biases).T in float64."""
    stored = codes(w, bits)
    values = stored if mode == "affine" else E2M1[stored] if bits == 4 else e4m3.widen(stored)
    weights = values * np.repeat(factors(scales, mode), group_size, axis=1)
    if biases is not None:
        weights = weights + np.repeat(np.asarray(biases, np.float64), group_size, axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(x, np.float64) @ weights.T


def written_out(w, scales, biases, wide: mx.Dtype, form) -> mx.array:
    """The weights in `wide`; affine scales and biases have gradients."""
    w = mx.stop_gradient(w)
    if form["mode"] != "affine":
        return mx.dequantize(w, mx.stop_gradient(scales), dtype=mx.float32, **form).astype(wide)
    ones, zeros = (make(scales.shape, mx.float32) for make in (mx.ones, mx.zeros))
    stored = mx.dequantize(w, ones, zeros, **form).reshape(*scales.shape, -1).astype(wide)
    values = stored * scales.astype(wide)[..., None] + biases.astype(wide)[..., None]
    return values.reshape(w.shape[0], -1)


def fallback(x, w, scales, biases=None, *, group_size: int, bits: int, mode: str) -> mx.array:
    """MLX's quantized_matmul; on the CPU, where it is slow, a product of weights written out."""
    form = {"group_size": group_size, "bits": bits, "mode": mode}
    if mx.default_device().type != mx.cpu:
        w = mx.stop_gradient(w)
        scales = mx.stop_gradient(scales) if mode != "affine" else scales
        return mx.quantized_matmul(x, w, scales, biases, **form).astype(x.dtype)
    wide = mx.float64 if x.dtype == mx.float64 else mx.float32
    return plain_linear(x.astype(wide), written_out(w, scales, biases, wide, form)).astype(x.dtype)


def vjp(primals, cotangent, output, *, group_size: int, bits: int, mode: str):
    """Gradients of x, and of affine scales and biases; none (zeros) of codes and their scales."""
    x, w, scales, *rest = (array for array in primals if array is not None)
    form = {"group_size": group_size, "bits": bits, "mode": mode}
    weights = written_out(w, scales, rest[0] if rest else None, mx.float32, form)
    gx = matmul(cotangent.astype(mx.float32), weights).astype(x.dtype)
    if mode != "affine":
        return gx, mx.zeros_like(w), mx.zeros_like(scales)
    g = cotangent.reshape(-1, w.shape[0]).astype(mx.float32)
    products = matmul(g.T, x.reshape(-1, x.shape[-1]).astype(mx.float32))
    grouped = products.reshape(*scales.shape, group_size)
    ones, zeros = mx.ones_like(scales), mx.zeros_like(scales)
    stored = written_out(w, ones, zeros, mx.float32, form).reshape(grouped.shape)
    gradients = ((grouped * stored).sum(axis=-1), grouped.sum(axis=-1))
    return gx, mx.zeros_like(w), *(each.astype(scales.dtype) for each in gradients)


def quantized_matmul(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
) -> mx.array:
    """x @ w.T for quantised w, accumulated in float32, rounded once; mx.quantized_matmul's form.

    x [..., K] float32, float16 or bfloat16; w [N, K * bits / 32] uint32 and scales
    [N, K / group_size] as mx.quantize makes them. mode "affine": 2, 3, 4, 5, 6 or 8 bits (default
    4), groups of 32, 64 or 128 (default 64), floating scales and biases of one dtype; "mxfp4",
    "mxfp8" (groups of 32) and "nvfp4" (of 16): scales uint8, no biases. K is a multiple of 32 in
    every mode. Returns [..., N] of x's dtype; biases multiply sums of x, so that an infinite x may
    give NaN. x, affine scales and biases have gradients. Raises ValueError for shapes and forms
    that do not fit, TypeError for dtypes.
    """
    if mode not in DEFAULTS:
        raise ValueError(f"quantized_matmul: mode {mode!r} is not one of {', '.join(DEFAULTS)}")
    group_size, bits = group_size or DEFAULTS[mode][0], bits or DEFAULTS[mode][1]
    known = group_size in GROUPS and bits in BITS if mode == "affine" else None
    if known is False or (known is None and (group_size, bits) != DEFAULTS[mode]):
        raise ValueError(f"quantized_matmul: {mode} has no {bits} bits in groups of {group_size}")
    if x.ndim == 0 or w.ndim != 2 or w.shape[1] * 32 != x.shape[-1] * bits:
        raise ValueError(f"quantized_matmul: x {x.shape} does not fit {bits}-bit w {w.shape}")
    shape = (w.shape[0], x.shape[-1] // group_size)
    if x.shape[-1] % max(group_size, 32) or scales.shape != shape:
        raise ValueError(
            f"quantized_matmul: scales {scales.shape} do not fit x {x.shape} and w {w.shape} in "
            f"groups of {group_size}"
        )
    if (biases is None) == (mode == "affine") or (biases is not None and biases.shape != shape):
        raise ValueError(f"quantized_matmul: affine has biases {shape}, other modes have none")
    _check_dtypes(x, w, scales, biases)
    arrays = (x, w, scales) if biases is None else (x, w, scales, biases)
    return KERNEL(*arrays, group_size=group_size, bits=bits, mode=mode)


def _check_dtypes(x, w, scales, biases) -> None:
    if w.dtype != mx.uint32 or x.dtype not in (mx.float32, mx.float16, mx.bfloat16):
        raise TypeError(f"quantized_matmul takes float x and uint32 w, not {x.dtype}, {w.dtype}")
    floating = mx.issubdtype(scales.dtype, mx.floating)
    good = scales.dtype == mx.uint8 if biases is None else floating and biases.dtype == scales.dtype
    if not good:
        raise TypeError(f"quantized_matmul: scales are {scales.dtype}")


def cost(x, w, scales, biases=None, *, group_size: int, bits: int, mode: str) -> Cost:
    """Reads each array once, writes the result; a multiply and an add for each weight and row."""
    rows, n = prod(x.shape[:-1]), w.shape[0]
    read = sum(array.nbytes for array in (x, w, scales, biases) if array is not None)
    return Cost(bytes=read + rows * n * x.itemsize, flops=2 * rows * n * x.shape[-1])


def random_words(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Any codes."""
    return rng.integers(0, 2**32, shape, np.uint32)


def e4m3_words(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Codes that are numbers."""
    values = e4m3.narrow(100 * rng.standard_normal((shape[0], 4 * shape[1])))
    return values.view(np.uint32)


def exponents(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """About 1 / 16."""
    return rng.integers(120, 127, shape).astype(np.uint8)


def e4m3_scales(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Subnormal ones too."""
    return rng.integers(1, 64, shape).astype(np.uint8)


def _case(x, n, mode, why, group_size=0, bits=0, dtype=None, **spec) -> Case:
    group_size, bits = group_size or DEFAULTS[mode][0], bits or DEFAULTS[mode][1]
    k = x[-1]
    shape = (n, k // group_size)
    arrays = {
        "x": Spec(x, **spec),
        "w": Spec((n, k * bits // 32), "uint32", e4m3_words if mode == "mxfp8" else random_words),
    }
    if mode == "affine":
        scale = k**-0.5 / 2**bits
        arrays["scales"] = Spec(shape, dtype, scale=scale)
        arrays["biases"] = Spec(shape, dtype, scale=scale * 2 ** (bits - 1))
    else:
        arrays["scales"] = Spec(shape, "uint8", e4m3_scales if mode == "nvfp4" else exponents)
    return Case(arrays, why, {"group_size": group_size, "bits": bits, "mode": mode})


CASES = [
    _case((1, 2048), 96, "affine", "a token, MLX's default: 4 bits, groups of 64"),
    _case((1, 1, 576), 33, "affine", "SmolLM2's width: the last step half empty"),
    _case((1, 256), 40, "affine", "groups of 32", 32),
    _case((3, 384), 40, "affine", "groups of 128, three rows", 128),
    _case((8, 320), 17, "affine", "8 bits, eight rows", 64, 8),
    _case((1, 1056), 20, "affine", "8 bits, groups of 32", 32, 8, "bfloat16"),
    _case((2, 256), 16, "affine", "scales of another dtype than x", 64, 4, "float32"),
    _case((1, 96), 31, "mxfp4", "three groups of 32"),
    _case((13, 352), 24, "mxfp4", "thirteen rows"),
    _case((1, 224), 31, "mxfp8", "e4m3 with exponents"),
    _case((5, 1024), 24, "mxfp8", "five rows"),
    _case((1, 160), 31, "nvfp4", "ten groups of 16"),
    _case((4, 512), 24, "nvfp4", "four rows"),
    _case((30, 192), 70, "affine", "a prompt"),
    _case((2, 20, 128), 70, "mxfp8", "a prompt in two leading axes"),
    _case((40, 128), 70, "nvfp4", "a prompt, x transposed", layout="transposed"),
    _case((6, 256), 20, "affine", "x starts one element into its buffer", layout="offset"),
    _case((3, 256), 20, "mxfp4", "every other element of x's buffer", layout="strided"),
    _case((6, 256), 20, "mxfp4", "NaN and infinity in x stay in their rows", fill="specials"),
]

# Beyond rounding, K up to 2048: sums of codes and biases cancel in part. MLX's float32 on the CPU
# needs as much. Half types sum in float32, then round once.
NMSE = {"float32": 1e-11, "float16": 1e-9, "bfloat16": 1e-8}

KERNEL = Kernel(
    "quantized_matmul",
    function=quantized_matmul,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=None,
    cpu="quantized_matmul",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
