"""Layer norm: mean 0, variance 1 over the last axis, then weight and bias (arXiv:1607.06450).

MLX has its own for the GPU; on the CPU that one runs on one thread and took four to six times
torch's processor time (512x2048, AMD EPYC, 2026-12-02).
"""

import mlx.core as mx
import numpy as np

from .convolving import wide
from .kernel import Kernel
from .spec import Case, Cost, Spec


def reference(x, w=None, bias=None, *, eps: float) -> np.ndarray:
    """In float64."""
    x = np.asarray(x, np.float64)
    with np.errstate(invalid="ignore"):
        apart = x - x.mean(-1, keepdims=True)
        out = apart / np.sqrt(np.square(apart).mean(-1, keepdims=True) + eps)
    out = out if w is None else out * w
    return out if bias is None else out + bias


def normed(x: mx.array, eps: float) -> mx.array:
    """Mean 0 and variance 1 over the last axis; MLX's own is right to float32 alone (0.32.4)."""
    if x.dtype != mx.float64:
        return mx.fast.layer_norm(x, None, None, eps)
    apart = x - x.mean(axis=-1, keepdims=True)
    return apart / mx.sqrt(apart.square().mean(axis=-1, keepdims=True) + eps)


def fallback(x, w=None, bias=None, *, eps: float) -> mx.array:
    """In float32 for half types, rounded once."""
    out = normed(wide(x), eps)
    out = out if w is None else out * w.astype(out.dtype)
    return (out if bias is None else out + bias.astype(out.dtype)).astype(x.dtype)


def check(name: str, x, w, bias, channels: int) -> None:
    """Raise ValueError or TypeError for arrays that do not fit each other."""
    for label, array in (("x", x), ("weight", w), ("bias", bias)):
        if array is not None and not mx.issubdtype(array.dtype, mx.floating):
            raise TypeError(f"{name} takes floating dtypes, not {label} of {array.dtype}")
    for label, array in (("weight", w), ("bias", bias)):
        if array is not None and array.shape != (channels,):
            raise ValueError(f"{name}: {label} {array.shape} does not fit x {x.shape}")


def layer_norm(
    x: mx.array, w: mx.array | None = None, bias: mx.array | None = None, *, eps: float = 1e-5
) -> mx.array:
    """(x - mean) / sqrt(variance + eps) * w + bias over the last axis.

    x [..., n] in float32, float16, bfloat16, or float64 on the CPU; w and bias [n] in any floating
    dtype, or None. Computed in float32 and rounded once to x's dtype. Raises ValueError for shapes
    that do not fit, TypeError for dtypes.
    """
    if x.ndim == 0:
        raise ValueError("layer_norm takes an axis to norm over, not one number")
    check("layer_norm", x, w, bias, x.shape[-1])
    return KERNEL(x, w, bias, eps=float(eps)) if x.size else x


def cost(x, w=None, bias=None, *, eps: float) -> Cost:
    """Reads each array once, writes the result; sum, difference, square and scale an element."""
    read = sum(a.nbytes for a in (x, w, bias) if a is not None)
    return Cost(bytes=read + x.nbytes, flops=6 * x.size)


def _case(shape: tuple[int, ...], why: str, w=True, bias=True, eps: float = 1e-5, **spec) -> Case:
    arrays: dict[str, Spec | None] = {"x": Spec(shape, **spec)}
    arrays["w"] = Spec(shape[-1:], w if isinstance(w, str) else None) if w else None
    arrays["bias"] = Spec(shape[-1:], w if isinstance(w, str) else None) if bias else None
    return Case(arrays, why, {"eps": eps})


CASES = [
    _case((2, 5, 768), "GPT-2"),
    _case((3, 577), "odd"),
    _case((1025, 33), "many rows", w=False, bias=False),
    _case((2, 8200), "long rows", bias=False),
    _case((4, 130), "a bias alone", w=False),
    _case((4, 130), "parameters in float32", w="float32"),
    _case((5, 3), "fewer values than a vector holds"),
    _case((6, 40), "special values", fill="specials"),
    _case((6, 100), "transposed in memory", layout="transposed"),
    _case((3, 70), "every other element", layout="strided"),
]

# Beyond rounding. The variance is that of values less their mean, in float32.
NMSE = {"float32": 2e-12, "float16": 1e-6, "bfloat16": 1e-5}

KERNEL = Kernel(
    "layer_norm",
    function=layer_norm,
    reference=reference,
    fallback=fallback,
    vjp=None,
    metal=None,
    cpu="layer_norm",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
