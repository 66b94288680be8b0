"""The C++ extension, which these tests are about."""

import sys

import pytest

from torchmlx.kernels import native


@pytest.fixture
def extension():
    """The extension; its instruction set and number of threads are put back afterwards."""
    if sys.platform != "linux":
        pytest.skip("platform: the C++ extension is for Linux")
    module, reason = native.load()
    if module is None:
        pytest.skip(f"{reason}; make native")
    isa, threads = module.instruction_set(), module.threads()
    yield module
    module.use_instruction_set(isa)
    module.set_threads(threads)
