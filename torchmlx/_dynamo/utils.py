"""torch._dynamo.utils: what other libraries ask."""

from typing import Any


def is_compile_supported(device_type: Any) -> bool:
    """False: there is no Inductor."""
    return False
