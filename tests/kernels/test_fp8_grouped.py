"""fp8_grouped: experts' rows with e4m3 weights, against torch 2.13's grouped_mm on decoded ones."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch.nn.functional import grouped_mm

from torchmlx.kernels.accuracy import to_numpy
from torchmlx.kernels.dispatch import use
from torchmlx.kernels.fp8_grouped import KERNEL, choose, fp8_grouped, launch, problem
from torchmlx.kernels.recording import record
from torchmlx.kernels.simulator import NoClang, find_clang, simulated
from torchmlx.kernels.spec import OLDEST

E, N, K = 3, 144, 160
SCALES = {"all": (), "one": (1,), "expert": (E,), "row": (E, N, 1), "block": (E, 2, 2)}


def operands(shape, rows=12):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((rows, K), np.float32)
    codes = torch.tensor(100 * rng.standard_normal((E, N, K), np.float32)).to(torch.float8_e4m3fn)
    scale = rng.uniform(1e-3, 1e-2, shape).astype(np.float32)
    return x, codes, scale


def decoded(codes, scale):
    """Written with torch alone."""
    scale = torch.tensor(scale)
    if scale.shape == (E, 2, 2):
        scale = scale.repeat_interleave(128, 1).repeat_interleave(128, 2)[:, :N, :K]
    elif scale.ndim == 1:
        scale = scale[:, None, None]
    return codes.float() * scale


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("rows", [3, 12])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_as_grouped_mm_of_decoded_weights(kind, rows, dtype):
    x, codes, scale = operands(SCALES[kind], rows)
    ends = [1, 1, rows]
    x = to_numpy(mx.array(x).astype(dtype))
    weights = decoded(codes, scale).mT
    want = grouped_mm(torch.tensor(x).float(), weights, offs=torch.tensor(ends, dtype=torch.int32))
    arrays = mx.array(codes.view(torch.uint8).numpy()), mx.array(scale), mx.array(ends, mx.int32)
    got = fp8_grouped(mx.array(x.astype(np.float32)).astype(dtype), *arrays)
    assert got.dtype == dtype
    tolerance = 1e-5 if dtype == mx.float32 else 2e-2
    np.testing.assert_allclose(to_numpy(got), want.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("variant", ["few", "tile16", "tile32", "tile64"])
@pytest.mark.parametrize("ends", [(0, 0, 0), (9, 9, 9), (1, 2, 3), (-5, 4, 50)])
def test_every_variant_at_the_edges(variant, ends):
    """NaN in the scales and codes of the first expert must not reach what has no expert."""
    try:
        find_clang()
    except NoClang as error:
        pytest.skip(str(error))
    rng = np.random.default_rng(5)
    x, codes = rng.standard_normal((9, 20)), rng.integers(0, 0x7F, (3, 12, 20))
    codes[0], scale = 0x7F, rng.uniform(1e-3, 1e-2, (3,))
    scale[0] = np.nan
    arrays = [mx.array(x.astype(np.float32)), mx.array(codes, mx.uint8)]
    arrays += [mx.array(scale.astype(np.float32)), mx.array(ends, mx.int32)]
    with simulated(strict=False) as seen, use(fp8_grouped=f"metal:{variant}"):
        got = fp8_grouped(*arrays)
    assert [str(report) for report in seen.reports] == []
    want = KERNEL.reference(*map(to_numpy, arrays))
    np.testing.assert_allclose(to_numpy(got), want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(to_numpy(fp8_grouped(*arrays)), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [2, 9])
def test_the_offsets_are_never_read_on_the_host(rows):
    """Reading a placeholder raises; mx.export_function has no name for MLX's from_fp8 (0.32.4)."""
    shapes = ((rows, 4), "float32"), ((3, 6, 4), "uint8"), ((3,), "float32"), ((3,), "int32")
    arrays = [mx.zeros(shape, getattr(mx, dtype)) for shape, dtype in shapes]
    with use("metal"):
        assert len(record(fp8_grouped, *arrays)) == 1
    assert mx.compile(fp8_grouped)(*arrays).shape == (rows, 6)
    with pytest.raises(ValueError, match="eval"):
        mx.compile(lambda *a: fp8_grouped(*a) * a[3].tolist()[0])(*arrays)


