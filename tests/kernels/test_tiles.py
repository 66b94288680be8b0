"""The tiled building block by itself, in the simulator: tiles turned either way, and edges."""

import mlx.core as mx
import numpy as np
import pytest

from torchmlx.kernels import e4m3, tiles
from torchmlx.kernels.simulator import NoClang, find_clang, simulate

BODY = """
    threadgroup T memory[LENGTH];
    uint lane = thread_index_in_simdgroup;
    uint simdgroup = simdgroup_index_in_threadgroup;
    uint rows = M;
    uint columns = N;
    threadgroup T* b_tile = memory + (A_TURNED ? BK * padded<T>(32) : 32 * padded<T>(BK));
    threadgroup float strips[512];
    constexpr uint TM = 4;
    constexpr uint TN = 2;
    uint a_row = padded<T>(A_TURNED ? 32 : BK);
    uint b_row = padded<T>(B_TURNED ? BK : 64);
    metal::simdgroup_float8x8 sums[8];
    metal::simdgroup_float8x8 total[8];
    clear_sums<8>(sums);
    clear_sums<8>(total);
    for (uint begin = 0; begin < K; begin += BK) {
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        if (A_TURNED) {
            load_tile<BK, 32>(memory, a, begin * M, M, 1, K - begin, M, simdgroup, lane);
        } else {
            load_tile<32, BK>(memory, a, begin, K, 1, M, K - begin, simdgroup, lane);
        }
        if (B_TURNED) {
            load_tile<64, BK>(b_tile, b, begin, K, 1, N, K - begin, simdgroup, lane);
        } else {
            load_tile<BK, 64>(b_tile, b, begin * N, N, 1, K - begin, N, simdgroup, lane);
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        uint column = 16 * simdgroup;
        multiply_tiles<TM, TN, A_TURNED, B_TURNED>(
            sums, memory, a_row, b_tile + (B_TURNED ? column * b_row : column), b_row);
        fold_sums<8>(total, sums, 0.5f);
    }
    for (uint i = 0; i < 8; i++) {
        sums[i] = total[i];
    }
    threadgroup float* strip = strips + 128 * simdgroup;
    uint row0 = 0;
    uint column0 = 16 * simdgroup;
""" + tiles.store("out[row * columns + column] = T(sum);")


@pytest.fixture(scope="module", autouse=True)
def clang():
    try:
        return find_clang()
    except NoClang as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("a_turned, b_turned", [(False, False), (True, True)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("m, n, k", [(32, 64, 64), (5, 37, 35)])
def test_products_of_tiles(m, n, k, dtype, a_turned, b_turned):
    """Small integers, so every sum is exact; half of each product, so that folding shows."""
    rng = np.random.default_rng(m)
    a, b = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n))
    inputs = [mx.array(a.T if a_turned else a), mx.array(b.T if b_turned else b)]
    bytes_ = 4 * tiles.scratch(32, 64, dtype.size, a_turned, b_turned)
    template = [("T", dtype), ("A_TURNED", a_turned), ("B_TURNED", b_turned)]
    template += [("M", m), ("N", n), ("K", k), ("LENGTH", bytes_ // dtype.size)]
    result = simulate(
        BODY,
        input_names=["a", "b"],
        output_names=["out"],
        header=e4m3.READ + tiles.HEADER,
        inputs=[mx.contiguous(x.astype(dtype)) for x in inputs],
        template=template,
        grid=(32, 4, 1),
        threadgroup=(32, 4, 1),
        output_shapes=[(m, n)],
        output_dtypes=[dtype],
    )
    assert [str(report) for report in result.reports] == []
    want = mx.array(0.5 * (a @ b).astype(np.float32)).astype(dtype)
    assert mx.array_equal(result.outputs[0], want).item()


@pytest.mark.parametrize("bm, expected", [(64, (2, 2)), (32, (1, 4)), (16, (1, 4))])
def test_simdgroups_share_a_tile(bm, expected):
    assert tiles.split(bm, 64) == expected


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("bm", [16, 32, 64])
def test_memory_holds_tiles_and_strips_and_fits(bm, itemsize):
    for turned in ((False, False), (False, True), (True, False), (True, True)):
        floats = tiles.scratch(bm, 64, itemsize, *turned)
        assert 8 * 64 * 4 // tiles.split(bm, 64)[1] <= floats <= 32_768 // 4
