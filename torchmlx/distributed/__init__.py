"""torch.distributed for one process: a group of one, whose collectives have nothing to send.

`is_available()` says False, as torch built without it does, so that libraries keep away; a script
that starts a group of one (RANK=0, WORLD_SIZE=1, or no environment at all) runs.
"""

from __future__ import annotations

import os
from typing import Any

from ..core.modes import no_grad
from ..core.tensor import Tensor
from . import device_mesh as device_mesh
from .device_mesh import DeviceMesh as DeviceMesh
from .device_mesh import init_device_mesh as init_device_mesh

_NONE = (
    "Default process group has not been initialized, please make sure to call init_process_group."
)


class ReduceOp:
    """How a collective combines: with one process every one of them gives its input."""

    SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM = range(9)


class ProcessGroup:
    """The group of this process alone."""

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1


class _Done:
    """The handle of a collective with async_op=True."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


_world: ProcessGroup | None = None


def is_available() -> bool:
    """False: torchmlx computes in one process."""
    return False


def is_initialized() -> bool:
    """Whether the group of one was started."""
    return _world is not None


def is_torchelastic_launched() -> bool:
    """Whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_nccl_available() -> bool:
    """False."""
    return False


is_gloo_available = is_mpi_available = is_nccl_available


def init_process_group(
    backend: str | None = None, init_method: str | None = None, timeout: Any = None,
    world_size: int = -1, rank: int = -1, store: Any = None, group_name: str = "", **settings: Any,
) -> None:  # fmt: skip
    """Start the group of one; NotImplementedError for more processes."""
    global _world
    size = world_size if world_size >= 0 else int(os.environ.get("WORLD_SIZE", 1))
    if size != 1:
        raise NotImplementedError(
            f"torch.distributed with {size} processes: torchmlx computes in one (WORLD_SIZE=1)"
        )
    if _world is not None:
        raise ValueError("trying to initialize the default process group twice!")
    _world = ProcessGroup(backend or "gloo")


def destroy_process_group(group: Any = None) -> None:
    """Forget the group."""
    global _world
    _group()
    _world = None


def _group() -> ProcessGroup:
    if _world is None:
        raise ValueError(_NONE)
    return _world


def get_rank(group: Any = None) -> int:
    """0; without a group torch's error."""
    return _group().rank()


def get_world_size(group: Any = None) -> int:
    """1; without a group torch's error."""
    return _group().size()


def get_backend(group: Any = None) -> str:
    """The name that init_process_group was given."""
    return _group().backend


def new_group(ranks: Any = None, *args: Any, **settings: Any) -> ProcessGroup:
    """The group of one again."""
    return _group()


def _finished(async_op: bool) -> _Done | None:
    _group()
    return _Done() if async_op else None


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> _Done | None:
    """Return at once."""
    return _finished(async_op)


def all_reduce(tensor: Tensor, op: Any = 0, group: Any = None, async_op: bool = False):
    """Leave `tensor` as it is: the sum, mean, minimum or maximum over one process."""
    return _finished(async_op)


def broadcast(tensor: Tensor, src: int = 0, group: Any = None, async_op: bool = False):
    """Leave `tensor` as it is."""
    return _finished(async_op)


def reduce(tensor: Tensor, dst: int = 0, op: Any = 0, group: Any = None, async_op: bool = False):
    """Leave `tensor` as it is."""
    return _finished(async_op)


def all_gather(tensor_list: list[Tensor], tensor: Tensor, group=None, async_op: bool = False):
    """Copy `tensor` into the list's only entry."""
    with no_grad():
        tensor_list[0].copy_(tensor)
    return _finished(async_op)


def all_gather_into_tensor(output: Tensor, input: Tensor, group=None, async_op: bool = False):
    """Copy `input` into `output`."""
    with no_grad():
        output.copy_(input.reshape(output.shape))
    return _finished(async_op)


def all_gather_object(object_list: list, obj: Any, group: Any = None) -> None:
    """Put `obj` into the list's only entry."""
    _group()
    object_list[0] = obj


def broadcast_object_list(object_list: list, src: int = 0, *args: Any, **settings: Any) -> None:
    """Leave the objects as they are."""
    _group()
