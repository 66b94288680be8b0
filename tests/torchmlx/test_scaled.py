"""scaled_mm against torch 2.13 CPU; its blocks and scaled_grouped_mm, which torch's CPU lacks,
against float64.
"""

import numpy as np
import pytest
import torch

import torchmlx
from torchmlx import ops
from torchmlx.nn import functional as F

from .parity import data, same, to_numpy

NAMES = ("bfloat16", "float16", "float32", "float8_e4m3fn")


def codes(array):
    """The same float8 tensor for torch and for us."""
    return torch.tensor(array).to(torch.float8_e4m3fn), ops.to_fp8(torchmlx.tensor(array))


def operands(m=17, n=24, k=32):
    (a, own_a), (b, own_b) = codes(data(m, k)), codes(data(n, k, seed=1))
    return (a, b.T), (own_a, own_b.T)


def scales(kind, m=17, n=24):
    shapes = {"TensorWise": ((), (1,)), "RowWise": ((m, 1), (1, n))}[kind]
    return [data(*shape, low=0.5, high=2.0, seed=i) for i, shape in enumerate(shapes)]


def called(lib, mats, factors, kind, **options):
    """`lib`'s scaled_mm; dtypes by name, arrays as its tensors."""
    functional = lib.nn.functional
    recipe = getattr(functional.ScalingType, kind)
    a, b = (lib.tensor(factor) for factor in factors)
    if isinstance(options.get("bias"), np.ndarray):
        options["bias"] = lib.tensor(options["bias"])
    if isinstance(options.get("output_dtype"), str):
        options["output_dtype"] = getattr(lib, options["output_dtype"])
    return functional.scaled_mm(*mats, a, recipe, b, recipe, **options)


@pytest.mark.parametrize("kind", ["TensorWise", "RowWise"])
@pytest.mark.parametrize("name", [*NAMES, None])
def test_scaled_mm(kind, name):
    theirs, ours = operands()
    factors = scales(kind)
    want = called(torch, theirs, factors, kind, output_dtype=name)
    got = called(torchmlx, ours, factors, kind, output_dtype=name)
    # torch rounds before it scales.
    step = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}.get(str(want.dtype)[6:], 0.13)
    same(got, want, step)


def test_scaled_mm_with_bias_and_lists():
    theirs, ours = operands()
    factors, bias = scales("RowWise"), data(24)
    want = called(torch, theirs, factors, "RowWise", output_dtype="float32", bias=bias)
    row = F.ScalingType.RowWise
    a, b, bias = (torchmlx.tensor(x) for x in (*factors, bias))
    got = F.scaled_mm(*ours, [a], [row], [b], [row], bias=bias, output_dtype=torchmlx.float32)
    same(got, want, 1e-5)


def test_scaled_mm_of_blocks():
    (a, b), ours = operands(5, 150, 300)
    scale_a, scale_b = data(5, 3, low=0.5, high=2.0), data(3, 2, low=0.5, high=2.0, seed=1)
    wide_b = scale_b.repeat(128, 0)[:300].repeat(128, 1)[:, :150]
    left = a.double().numpy() * scale_a.repeat(128, 1)[:, :300]
    kinds = F.ScalingType.BlockWise1x128, F.ScalingType.BlockWise128x128
    got = F.scaled_mm(
        *ours,
        *(torchmlx.tensor(scale_a), kinds[0], torchmlx.tensor(scale_b), kinds[1]),
        output_dtype=torchmlx.float32,
    )
    want = left @ (b.double().numpy() * wide_b)
    np.testing.assert_allclose(to_numpy(got), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "change",
    [
        {"bias": data(23)},
        {"contraction_dim": (1,)},
        {"kind": "RowWise"},
        {"kind": "BlockWise1x32"},
        {"factors": (data(2), data(1))},
        {"factors": (data(1).astype(np.float64), data(1))},
        {"mats": lambda a, b: (a[:, :16], b)},
        {"mats": lambda a, b: (a[0], b)},
        {"mats": lambda a, b: (a.float(), b)},
        {"kind": "RowWise", "factors": (data(16, 1), data(1, 24))},
    ],
)
def test_errors_are_of_torchs_type(change):
    theirs, ours = operands()
    options = {"kind": "TensorWise", "factors": (data(1), data(1)), **change}
    mats = options.pop("mats", lambda a, b: (a, b))
    for lib, pair in ((torch, theirs), (torchmlx, ours)):
        with pytest.raises(ValueError):
            called(lib, mats(*pair), **options)


