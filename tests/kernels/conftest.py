"""What the kernels' tests share: a test that runs Metal in the simulator asks for `clang`."""

import pytest

from torchmlx.kernels.simulator import NoClang, find_clang


@pytest.fixture(scope="session")
def clang():
    """The compiler; CI installs clang-19."""
    try:
        return find_clang()
    except NoClang:
        pytest.skip("no clang: apt-get install clang-19")
