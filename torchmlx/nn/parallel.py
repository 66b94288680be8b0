"""torch.nn.parallel, with the one device there is: wrappers that hand everything on."""

from __future__ import annotations

from typing import Any

from .. import distributed
from .modules.module import Module


class DataParallel(Module):
    """`module` itself under the name `module`: there is one device to share the batch among.

    torch.nn.DataParallel.
    """

    def __init__(
        self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0
    ) -> None:
        super().__init__()
        self.module = module
        self.dim, self.device_ids, self.output_device = dim, device_ids or [], output_device

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)


class DistributedDataParallel(DataParallel):
    """`module` itself in a process group of one, which torch.distributed must have been given.

    Gradients need no averaging there. torch.nn.parallel.DistributedDataParallel.
    """

    def __init__(
        self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0,
        **settings: Any,
    ) -> None:  # fmt: skip
        distributed.get_world_size()  # without a group: torch's error
        super().__init__(module, device_ids, output_device, dim)
        self.require_backward_grad_sync = True

    def no_sync(self) -> _NoSync:
        """A context in which gradients would not be averaged."""
        return _NoSync(self)


class _NoSync:
    def __init__(self, module: DistributedDataParallel) -> None:
        self._module = module

    def __enter__(self) -> None:
        self._before = self._module.require_backward_grad_sync
        self._module.require_backward_grad_sync = False

    def __exit__(self, *error: Any) -> None:
        self._module.require_backward_grad_sync = self._before