def test_errors_of_our_own():
    _, (a, b) = operands()
    one = torchmlx.tensor(1.0)
    tensor = F.ScalingType.TensorWise
    with pytest.raises(ValueError, match=r"Invalid scaling configuration.\n- .*RowWise"):
        F.scaled_mm(a, b, one, tensor, one, F.ScalingType.RowWise)
    with pytest.raises(ValueError, match="mat_a is torch.float8_e5m2"):
        F.scaled_mm(a.view(torchmlx.float8_e5m2), b, one, tensor, one, tensor)
    with pytest.raises(ValueError, match="output_dtype torch.int32"):
        F.scaled_mm(a, b, one, tensor, one, tensor, output_dtype=torchmlx.int32)
    with pytest.raises(NotImplementedError, match="contraction_dim"):
        F.scaled_mm(a, b, one, tensor, one, tensor, contraction_dim=(0, 1))


ENDS = [3, 3, 10]


def by_groups(a, b):
    """Rows of a times their groups' matrices; rows beyond the last group are zero."""
    out = np.zeros((a.shape[0], b.shape[2]))
    for g, (first, last) in enumerate(zip([0, *ENDS], ENDS, strict=False)):
        out[first:last] = a[first:last] @ b[g]
    return out


@pytest.mark.parametrize("kind", ["RowWise", "blocks"])
def test_scaled_grouped_mm(kind):
    (a, own_a), (b, own_b) = codes(data(12, 150)), codes(data(3, 140, 150, seed=1))
    a, b = a.double().numpy(), b.double().numpy().swapaxes(1, 2)
    if kind == "RowWise":
        scale_a, scale_b = data(12, low=0.5, high=2.0), data(3, 140, low=0.5, high=2.0)
        a, b = a * scale_a[:, None], b * scale_b[:, None]
        recipes = F.ScalingType.RowWise, F.ScalingType.RowWise
    else:
        scale_a, scale_b = data(12, 2, low=0.5, high=2.0), data(3, 2, 2, low=0.5, high=2.0)
        a = a * scale_a.repeat(128, 1)[:, :150]
        b = b * scale_b.repeat(128, 1)[:, :150].repeat(128, 2)[:, :, :140]
        recipes = F.ScalingType.BlockWise1x128, F.ScalingType.BlockWise128x128
    got = F.scaled_grouped_mm(
        *(own_a, own_b.transpose(1, 2)),
        *(torchmlx.tensor(scale_a), recipes[0], torchmlx.tensor(scale_b), recipes[1]),
        offs=torchmlx.tensor(ENDS).int(),
        output_dtype=torchmlx.float32,
    )
    np.testing.assert_allclose(to_numpy(got), by_groups(a, b), rtol=1e-5, atol=1e-3)


def test_scaled_grouped_mm_without_offsets():
    (a, own_a), (b, own_b) = codes(data(2, 5, 32)), codes(data(2, 9, 32, seed=1))
    scale_a, scale_b = data(2, 5, low=0.5, high=2.0), data(2, 9, low=0.5, high=2.0)
    want = (
        a.double()
        * torch.tensor(scale_a)[..., None]
        @ (b.double() * torch.tensor(scale_b)[..., None]).transpose(1, 2)
    )
    row = F.ScalingType.RowWise
    got = F.scaled_grouped_mm(
        *(own_a, own_b.transpose(1, 2), torchmlx.tensor(scale_a), row),
        *(torchmlx.tensor(scale_b), row),
    )
    assert got.dtype is torchmlx.bfloat16
    np.testing.assert_allclose(to_numpy(got), want.numpy(), rtol=1e-2, atol=1e-1)


def test_errors_of_groups():
    (_, a), (_, b) = codes(data(4, 32)), codes(data(2, 32, 8))
    row, offs = F.ScalingType.RowWise, torchmlx.tensor([1, 4]).int()
    factors = torchmlx.ones(4), row, torchmlx.ones(2, 8), row
    with pytest.raises(ValueError, match="provide offsets"):
        F.scaled_grouped_mm(a, b, *factors)
    with pytest.raises(NotImplementedError, match=r"mat_b \[G, K, N\]"):
        F.scaled_grouped_mm(a, b[0], *factors, offs=offs)
    with pytest.raises(NotImplementedError, match="Bias"):
        F.scaled_grouped_mm(a, b, *factors, offs=offs, bias=torchmlx.ones(8))
    with pytest.raises(ValueError, match=r"scale_a must have shape \[4\], got \[3\]"):
        F.scaled_grouped_mm(a, b, torchmlx.ones(3), *factors[1:], offs=offs)
    with pytest.raises(ValueError, match="does not fit mat_b"):
        F.scaled_grouped_mm(a[:, :16], b, *factors, offs=offs)
