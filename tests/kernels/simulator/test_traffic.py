"""Traffic counters against numbers worked out by hand."""

import mlx.core as mx
import pytest

from torchmlx.kernels.simulator import Traffic, simulated
from torchmlx.kernels.softmax import softmax

INDEX = "uint i = thread_position_in_grid.x;\n"
MIB = 1 << 20


@pytest.fixture(scope="module")
def count(run):
    def count(source, x, *more, **options):
        result = run(source, x, *more, mode="fast", traffic=True, **options)
        assert result.reports == ()
        return result.traffic

    return count


def test_a_copy(count):
    """1000 floats: 4000 bytes each way; 32 accesses of 128 bytes, the last of 8 lanes."""
    assert count(INDEX + "y[i] = x[i];", mx.ones((1000,))) == Traffic(
        requested_read=4000,
        requested_written=4000,
        cache_read=4000,
        cache_written=4000,
        loads=32,
        loads_coalesced=32,
        load_lines=32,
        stores=32,
        stores_coalesced=32,
        store_lines=32,
        most_loads=1,
        most_phases=1,
    )


def test_a_broadcast_is_one_line(count):
    """32 lanes ask for the same 4 bytes: 128 requested, one line of 128 bytes through the cache."""
    traffic = count(INDEX + "y[i] = x[7];", mx.ones((32,)))
    assert (traffic.requested_read, traffic.cache_read) == (128, 128)
    assert (traffic.loads, traffic.loads_coalesced, traffic.load_lines) == (1, 1, 1)


def test_a_strided_read_touches_a_line_a_lane(count):
    """Every 32nd float: 32 lines for 128 bytes, of which each costs 128."""
    traffic = count(INDEX + "y[i] = x[32 * i];", mx.ones((1024,)), shape=(32,))
    assert (traffic.loads, traffic.loads_coalesced, traffic.load_lines) == (1, 0, 32)
    assert (traffic.requested_read, traffic.cache_read) == (128, 4096)
    assert traffic.coalesced_share == 0.0


def test_misaligned_runs_touch_one_line_more(count):
    """128 bytes from byte 4 on lie in two lines; the buffer's last line has 4 bytes."""
    traffic = count(INDEX + "y[i] = x[i + 1];", mx.ones((33,)), shape=(32,))
    assert (traffic.load_lines, traffic.loads_coalesced, traffic.cache_read) == (2, 0, 132)


def test_neighbouring_loads_of_a_lane_are_one(count):
    """Four floats a lane: 32 accesses of 16 bytes, 512 bytes in 4 lines, coalesced."""
    source = INDEX + "float s = 0;\nfor (int j = 0; j < 4; j++) s += x[4 * i + j];\ny[i] = s;"
    traffic = count(source, mx.ones((128,)), shape=(32,))
    assert (traffic.loads, traffic.loads_coalesced, traffic.load_lines) == (1, 1, 4)
    assert (traffic.requested_read, traffic.most_loads) == (512, 1)
    vector = INDEX + "float4 v = ((const device float4*)x)[i];\ny[i] = v.x + v.y + v.z + v.w;"
    same = count(vector, mx.ones((128,)), shape=(32,))
    assert (same.loads, same.load_lines, same.requested_read) == (1, 4, 512)


def test_loads_stay_apart_in_a_loop(count):
    """A row a lane, by a loop that is not unrolled: 16 accesses of 32 lines each."""
    loop = "#pragma unroll 1\nfor (int j = 0; j < 16; j++) s += x[32 * i + j];\n"
    source = f"{INDEX}float s = 0;\n{loop}y[i] = s;"
    traffic = count(source, mx.ones((1024,)), shape=(32,))
    assert (traffic.loads, traffic.loads_coalesced, traffic.load_lines) == (16, 0, 512)
    assert (traffic.most_loads, traffic.cache_read) == (16, 32 * 128)


def test_phases_count_the_waits_between_loads(count):
    """Three loads, two of them before the barrier."""
    source = (
        INDEX + "float v = x[i] + x[i ^ 64];\nthreadgroup_barrier(mem_flags::mem_none);\n"
        "y[i] = v + x[i ^ 1];"
    )
    traffic = count(source, mx.ones((256,)))
    assert (traffic.most_loads, traffic.most_phases) == (3, 2)


def test_the_cache_holds_four_mebibytes(count):
    """Two passes over a buffer by one threadgroup each: the second is free if it fits."""
    source = """
        for (uint i = thread_position_in_threadgroup.x; i < uint(x_shape[0]); i += 256) {
            s += x[i];
        }
        y[thread_position_in_grid.x] = s;"""
    for size, passes in ((4 * MIB - 4096, 1), (4 * MIB + 4096, 2)):
        traffic = count("float s = 0;" + source, mx.ones((size // 4,)), shape=(512,))
        assert traffic.requested_read == 2 * size
        assert traffic.cache_read == passes * size
        assert traffic.cache_written == 2048


def test_written_lines_cost_when_they_leave(count):
    """A lane a line: 32 lines of 128 bytes for 128 bytes written; again from the cache: free."""
    barrier = "simdgroup_barrier(mem_flags::mem_device);\n"
    source = f"{INDEX}y[32 * i] = 1;\n{barrier}y[32 * i + 1] = 2;"
    traffic = count(source, mx.ones((32,)), shape=(1024,), grid=(32, 1, 1))
    assert (traffic.requested_written, traffic.cache_written) == (256, 4096)
    assert (traffic.stores, traffic.stores_coalesced, traffic.store_lines) == (2, 0, 64)


def test_divergent_lanes_are_told_apart(count):
    """Odd lanes load twice in a branch: the first load of 32 lanes, the others of 16."""
    source = INDEX + "float v = x[i];\nif (i % 2) v += x[i + 32] + x[i + 64];\ny[i] = v;"
    traffic = count(source, mx.ones((96,)), shape=(32,))
    assert (traffic.loads, traffic.load_lines, traffic.requested_read) == (3, 3, 256)


def test_totals_add_up():
    with simulated(mode="fast", traffic=True) as seen:
        softmax(mx.ones((1, 5000)))
    partial, finalize = (result.traffic for result in seen.results)
    total = Traffic.total([partial, finalize])
    assert total.requested == partial.requested + finalize.requested
    assert total.cached == partial.cached + finalize.cached


def test_threadgroup_memory_costs_nothing(count):
    source = INDEX + (
        "threadgroup float s[256];\ns[i] = x[i];\n"
        "threadgroup_barrier(mem_flags::mem_threadgroup);\ny[i] = s[255 - i];"
    )
    traffic = count(source, mx.ones((256,)))
    assert (traffic.requested, traffic.cached, traffic.loads) == (2048, 2048, 8)


def test_constants_cost_nothing(count):
    """Shapes and numbers are there before a thread starts; a short array is read like any other."""
    source = INDEX + "y[i] = x[i] + a * x_shape[0] + b[i % 4];"
    traffic = count(source, mx.ones((32,)), 0.5, mx.ones((4,)))
    assert (traffic.requested_read, traffic.cache_read, traffic.loads) == (2 * 128, 128 + 16, 2)
