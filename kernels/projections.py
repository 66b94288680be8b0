"""Queries, keys and values of the same rows: three linear maps in one call.

On the CPU one loop reads all three matrices, so that threads meet once; elsewhere each is a product
of its own.
"""

from math import prod

import mlx.core as mx
import numpy as np

from .gemv import NMSE, linear
from .kernel import Kernel
from .spec import Case, Cost, Spec

Triple = tuple[mx.array, mx.array, mx.array]


def reference(x: np.ndarray, *arrays: np.ndarray | None) -> tuple[np.ndarray, ...]:
    """x @ w.T + bias for each, in float64."""
    return tuple(
        np.asarray(x, np.float64) @ np.asarray(w, np.float64).T + (0.0 if bias is None else bias)
        for w, bias in pairs(arrays)
    )


def fallback(
    x: mx.array,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    q_bias: mx.array | None = None,
    k_bias: mx.array | None = None,
    v_bias: mx.array | None = None,
) -> Triple:
    """Our linear, three times."""
    return linear(x, q, q_bias), linear(x, k, k_bias), linear(x, v, v_bias)


def pairs(arrays: tuple) -> zip:
    """Each weight with its bias or None, from three weights and then up to three biases."""
    return zip(arrays[:3], (*arrays[3:], None, None, None), strict=False)


def projections(
    x: mx.array,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    q_bias: mx.array | None = None,
    k_bias: mx.array | None = None,
    v_bias: mx.array | None = None,
) -> Triple:
    """x @ w.T + bias for three weights w [N, K] with biases [N] or None; x [..., K].

    One dtype; accumulated in float32, rounded once, as `linear` does. Returns three arrays
    [..., N]. Raises ValueError for shapes that do not fit, TypeError for mixed dtypes.
    """
    weights, biases = (q, k, v), (q_bias, k_bias, v_bias)
    for w, bias in zip(weights, biases, strict=True):
        if x.ndim == 0 or w.ndim != 2 or x.shape[-1] != w.shape[1]:
            raise ValueError(f"projections: x {x.shape} does not fit weights {w.shape} as [N, K]")
        if bias is not None and bias.shape != (w.shape[0],):
            raise ValueError(f"projections: bias {bias.shape} does not fit weights {w.shape}")
    given = [array for array in (x, *weights, *biases) if array is not None]
    if any(array.dtype != x.dtype for array in given):
        raise TypeError(f"projections take one dtype, not {', '.join(str(a.dtype) for a in given)}")
    return KERNEL(x, *weights) if len(given) == 4 else KERNEL(x, *weights, *biases)


def cost(x: mx.array, *arrays: mx.array | None) -> Cost:
    """Reads each array once, writes the results."""
    rows = prod(x.shape[:-1])
    given = [array for array in arrays if array is not None]
    columns = sum(w.shape[0] for w in arrays[:3] if w is not None)
    moved = x.nbytes + sum(array.nbytes for array in given) + rows * columns * x.itemsize
    return Cost(bytes=moved, flops=2 * rows * columns * x.shape[-1])


def _case(
    x: tuple[int, ...],
    sizes: tuple[int, int, int],
    why: str,
    biased: tuple[bool, bool, bool] = (False, False, False),
    layout: str = "contiguous",
) -> Case:
    scale = max(x[-1], 1) ** -0.5
    arrays: dict[str, Spec | None] = {"x": Spec(x, layout=layout)}
    for name, n in zip("qkv", sizes, strict=True):
        arrays[name] = Spec((n, x[-1]), layout=layout, scale=scale)
    if any(biased):
        for name, n, there in zip("qkv", sizes, biased, strict=True):
            arrays[f"{name}_bias"] = Spec((n,)) if there else None
    return Case(arrays, why)


CASES = [
    _case((1, 1, 576), (576, 192, 192), "SmolLM2-135M, one token"),
    _case((1, 896), (896, 128, 128), "Qwen2-0.5B, with biases", (True, True, True)),
    _case((3, 100), (70, 3, 33), "three rows, few and odd outputs, one bias", (False, True, False)),
    _case((2, 4, 257), (40, 1, 20), "eight rows, odd K"),
    _case((9, 200), (96, 32, 32), "more rows go to matmul", (True, True, True)),
    _case((40, 64), (64, 16, 16), "a prompt"),
    _case((65,), (7, 5, 3), "no leading axis"),
    _case((1, 1), (1, 1, 1), "one weight each"),
    _case((2, 130), (40, 20, 20), "transposed in memory", layout="transposed"),
    _case((2, 130), (40, 20, 20), "starts one element into its buffer", layout="offset"),
    _case((2, 130), (40, 20, 20), "every other element of a buffer", layout="strided"),
]

KERNEL = Kernel(
    "projections",
    function=projections,
    reference=reference,
    fallback=fallback,
    vjp=None,
    metal=None,
    cpu="projections",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
