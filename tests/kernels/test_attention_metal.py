"""attention's Metal: tile shapes and splits, and in the simulator what cases cannot say."""

import mlx.core as mx
import numpy as np
import pytest

from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.attention import attention, problem, reference
from torchmlx.kernels.dispatch import use
from torchmlx.kernels.flash import choose, launch, splits, tile_shape
from torchmlx.kernels.simulator import simulated
from torchmlx.kernels.spec import OLDEST, THREADGROUP_BYTES

INF, NAN = float("inf"), float("nan")


def describe(batch, heads, kv_heads, queries, keys, d, dtype=mx.bfloat16, values=None):
    k = mx.zeros((batch, kv_heads, keys, d), dtype)
    v = mx.zeros((batch, kv_heads, keys, values or d), dtype)
    q = mx.zeros((batch, heads, queries, d), dtype)
    return problem(q, k, v, causal=True, window=None, scale=1.0)


def normal(seed, *shape, dtype=mx.float32):
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return mx.array(values).astype(dtype)


@pytest.mark.parametrize("d", range(8, 257, 8))
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32])
def test_tiles_fit_into_threadgroup_memory(dtype, d):
    for queries in (1, 9, 17, 33, 100):
        for variant in ("tile", "split"):
            first, *_ = launch(describe(1, 2, 2, queries, 500, d, dtype), variant)
            assert first.threadgroup_bytes <= THREADGROUP_BYTES


@pytest.mark.parametrize(
    "rows, d, dtype, shape",
    [
        (1, 256, mx.bfloat16, (8, 16)),
        (9, 256, mx.bfloat16, (16, 32)),
        (64, 256, mx.bfloat16, (32, 16)),
        (8, 128, mx.bfloat16, (8, 32)),
        (64, 128, mx.bfloat16, (32, 16)),
        (33, 64, mx.bfloat16, (32, 32)),
        (64, 32, mx.bfloat16, (64, 16)),
        (8, 256, mx.float32, (8, 16)),
        (64, 256, mx.float32, (16, 8)),
    ],
)
def test_tile_shape(rows, d, dtype, shape):
    assert tile_shape(describe(1, 1, 1, rows, 100, d, dtype))[:2] == shape


@pytest.mark.parametrize(
    "call, variant",
    [
        ((1, 16, 2, 1, 128, 256), "tile"),
        ((1, 16, 2, 1, 129, 256), "split"),
        ((1, 16, 2, 4096, 4096, 256), "tile"),
        ((256, 9, 3, 1, 4096, 64), "tile"),
        ((1, 2, 1, 3, 9, 20), "fallback"),
        ((1, 2, 1, 3, 9, 264), "fallback"),
        ((1, 2, 1, 0, 9, 64), "fallback"),
        ((1, 2, 1, 3, 0, 64), "fallback"),
    ],
)
def test_choose(call, variant):
    assert choose(describe(*call), OLDEST) == variant


def test_what_goes_to_the_fallback():
    assert choose(describe(1, 2, 1, 3, 9, 64, mx.float64), OLDEST) == "fallback"
    assert choose(describe(1, 2, 1, 3, 9, 64, values=32), OLDEST) == "fallback"
    with pytest.raises(ValueError, match="steps of 8 up to 256, not 20"):
        launch(describe(1, 2, 1, 3, 9, 20), "tile")


@pytest.mark.parametrize("keys, want", [(300, (3, 112)), (4096, (32, 128)), (262_144, (128, 2048))])
def test_splits_of_a_decoded_token(keys, want):
    """Qwen3.6-35B-A3B: two key heads, up to 128 threadgroups each."""
    call = describe(1, 16, 2, 1, keys, 256)
    assert splits(call) == want
    partial, merge = launch(call, "split")
    assert (partial.grid, partial.threadgroup) == ((32, 8, want[0]), (32, 4, 1))
    assert partial.outputs["part"] == ((2, want[0], 8, 256), mx.float32)
    assert (merge.grid, merge.threadgroup) == ((256, 8, 2), (256, 1, 1))


def simulate(variant, arrays, **options):
    with simulated("checked") as run, use(attention=f"metal:{variant}"):
        got = attention(*arrays, **options)
        mx.eval(got)
    assert run.reports == []
    return got


@pytest.mark.parametrize("variant", ["tile", "split"])
def test_what_lies_beyond_the_valid_keys_is_not_read(clang, variant):
    """A cache of fixed capacity holds whatever was there; one sequence has no key at all."""
    q, k, v = normal(0, 3, 4, 2, 64), normal(1, 3, 2, 150, 64), normal(2, 3, 2, 150, 64)
    lengths = mx.array([131, 0, 40], mx.int32)
    want = reference(*map(to_numpy, (q, k, v)), None, np.array(lengths), scale=0.125)
    for b, n in enumerate(lengths.tolist()):
        k[b, :, n:], v[b, :, n:] = NAN, INF
    got = simulate(variant, (q, k, v), lengths=lengths)
    assert judge(got, want, 1e-12).fault == ""
    assert not np.array(got[1]).any()


@pytest.mark.parametrize("variant", ["tile", "split"])
def test_not_a_number_stays_in_its_row(clang, variant):
    """Eight rows share a fragment: scaling one must not touch its neighbours."""
    q, k, v = (normal(i, 1, 1, n, 64, dtype=mx.bfloat16) for i, n in enumerate((20, 150, 150)))
    q[0, 0, 3, 5], q[0, 0, 9, 0] = NAN, INF
    want = reference(*map(to_numpy, (q, k, v)), scale=0.125)
    got = simulate(variant, (q, k, v))
    assert judge(got, want, 1e-8).fault == ""
    assert np.isfinite(to_numpy(got)[0, 0, [2, 4, 8, 10]]).all()


def test_large_scores_do_not_overflow(clang):
    """Scores of about 1e4: the running maximum moves by more than exp can hold."""
    q, k, v = 1000 * normal(0, 1, 2, 9, 8), normal(1, 1, 1, 70, 8), normal(2, 1, 1, 70, 8)
    want = reference(*map(to_numpy, (q, k, v)), scale=8**-0.5)
    assert judge(simulate("tile", (q, k, v)), want, 1e-9).fault == ""


def test_a_decoded_token_reads_keys_and_values_once(clang):
    """Eight queries share a key head: nothing is read for each of them."""
    q, k = mx.zeros((1, 16, 1, 256), mx.bfloat16), mx.zeros((1, 2, 600, 256), mx.bfloat16)
    with simulated("fast", traffic=True) as run, use(attention="metal:tile"):
        attention(q, k, mx.zeros_like(k))
    (traffic,) = (result.traffic for result in run.results)
    assert traffic.requested <= 1.05 * 2 * (q.nbytes + k.nbytes)
    assert traffic.coalesced_share >= 0.9
