"""torch.distributed.device_mesh: names for annotations; there is one process, so no mesh."""

from __future__ import annotations

from typing import Any, NoReturn

_ONE = "torchmlx computes in one process"


class DeviceMesh:
    """torch.distributed.device_mesh.DeviceMesh, absent: it cannot be made."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        raise NotImplementedError(f"torch.distributed.DeviceMesh: {_ONE}")


def init_device_mesh(*args: Any, **settings: Any) -> NoReturn:
    """NotImplementedError. torch.distributed.init_device_mesh."""
    raise NotImplementedError(f"torch.distributed.init_device_mesh: {_ONE}")
