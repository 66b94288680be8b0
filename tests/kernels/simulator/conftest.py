"""What the simulator's tests share: they skip without clang, and run small kernels."""

import mlx.core as mx
import pytest

from torchmlx.kernels.simulator import NoClang, find_clang, simulate


@pytest.fixture(scope="session", autouse=True)
def clang():
    """The compiler; CI installs clang-19."""
    try:
        return find_clang()
    except NoClang:
        pytest.skip("no clang: apt-get install clang-19")


@pytest.fixture(scope="session")
def run():
    """Run a body over x, and further inputs, into y, of x's shape and dtype unless given."""

    def run(
        source, x, *more, shape=None, dtype=None, grid=None, threadgroup=(256, 1, 1), **options
    ):
        names = ["x", "a", "b", "c"][: 1 + len(more)]
        shape = x.shape if shape is None else shape
        return simulate(
            source,
            name="case",
            input_names=names,
            output_names=["y"],
            inputs=[x, *more],
            grid=grid or (mx.array(shape).prod().item(), 1, 1),
            threadgroup=threadgroup,
            output_shapes=[shape],
            output_dtypes=[dtype or x.dtype],
            **options,
        )

    return run
