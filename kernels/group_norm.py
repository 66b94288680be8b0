"""Group norm: mean 0 and variance 1 over a group of channels and all that follows them, then a
weight and a bias a channel (arXiv:1803.08494).
"""

import mlx.core as mx
import numpy as np

from .convolving import wide
from .kernel import Kernel
from .layer_norm import NMSE, check, normed
from .spec import Case, Cost, Spec


def _beside(parameter, x):
    """[C] shaped to go with x [B, C, ..]."""
    return parameter.reshape(-1, *(1,) * (x.ndim - 2))


def reference(x, w=None, bias=None, *, groups: int, eps: float) -> np.ndarray:
    """In float64."""
    rows = np.asarray(x, np.float64).reshape(x.shape[0], groups, -1)
    with np.errstate(invalid="ignore"):
        apart = rows - rows.mean(-1, keepdims=True)
        out = apart / np.sqrt(np.square(apart).mean(-1, keepdims=True) + eps)
    out = out.reshape(x.shape)
    out = out if w is None else out * _beside(w, x)
    return out if bias is None else out + _beside(bias, x)


def fallback(x, w=None, bias=None, *, groups: int, eps: float) -> mx.array:
    """In float32 for half types, rounded once."""
    h = wide(x)
    rows = h.reshape(x.shape[0], groups, x.size // (x.shape[0] * groups))
    out = normed(rows, eps).reshape(x.shape)
    out = out if w is None else out * _beside(w, x).astype(h.dtype)
    out = out if bias is None else out + _beside(bias, x).astype(h.dtype)
    return out.astype(x.dtype)


def group_norm(
    x: mx.array,
    w: mx.array | None = None,
    bias: mx.array | None = None,
    *,
    groups: int,
    eps: float = 1e-5,
) -> mx.array:
    """(x - mean) / sqrt(variance + eps) * w + bias, over each group of channels.

    x [B, C, ...] in float32, float16, bfloat16, or float64 on the CPU; w and bias [C] in any
    floating dtype, or None. Computed in float32 and rounded once to x's dtype. Raises ValueError
    for shapes that do not fit, TypeError for dtypes.
    """
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ValueError(f"group_norm: x {x.shape} as [B, C, ..] does not divide into {groups}")
    check("group_norm", x, w, bias, x.shape[1])
    return KERNEL(x, w, bias, groups=groups, eps=float(eps)) if x.size else x


def cost(x, w=None, bias=None, *, groups: int, eps: float) -> Cost:
    """Reads each array once, writes the result; sum, difference, square and scale an element."""
    read = sum(a.nbytes for a in (x, w, bias) if a is not None)
    return Cost(bytes=read + x.nbytes, flops=6 * x.size)


def _case(shape: tuple[int, ...], groups: int, why: str, w=True, bias=True, **spec) -> Case:
    arrays: dict[str, Spec | None] = {"x": Spec(shape, **spec)}
    arrays["w"] = Spec(shape[1:2]) if w else None
    arrays["bias"] = Spec(shape[1:2]) if bias else None
    return Case(arrays, why, {"groups": groups, "eps": 1e-5})


CASES = [
    _case((2, 64, 9, 7), 32, "a U-Net's"),
    _case((1, 6, 5, 3, 4), 3, "over frames too"),
    _case((3, 20), 5, "nothing after the channels"),
    _case((2, 5, 33), 5, "a channel each, as instance norm", w=False, bias=False),
    _case((2, 8, 300), 1, "one group", w=False),
    _case((2, 12, 10), 4, "special values", bias=False, fill="specials"),
    _case((2, 12, 6, 5), 4, "transposed in memory", layout="transposed"),
]

KERNEL = Kernel(
    "group_norm",
    function=group_norm,
    reference=reference,
    fallback=fallback,
    vjp=None,
    metal=None,
    cpu="group_norm",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
