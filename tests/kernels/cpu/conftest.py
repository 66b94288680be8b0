"""The C++ extension, which these tests are about."""

import os
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


@pytest.fixture
def memory_used_again():
    """For tests that count memory: AddressSanitizer keeps what is freed, to tell of later uses."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("AddressSanitizer keeps freed memory")
