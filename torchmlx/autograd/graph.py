"""torch.autograd.graph: nodes, edges, and hooks on what is saved for the backward pass."""

from __future__ import annotations

from ..core import tape
from ..core.tape import Edge as GradientEdge
from ..core.tape import Node, edge_of

__all__ = ["GradientEdge", "Node", "get_gradient_edge", "saved_tensors_hooks", "save_on_cpu"]


class saved_tensors_hooks:
    """Inside, what is saved is pack(tensor), and read as unpack(packed).

    torch.autograd.graph.saved_tensors_hooks.
    """

    def __init__(self, pack_hook, unpack_hook):
        self._pair = (pack_hook, unpack_hook)

    def __enter__(self):
        tape.local.hooks = (*tape.local.hooks, self._pair)
        return self

    def __exit__(self, *exc):
        tape.local.hooks = tape.local.hooks[:-1]


class save_on_cpu(saved_tensors_hooks):
    """Saves as usual: CPU and GPU share one memory. torch.autograd.graph.save_on_cpu."""

    def __init__(self, pin_memory=False, device_type="cuda"):
        super().__init__(lambda x: x, lambda x: x)


def get_gradient_edge(tensor) -> GradientEdge:
    """The node and output number of a tensor that requires grad."""
    if not tensor.requires_grad:
        raise RuntimeError(
            "It is not possible to get the gradient edge for a Tensor that does not require "
            "gradients"
        )
    return edge_of(tensor)