def test_gradients_of_x_and_scales():
    x, codes, scale = operands((E, 2, 2))
    ends = [4, 4, 12]
    theirs = [torch.tensor(x, requires_grad=True), torch.tensor(scale, requires_grad=True)]
    wide = theirs[1].repeat_interleave(128, 1).repeat_interleave(128, 2)[:, :N, :K]
    groups = (theirs[0][:4], theirs[0][4:4], theirs[0][4:])
    parts = [r @ (codes[g].float() * wide[g]).T for g, r in enumerate(groups)]
    torch.cat(parts).square().sum().backward()
    w, offs = mx.array(codes.view(torch.uint8).numpy()), mx.array(ends, mx.int32)
    loss = lambda x, scale: fp8_grouped(x, w, scale, offs).square().sum()  # noqa: E731
    got = mx.grad(loss, argnums=(0, 1))(mx.array(x), mx.array(scale))
    for gradient, tensor in zip(got, theirs, strict=True):
        want = tensor.grad.numpy()
        np.testing.assert_allclose(to_numpy(gradient), want, rtol=1e-4, atol=1e-4 * abs(want).max())


@pytest.mark.parametrize(
    "x, w, groups",
    [
        ((0, 4), (2, 3, 4), 2),
        ((5, 0), (2, 3, 0), 2),
        ((5, 4), (2, 0, 4), 2),
        ((5, 4), (0, 3, 4), 0),
    ],
)
def test_empty(x, w, groups):
    arrays = mx.zeros(w, mx.uint8), mx.ones((1,)), mx.zeros((groups,), mx.int32)
    np.testing.assert_array_equal(fp8_grouped(mx.ones(x), *arrays), np.zeros((x[0], w[1])))


X, W = mx.zeros((5, 160)), mx.zeros((3, 144, 160), mx.uint8)
SCALE, OFFS = mx.ones((3, 2, 2)), mx.zeros((3,), mx.int32)


@pytest.mark.parametrize(
    "arrays, error, message",
    [
        ((X[:, 1:], W, SCALE, OFFS), ValueError, "x .* does not fit weights"),
        ((X, W[0], SCALE, OFFS), ValueError, "does not fit weights"),
        ((X, W, SCALE[1:], OFFS), ValueError, r"scale \(2, 2, 2\) is not .* or \(3, 2, 2\)"),
        ((X, W, SCALE, OFFS[1:]), ValueError, r"offs \(2,\) is not \(3,\)"),
        (
            (X, W.astype(mx.float32), SCALE, OFFS),
            TypeError,
            "uint8 codes, not .*float32, .*float32",
        ),
        ((X.astype(mx.int32), W, SCALE, OFFS), TypeError, "floating x"),
        ((X, W, SCALE, OFFS.astype(mx.int64)), TypeError, "int32 offs, not .*int64"),
        ((X, W, SCALE.astype(mx.int32), OFFS), TypeError, "floating scales"),
    ],
)
def test_errors(arrays, error, message):
    with pytest.raises(error, match=message):
        fp8_grouped(*arrays)


@pytest.mark.parametrize(
    "m, groups, variant",
    [
        (8, 256, "few"),
        (33, 256, "tile16"),
        (25, 1, "tile32"),
        (49, 1, "tile64"),
        (0, 4, "fallback"),
    ],
)
def test_choose(m, groups, variant):
    w = mx.zeros((groups, 8, 64), mx.uint8)
    rest = mx.zeros((groups,)), mx.zeros((groups,), mx.int32)
    assert choose(problem(mx.zeros((m, 64)), w, *rest), OLDEST) == variant
    assert choose(problem(mx.zeros((m, 64), mx.float64), w, *rest), OLDEST) == "fallback"


def test_launch():
    x, offs = mx.zeros((100, 160), mx.bfloat16), mx.zeros((3,), mx.int32)
    (tiled,) = launch(problem(x, W, SCALE, offs), "tile32")
    assert (tiled.grid, tiled.scalars["step"]) == ((96, 4 * 7, 1), 4)
    (few,) = launch(problem(x, W, mx.ones((3, 144, 1)), offs), "few")
    assert (few.grid, few.scalars) == (
        (32, 144, 100),
        {"step": 144, "row_shift": 0, "column_shift": 31},
    )
    (all_,) = launch(problem(x, W, mx.ones(()), offs), "few")
    assert all_.scalars["step"] == 0
    with pytest.raises(ValueError, match="no empty arrays"):
        launch(problem(x[:0], W, SCALE, offs), "few")
