"""float8 weights, activations and experts: products that read e4m3 codes, and the casts."""

from __future__ import annotations

from ..core import dtype as dtypes
from ..core.op import composite, op
from ..core.tensor import Tensor
from ..kernels.fp8_grouped import fp8_grouped as grouped_kernel
from ..kernels.fp8_matmul import fp8_linear as fp8_kernel
from ..kernels.moe_decode import moe_decode as moe_kernel
from .fused import speaking_torch

CODES = (dtypes.float8_e4m3fn, dtypes.uint8)

_fp8_linear = op("ops._fp8_linear", at=(), float8=True)(speaking_torch(fp8_kernel))
_fp8_grouped = op("ops._fp8_grouped", at=(), float8=True)(speaking_torch(grouped_kernel))
_moe_decode = op("ops._moe_decode", at=(), float8=True)(speaking_torch(moe_kernel))


def _check_codes(name: str, *weights: Tensor) -> None:
    """The bytes of another float8 type would be read as e4m3 without this."""
    for weight in weights:
        if weight.dtype not in CODES:
            raise TypeError(f"{name}: weights are {weight.dtype}, not torch.float8_e4m3fn")


@composite("ops.fp8_linear", at=("ops",))
def fp8_linear(x, w, scale, block=128, bias=None):
    """x @ (w * scale).T + bias with e4m3 weights, accumulated in float32, rounded once.

    x [..., K] float32, float16 or bfloat16; w [N, K] float8_e4m3fn, or its bytes as uint8; scale,
    float32 or bfloat16, multiplies: () or [1] for all weights, [N, 1] for each output, or
    [ceil(N / block), ceil(K / block)] for square blocks, the last ones cut off; bias [N] of x's
    dtype. Returns [..., N] of x's dtype. x, scale and bias have gradients, codes have none. Raises
    ValueError for shapes that do not fit, TypeError for other dtypes.
    """
    _check_codes("fp8_linear", w)
    return _fp8_linear(x, w, scale, block, bias)


@composite("ops.fp8_grouped", at=("ops",))
def fp8_grouped(x, w, scale, offs):
    """x[rows of g] @ (w[g] * scale[g]).T with e4m3 expert weights, accumulated in float32.

    x [M, K], float32, float16 or bfloat16, rows sorted by expert; w [E, N, K] float8_e4m3fn, or its
    bytes as uint8; offs [E], int32, the ends of the experts' rows, read on the device; scale,
    float32 or bfloat16, multiplies: () or [1] for all weights, [E] for each expert, [E, N, 1] for
    each output, or [E, ceil(N / 128), ceil(K / 128)] for square blocks, the last ones cut off.
    Returns [M, N] of x's dtype, rounded once; rows from offs[-1] on are zero. x and scale have
    gradients. Raises ValueError for shapes that do not fit, TypeError for other dtypes.
    """
    _check_codes("fp8_grouped", w)
    return _fp8_grouped(x, w, scale, offs)


@composite("ops.moe_decode", at=("ops",))
def moe_decode(x, gate_up, down, indices, weights, scales=None):
    """sum_s weights[t, s] * down[e] @ (silu(gate[e] @ x[t]) * (up[e] @ x[t])), e = indices[t, s].

    x [T, K]; gate_up [E, 2 I, K], gate rows first; down [E, K, I]; indices [T, S], int32 (an expert
    that does not exist adds nothing); weights [T, S], floating. Expert weights are of x's dtype, or
    float8_e4m3fn with `scales` of (gate_up, down), float32 or bfloat16: of their 128 x 128 blocks,
    ([E, ceil(2 I / 128), ceil(K / 128)], [E, ceil(K / 128), ceil(I / 128)]), of each output,
    [E, N, 1], or of each expert, [E]. Sums are float32, the result [T, K] is rounded once to x's
    dtype. Meant for few tokens: for a prompt sort the tokens by expert and use grouped_matmul or
    fp8_grouped. Raises ValueError for shapes that do not fit, TypeError for dtypes.
    """
    if scales is not None:
        _check_codes("moe_decode", gate_up, down)
    return _moe_decode(x, gate_up, down, indices, weights, scales)


@composite("ops.to_fp8", at=("ops",))
def to_fp8(x):
    """x as float8_e4m3fn: to nearest even, saturating at +-448; NaN keeps its sign. Tensor.to."""
    return x.to(dtypes.float8_e4m3fn)


@composite("ops.from_fp8", at=("ops",))
def from_fp8(x, dtype=dtypes.bfloat16):
    """The values of a float8_e4m3fn tensor, or of its bytes as uint8, in `dtype`: exact."""
    _check_codes("from_fp8", x)
    return (x.view(dtypes.float8_e4m3fn) if x.dtype is dtypes.uint8 else x).to(dtype)
