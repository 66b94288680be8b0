"""grouped_matmul against torch 2.13's F.grouped_mm: four modes, gradients, no host read."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch.nn.functional import grouped_mm

from torchmlx.kernels.accuracy import to_numpy
from torchmlx.kernels.dispatch import use
from torchmlx.kernels.grouped_matmul import (
    KERNEL,
    choose,
    grouped_matmul,
    launch,
    problem,
    reference,
)
from torchmlx.kernels.recording import record
from torchmlx.kernels.simulator import NoClang, find_clang, simulated
from torchmlx.kernels.spec import OLDEST

TORCH = {mx.float32: torch.float32, mx.float16: torch.float16, mx.bfloat16: torch.bfloat16}
TOLERANCE = {mx.float32: 1e-5, mx.float16: 4e-3, mx.bfloat16: 3e-2}

# a, b and offs of each mode, every row or column in a group, one group empty.
MODES = {
    "rows": ((16, 16), (3, 16, 8), [5, 5, 16]),
    "columns": ((3, 16, 8), (8, 24), [4, 4, 24]),
    "inner": ((16, 24), (24, 8), [8, 8, 24]),
    "batch": ((3, 8, 16), (3, 16, 8), None),
}


def operands(mode, dtype, turned=False):
    *shapes, ends = MODES[mode]
    rng = np.random.default_rng(7)
    values = [rng.standard_normal(shape, np.float32) for shape in shapes]
    ours = [mx.array(v).astype(dtype) for v in values]
    theirs = [torch.tensor(v).to(TORCH[dtype]) for v in values]
    if turned:
        ours = [mx.contiguous(x.swapaxes(-1, -2)).swapaxes(-1, -2) for x in ours]
        theirs = [x.mT.contiguous().mT for x in theirs]
    offs = None if ends is None else mx.array(ends, mx.int32)
    return ours, theirs, offs, None if ends is None else torch.tensor(ends, dtype=torch.int32)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("mode", MODES)
def test_as_in_torch(mode, dtype, turned):
    (a, b), theirs, offs, their_offs = operands(mode, dtype, turned)
    want = grouped_mm(*theirs, offs=their_offs)
    got = grouped_matmul(a, b, offs)
    assert (got.shape, got.dtype) == (tuple(want.shape), dtype)
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(to_numpy(got), want.double().numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_as_in_torch(mode):
    """bfloat16, as torch's CPU differentiates no other dtype; ours in float32 against it."""
    (a, b), theirs, offs, their_offs = operands(mode, mx.bfloat16)
    theirs = [x.requires_grad_() for x in theirs]
    out = grouped_mm(*theirs, offs=their_offs)
    cotangent = np.random.default_rng(1).standard_normal(out.shape).astype(np.float32)
    out.backward(torch.tensor(cotangent).bfloat16())
    ours = [a.astype(mx.float32), b.astype(mx.float32)]
    rounded = mx.array(cotangent).astype(mx.bfloat16).astype(mx.float32)
    got = mx.vjp(lambda a, b: [grouped_matmul(a, b, offs)], ours, [rounded])[1]
    for gradient, tensor in zip(got, theirs, strict=True):
        want = tensor.grad.double().numpy()
        np.testing.assert_allclose(to_numpy(gradient), want, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("ends", [[0, 0], [3, 5], [-4, 99], [7, 7]])
def test_offsets_are_clamped_and_the_rest_is_zero(ends):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((7, 5)), rng.standard_normal((2, 5, 3))
    want = np.zeros((7, 3))
    first, last = np.clip(ends, 0, 7)
    want[:first], want[first:last] = a[:first] @ b[0], a[first:last] @ b[1]
    offs = mx.array(ends, mx.int32)
    got = grouped_matmul(mx.array(a.astype(np.float32)), mx.array(b.astype(np.float32)), offs)
    np.testing.assert_allclose(to_numpy(got), want, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(reference(a, b, np.array(ends)), want)


@pytest.mark.parametrize("ends", [[0, 0], [3, 5], [-4, 99]])
def test_columns_beyond_the_last_group_are_zero(ends):
    a, b = mx.ones((2, 4, 3)), mx.ones((3, 7))
    got = to_numpy(grouped_matmul(a, b, mx.array(ends, mx.int32)))
    last = min(max(ends[1], 0), 7)
    np.testing.assert_array_equal(got, np.repeat([[3.0] * last + [0.0] * (7 - last)], 4, axis=0))


@pytest.mark.parametrize("a, b", [((5, 4), (3, 4, 6)), ((5, 4), (4, 6)), ((3, 5, 4), (4, 6))])
@pytest.mark.parametrize("backend", ["fallback", "metal"])
def test_the_offsets_are_never_read_on_the_host(a, b, backend):
    """Exported with offs as an input; reading a placeholder would raise."""
    with use(backend):
        nodes = record(grouped_matmul, mx.zeros(a), mx.zeros(b), mx.array([1, 2, 5], mx.int32))
    assert len(nodes) == (1 if backend == "metal" else 0)


def test_transposed_weights_are_not_copied():
    """Their strides reach the kernel, which takes either layout: nothing else is in the graph."""
    a, b, offs = mx.zeros((8, 64)), mx.zeros((16, 32, 64)), mx.zeros((16,), mx.int32)
    with use("metal"):
        (node,) = record(lambda a, b, offs: grouped_matmul(a, b.swapaxes(1, 2), offs), a, b, offs)
    assert not node.row_contiguous
    assert "const constant int64_t* b_strides" in node.parameters


@pytest.mark.parametrize("variant", ["few", "tile16", "tile32", "tile64"])
@pytest.mark.parametrize("ends", [(0, 0, 0), (9, 9, 9), (1, 2, 3), (-5, 4, 50)])
def test_every_variant_at_the_edges(variant, ends):
    try:
        find_clang()
    except NoClang as error:
        pytest.skip(str(error))
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((9, 20)), rng.standard_normal((3, 20, 12))
    arrays = [mx.array(x.astype(np.float32)) for x in (a, b)]
    with simulated(strict=False) as seen, use(grouped_matmul=f"metal:{variant}"):
        got = grouped_matmul(*arrays, mx.array(ends, mx.int32))
    assert [str(report) for report in seen.reports] == []
    np.testing.assert_allclose(to_numpy(got), reference(a, b, np.array(ends)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "a, b, groups", [((0, 4), (2, 4, 3), 2), ((5, 0), (2, 0, 3), 2), ((5, 0), (0, 3), 2),
                     ((5, 4), (4, 0), 2), ((5, 4), (0, 4, 3), 0)]
)  # fmt: skip
def test_empty(a, b, groups):
    got = grouped_matmul(mx.ones(a), mx.ones(b), mx.zeros((groups,), mx.int32))
    shape = (a[0], b[-1]) if len(b) == 3 else (groups, a[0], b[-1])
    np.testing.assert_array_equal(to_numpy(got), np.zeros(shape))


OFFS = mx.array([1, 2], mx.int32)


@pytest.mark.parametrize(
    "a, b, offs, error, message",
    [
        ((2, 3), (2, 4, 5), OFFS, ValueError, r"a \(2, 3\) does not fit b \(2, 4, 5\)"),
        ((3,), (3, 5), OFFS, ValueError, "does not fit"),
        ((2, 3), (2, 3, 5), None, ValueError, "needs offs with a matrix"),
        ((2, 2, 3), (2, 3, 5), OFFS, ValueError, "takes no offs without a matrix"),
        ((2, 3), (4, 3, 5), OFFS, ValueError, r"\[4, 2\] are different numbers of groups"),
        ((2, 2, 3), (1, 3, 5), None, ValueError, r"\[2, 1\] are different numbers"),
        ((2, 3), (2, 3, 5), OFFS.astype(mx.int64), TypeError, "int32, not .*int64"),
        ((2, 3), (2, 3, 5), OFFS[None], TypeError, r"int32, not \(1, 2\)"),
    ],
)
def test_errors(a, b, offs, error, message):
    with pytest.raises(error, match=message):
        grouped_matmul(mx.zeros(a), mx.zeros(b), offs)


def test_mixed_dtypes():
    with pytest.raises(TypeError, match="one floating dtype, not .*float32, .*bfloat16"):
        grouped_matmul(mx.zeros((2, 3)), mx.zeros((2, 3, 4), mx.bfloat16), OFFS)


@pytest.mark.parametrize(
    "m, groups, variant",
    [
        (8, 256, "few"),
        (32, 32, "few"),
        (33, 256, "tile16"),
        (8, 7, "tile16"),
        (25, 1, "tile32"),
        (49, 1, "tile64"),
        (0, 4, "fallback"),
    ],
)
def test_choose(m, groups, variant):
    a, b, offs = mx.zeros((m, 64)), mx.zeros((groups, 64, 8)), mx.zeros((groups,))
    assert choose(problem(a, b, offs), OLDEST) == variant
    assert choose(problem(a.astype(mx.float64), b, offs), OLDEST) == "fallback"


def test_launch_covers_every_split_of_the_rows():
    """ceil(M / BM) + G tiles are enough for any groups and a rest."""
    rng = np.random.default_rng(2)
    for _ in range(300):
        m, groups, bm = rng.integers(1, 200), rng.integers(1, 9), rng.choice([16, 32, 64])
        cuts = np.sort(rng.integers(0, m + 1, groups))
        counts = np.diff([0, *cuts, m])
        assert (-(-counts // bm)).sum() <= -(-m // bm) + groups


def test_launch():
    a, offs = mx.zeros((100, 64), mx.bfloat16), mx.zeros((3,))
    (rows,) = launch(problem(a, mx.zeros((3, 64, 130)), offs), "tile32")
    assert (rows.grid, rows.threadgroup) == ((96, 4 * 7, 1), (32, 4, 1))
    (inner,) = launch(problem(a, mx.zeros((64, 130)), offs), "inner64")
    assert (inner.grid, inner.outputs["out"][0]) == ((96, 8, 3), (3, 100, 130))
    (few,) = launch(problem(a, mx.zeros((3, 64, 130)), offs), "few")
    assert (few.grid, few.threadgroup) == ((32, 40, 100), (32, 8, 1))
    with pytest.raises(ValueError, match="tile32: the other operand is jagged"):
        launch(problem(a, mx.zeros((64, 130)), offs), "tile32")
    with pytest.raises(ValueError, match="few: no empty arrays"):
        launch(problem(a[:0], mx.zeros((3, 64, 130)), offs), "few")


def test_cost_counts_the_experts_that_rows_can_meet():
    a, b, offs = mx.zeros((8, 64)), mx.zeros((256, 64, 32)), mx.zeros((256,), mx.int32)
    assert KERNEL.cost(a, b, offs).bytes == 4 * (8 * 64 + 8 * 64 * 32 + 256 + 8 * 32)
