"""torch.distributed.tensor: names that libraries test for; in one process none is made."""

from __future__ import annotations

from typing import Any


class _Absent:
    def __init__(self, *args: Any, **settings: Any) -> None:
        raise NotImplementedError(
            f"torch.distributed.tensor.{type(self).__name__}: torchmlx computes in one process"
        )


class DTensor(_Absent):
    """torch.distributed.tensor.DTensor, absent: no tensor is one."""


class Shard(_Absent):
    """torch.distributed.tensor.Shard, absent."""


class Replicate(_Absent):
    """torch.distributed.tensor.Replicate, absent."""


class Partial(_Absent):
    """torch.distributed.tensor.Partial, absent."""
