"""The memory traffic of every kernel is within the bars of issue #3."""

import pytest

from torchmlx.kernels import registry
from torchmlx.kernels.simulator import report, traffic
from torchmlx.kernels.spec import Tiled

# A case of each kind that `make test` counts; `make test-full` counts all.
DEFAULT = {
    *("softmax x=3x49152", "gemv x=2x256", "rms_norm x=1x5x1024", "fp8_matmul x=9x256"),
    *("grouped_matmul a=8x2048", "grouped_matmul a=128x512"),
}


def counted():
    for kernel, case, dtype, _ in report.cases():
        if report.work(kernel, case, dtype) <= report.LARGE:
            label = f"{kernel.name}-{case.label}-{dtype}"
            name = f"{kernel.name} {case.label}".partition(",")[0]
            marks = [] if name in DEFAULT else [pytest.mark.slow]
            yield pytest.param(kernel, case, dtype, id=label, marks=marks)


@pytest.mark.parametrize("kernel, case, dtype", list(counted()))
def test_a_case_is_within_its_bars(kernel, case, dtype):
    row = traffic.traffic(kernel, case, dtype)
    assert row["missed"] == []


def row(**changes):
    fields = {"minimum": 1 << 20, "cached_ratio": 1.0, "tile_ratio": None, "bar": 1.05}
    return {**fields, "coalesced": 1.0, **changes}


@pytest.mark.parametrize(
    "changes, whole, missed",
    [
        ({}, True, []),
        ({"cached_ratio": 1.06}, True, ["cached / minimum 1.06 > 1.05"]),
        ({"cached_ratio": 1.06, "minimum": 100}, True, []),
        ({"cached_ratio": 9.0, "bar": None}, True, []),
        ({"cached_ratio": 9.0, "tile_ratio": 1.0, "bar": 1.1}, True, []),
        ({"tile_ratio": 1.2, "bar": 1.1}, False, ["requested / tiles 1.20 > 1.1"]),
        ({"coalesced": 0.89}, True, ["coalesced 89% < 90%"]),
        ({"coalesced": 0.89}, False, []),
    ],
)
def test_what_is_judged(changes, whole, missed):
    assert traffic._judged(row(**changes), whole)["missed"] == missed


def test_what_tiles_ask_for():
    """128 x 256 outputs, K 100: 4 x 2 tiles of 32 x 128 read 100 x (128 x 2 + 256 x 4) elements."""
    whole = Tiled(m=128, n=256, k=100, bm=32, bn=128, a=4, b=4, written=128 * 256 * 4)
    assert whole.bytes == 100 * 128 * 256 * 4 * (1 / 32 + 1 / 128) + 128 * 256 * 4
    ragged = Tiled(m=129, n=1, k=10, bm=32, bn=64, a=2, b=1, written=0, groups=3)
    assert ragged.bytes == 10 * (129 * 2 + 7)


def test_every_tiled_kernel_says_so():
    """By the name of their variants; attention and the delta rule have no bar."""
    for name in registry.names():
        metal = registry.get(name).metal
        for case in registry.get(name).cases if metal else ():
            problem = metal.problem(*case.outline("float32"), **case.keywords)
            for variant in metal.variants:
                tiled = variant.startswith(("tile", "inner")) and name != "attention"
                assert isinstance(metal.bar(problem, variant), Tiled) == tiled, (name, variant)
