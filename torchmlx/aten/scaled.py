"""Products of float8 by float8 with scales on both sides: scaled_mm and scaled_grouped_mm."""

from __future__ import annotations

import enum

import mlx.core as mx

from ..core import dtype as dtypes
from ..core.op import composite, op
from ..core.tensor import Tensor
from ..kernels.fp8_cast import from_fp8, to_fp8
from ..kernels.fp8_grouped import BLOCK, fp8_grouped
from ..kernels.matmul import matmul
from ..kernels.scaled_matmul import scaled_matmul


class ScalingType(enum.Enum):
    """What one scale stands for. torch.nn.functional.ScalingType."""

    TensorWise = 0
    RowWise = 1
    BlockWise1x16 = 2
    BlockWise1x32 = 3
    BlockWise1x128 = 4
    BlockWise128x128 = 5


class SwizzleType(enum.Enum):
    """The order in which scales lie. torch.nn.functional.SwizzleType."""

    NO_SWIZZLE = 0
    SWIZZLE_32_4_4 = 1
    SWIZZLE_32_8 = 2


TENSOR = (ScalingType.TensorWise, ScalingType.TensorWise)
ROW = (ScalingType.RowWise, ScalingType.RowWise)
BLOCKS = (ScalingType.BlockWise1x128, ScalingType.BlockWise128x128)

_scaled_mm = op("_scaled_mm_codes", at=(), float8=True)(scaled_matmul)


@op("_scaled_grouped_mm_codes", at=(), float8=True)
def _scaled_grouped(a, b, scale_a, scale_b, offs, out_dtype):
    """a [M, K] codes and b [G, N, K] codes with offs, or a [G, M, K] without; scale_a multiplies
    what it is a row or a block of.
    """
    left = from_fp8(a, mx.float32)
    by_row = scale_a.shape[-1] == 1
    if not by_row:
        left = left * mx.repeat(scale_a, BLOCK, axis=-1)[..., : a.shape[-1]]
    if offs is None:
        out = matmul(left, from_fp8(b, mx.float32).swapaxes(1, 2)) * scale_b.swapaxes(1, 2)
    else:
        out = fp8_grouped(left, b, scale_b, offs)
    out = out * scale_a if by_row else out
    return to_fp8(out) if out_dtype == mx.uint8 else out.astype(out_dtype)


def _one(value, name: str):
    """The value of a list of one, as two-level scaling, which wants more, is not supported."""
    if isinstance(value, (list, tuple)):
        if len(value) != 1:
            raise ValueError(f"Invalid scaling configuration.\n- {name} has {len(value)} parts.")
        return value[0]
    return value


def _check_operands(a: Tensor, b: Tensor, swizzles, recipes, contraction_dim) -> None:
    for name, mat in (("mat_a", a), ("mat_b", b)):
        if mat.dtype is not dtypes.float8_e4m3fn:
            raise ValueError(
                f"Invalid scaling configuration.\n- {name} is {mat.dtype}, not torch.float8_e4m3fn."
            )
    if contraction_dim and len(contraction_dim) != 2:
        raise ValueError("contraction_dim must have exactly 2 elements")
    if contraction_dim and tuple(contraction_dim) != (1, 0):
        raise NotImplementedError(f"contraction_dim must be () or (1, 0), not {contraction_dim}")
    swizzled = any(s not in (None, SwizzleType.NO_SWIZZLE) for s in swizzles)
    if swizzled and recipes != TENSOR:
        raise ValueError("Invalid scaling configuration.\n- Swizzled scales are not supported.")


def _check_scale(name: str, scale: Tensor, shape: tuple[int, ...]) -> None:
    if scale.dtype is not dtypes.float32:
        raise ValueError(f"Invalid scaling configuration.\n- {name} is {scale.dtype}, not float32.")
    if tuple(scale.shape) != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(scale.shape)}")


_OUTPUTS = (dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.float8_e4m3fn)


def _output(dtype):
    """The dtype of the result, and of the array that holds it."""
    dtype = dtypes.float8_e4m3fn if dtype is None else dtype
    if dtype not in _OUTPUTS:
        raise ValueError(f"output_dtype {dtype} is not float32, float16, bfloat16, float8_e4m3fn")
    return dtype, dtype.mx


