"""Decoding reads the chosen experts' weights only: by the simulator's counters, and by time."""

import time

import mlx.core as mx
import numpy as np

import torchmlx as tm
from torchmlx import ops
from torchmlx.core.tensor import from_array
from torchmlx.kernels.simulator import simulated
from torchmlx.kernels.simulator.result import Traffic
from torchmlx.models.weights import FP8Experts

CPU = tm.device("cpu")


def fp8_experts(count: int, hidden: int, inner: int) -> FP8Experts:
    noise = np.random.default_rng(0).integers(0, 0x70, 99_991, np.uint8)

    def stack(rows: int, columns: int):
        codes = mx.array(np.resize(noise, (count, rows, columns)))
        scales = mx.full((count, -(-rows // 128), -(-columns // 128)), 2e-4, mx.bfloat16)
        return from_array(codes, CPU, tm.float8_e4m3fn), from_array(scales, CPU)

    return FP8Experts(stack(2 * inner, hidden), stack(hidden, inner))


def test_the_simulator_counts_the_chosen_ones():
    """8 of 64 experts: what is asked for, and what goes through the cache, is theirs."""
    experts, hidden, inner, chosen = fp8_experts(64, 256, 128), 256, 128, 8
    x = tm.ones(1, hidden, dtype=tm.bfloat16)
    indices = tm.arange(3, 64, 8, dtype=tm.int32)[None]
    weights = tm.full((1, chosen), 1 / chosen, dtype=tm.bfloat16)
    with simulated(mode="fast", traffic=True) as seen:
        found = experts(x, indices, weights)
    total = Traffic.total(result.traffic for result in seen.results)
    active = chosen * 3 * hidden * inner
    assert active < total.cache_read < 1.05 * active
    assert total.loads_coalesced == total.loads
    assert total.cache_read < sum(p.mx.nbytes for p in experts.parameters()) / 7
    plain = experts(x, indices, weights)
    np.testing.assert_allclose(found.float().numpy(), plain.float().numpy(), rtol=0.02)


def test_time_is_that_of_the_chosen_ones():
    """On the CPU: an eighth of the experts take far less time than all; all are 100 MB."""
    experts = fp8_experts(64, 1024, 512)
    x = tm.ones(1, 1024, dtype=tm.bfloat16)

    def seconds(first: int, count: int) -> float:
        indices = tm.arange(first, first + count, dtype=tm.int32)[None]
        weights = tm.full((1, count), 1 / count, dtype=tm.bfloat16)
        began = time.process_time()
        scales = experts.gate_up_proj_scale_inv, experts.down_proj_scale_inv
        weights_of = experts.gate_up_proj, experts.down_proj
        mx.eval(ops.moe_decode(x, *weights_of, indices, weights, scales).mx)
        return time.process_time() - began

    # Eights take turns, so that no cache keeps them.
    few, everything = [], []
    for _ in range(3):
        everything.append(seconds(0, 64))
        few += [seconds(first, 8) for first in range(0, 64, 8)]
    # 0.125 if time were all reading; processor time of all threads.
    assert np.median(few) < 0.3 * np.median(everything)