def _blocks(n: int) -> int:
    return -(-n // BLOCK)


@composite(at=("F",))
def scaled_mm(
    mat_a,
    mat_b,
    scale_a,
    scale_recipe_a,
    scale_b,
    scale_recipe_b,
    swizzle_a=None,
    swizzle_b=None,
    bias=None,
    output_dtype=dtypes.bfloat16,
    contraction_dim=(),
    use_fast_accum=False,
):
    """((mat_a @ mat_b) * scale_a) * scale_b + bias for float8_e4m3fn operands, float32 sums.

    mat_a [M, K], mat_b [K, N]. Recipes, float32 scales: TensorWise, one element each; RowWise,
    [M, 1] and [1, N]; BlockWise1x128 with BlockWise128x128 (which torch has on CUDA alone),
    [M, ceil(K / 128)] and [ceil(K / 128), ceil(N / 128)]. output_dtype float32, float16, bfloat16,
    or float8_e4m3fn, which None stands for. Raises ValueError for what does not fit.
    torch.nn.functional.scaled_mm.
    """
    recipes = _one(scale_recipe_a, "scale_recipe_a"), _one(scale_recipe_b, "scale_recipe_b")
    scale_a, scale_b = _one(scale_a, "scale_a"), _one(scale_b, "scale_b")
    for name, mat in (("mat_a", mat_a), ("mat_b", mat_b)):
        if mat.ndim != 2:
            raise ValueError(f"{name} must be a matrix")
    (m, k), (k_b, n) = mat_a.shape, mat_b.shape
    if k != k_b:
        raise ValueError(f"mat_a and mat_b shapes cannot be multiplied ({m}x{k} and {k_b}x{n})")
    swizzles = _one(swizzle_a, "swizzle_a"), _one(swizzle_b, "swizzle_b")
    _check_operands(mat_a, mat_b, swizzles, recipes, contraction_dim)
    if recipes == TENSOR:
        for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
            if scale.numel() != 1:
                raise ValueError(f"{name} must have 1 Float element")
            _check_scale(name, scale, tuple(scale.shape))
        scale_a, scale_b = scale_a.reshape(()), scale_b.reshape(())
    elif recipes in (ROW, BLOCKS):
        block = recipes == BLOCKS
        _check_scale("scale_a", scale_a, (m, _blocks(k) if block else 1))
        _check_scale("scale_b", scale_b, (_blocks(k), _blocks(n)) if block else (1, n))
        scale_b = scale_b.T
    else:
        raise ValueError(f"Invalid scaling configuration.\n- {recipes[0]} and {recipes[1]}.")
    if bias is not None and bias.numel() != n:
        raise ValueError(f"Bias must be size {n} but got {bias.numel()}")
    dtype, held = _output(output_dtype)
    out = _scaled_mm(mat_a, mat_b.T, scale_a, scale_b, bias, held)
    return out.view(dtype) if held == mx.uint8 else out


@composite(at=("F",))
def scaled_grouped_mm(
    mat_a,
    mat_b,
    scale_a,
    scale_recipe_a,
    scale_b,
    scale_recipe_b,
    swizzle_a=None,
    swizzle_b=None,
    bias=None,
    offs=None,
    output_dtype=dtypes.bfloat16,
    contraction_dim=(),
    use_fast_accum=False,
):
    """grouped_mm of float8_e4m3fn operands with scales on both sides, float32 sums.

    mat_a [M, K] with offs [G], int32, the ends of the groups' rows, or [G, M, K] without; mat_b
    [G, K, N]. Recipes, float32 scales: RowWise, [M] (or [G, M]) and [G, N]; BlockWise1x128 with
    BlockWise128x128, [.., ceil(K / 128)] and [G, ceil(K / 128), ceil(N / 128)], with offs. Rows
    from offs[-1] on are zero. Raises ValueError for what does not fit, NotImplementedError for a
    mat_b of two dimensions and for a bias. torch.nn.functional.scaled_grouped_mm, which torch has
    on CUDA alone.
    """
    if mat_b.ndim != 3 or mat_a.ndim not in (2, 3):
        raise NotImplementedError("scaled_grouped_mm: mat_a [M, K] or [G, M, K], mat_b [G, K, N]")
    if bias is not None:
        raise NotImplementedError("Bias not supported yet")
    if (offs is None) == (mat_a.ndim == 2):
        raise ValueError(
            "Have to provide offsets if there is a 2d matrix, or no offset if both are 3d"
        )
    if mat_a.shape[-1] != mat_b.shape[1] or (offs is None and len(mat_a) != len(mat_b)):
        raise ValueError(f"mat_a {list(mat_a.shape)} does not fit mat_b {list(mat_b.shape)}")
    recipes = _one(scale_recipe_a, "scale_recipe_a"), _one(scale_recipe_b, "scale_recipe_b")
    swizzles = _one(swizzle_a, "swizzle_a"), _one(swizzle_b, "swizzle_b")
    _check_operands(mat_a, mat_b, swizzles, recipes, contraction_dim)
    scale_a, scale_b = _one(scale_a, "scale_a"), _one(scale_b, "scale_b")
    groups, k, n = mat_b.shape
    rows = tuple(mat_a.shape[:-1])
    if recipes == ROW:
        _check_scale("scale_a", scale_a, rows)
        _check_scale("scale_b", scale_b, (groups, n))
        scale_a, scale_b = scale_a.unsqueeze(-1), scale_b.unsqueeze(-1)
    elif recipes == BLOCKS and offs is not None:
        _check_scale("scale_a", scale_a, (*rows, _blocks(k)))
        _check_scale("scale_b", scale_b, (groups, _blocks(k), _blocks(n)))
        # One block along K is a scale for each row.
        scale_b = scale_b.transpose(1, 2)
    else:
        raise ValueError(f"Invalid scaling configuration.\n- {recipes[0]} and {recipes[1]}.")
    dtype, held = _output(output_dtype)
    out = _scaled_grouped(mat_a, mat_b.transpose(1, 2), scale_a, scale_b, offs, held)
    return out.view(dtype) if held == mx.uint8 else out
