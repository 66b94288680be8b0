"""The methods that autograd gives to Tensor."""

from __future__ import annotations

from ..core import tape
from ..core.op import composite
from ..core.tape import AccumulateGrad, Removable, hooks_of
from ..core.tensor import Tensor
from . import engine

method = ("Tensor",)


@composite(at=method)
def backward(self, gradient=None, retain_graph=None, create_graph=False, inputs=None):
    """Add this tensor's gradients to the .grad of its leaves. Tensor.backward."""
    engine.backward(self, gradient, retain_graph, create_graph, inputs=inputs)


@composite(at=method)
def register_hook(self, hook):
    """Call hook(grad), which may return another gradient, when it is computed.

    Tensor.register_hook.
    """
    if not self.requires_grad:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if self._node is not None:
        return hooks_of(self._node).on_output(self._index, hook)
    if self._hooks is None:
        self._hooks = {}
    return Removable(self._hooks, hook)


@composite(at=method)
def register_post_accumulate_grad_hook(self, hook):
    """Call hook(tensor) after a leaf's .grad has been added to.

    Tensor.register_post_accumulate_grad_hook.
    """
    if not self.requires_grad:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if self._node is not None:
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    if self._post_accumulate_hooks is None:
        self._post_accumulate_hooks = {}
    return Removable(self._post_accumulate_hooks, hook)


@composite(at=method)
def retain_grad(self):
    """Let a tensor that is no leaf keep its gradient in .grad. Tensor.retain_grad."""
    tape.retain_grad(self)


@composite(at=method)
def detach_(self):
    """Forget the history; the tensor becomes a leaf. Tensor.detach_."""
    if self._root is not None and self.requires_grad:
        raise RuntimeError(
            "Can't detach views in-place. Use detach() instead. If you are using "
            "DistributedDataParallel (DDP) for training, and gradient_as_bucket_view is set as "
            "True, gradients are views of DDP buckets, and hence detach_() cannot be called on "
            "these gradients. To fix this error, please refer to the Optimizer.zero_grad() "
            "function in torch/optim/optimizer.py as a solution."
        )
    self._node, self._requires_grad, self._root = None, False, None
    return self


def _retains_grad(self) -> bool:
    node = self._node
    if node is None or node.hooks is None or isinstance(node, AccumulateGrad):
        return False
    kept = node.hooks.retain.get(self._index)
    return kept is not None and kept() is self


Tensor.retains_grad = property(_retains_grad)  # type: ignore[attr-defined]
Tensor.output_nr = property(lambda self: self._index)  # type: ignore[attr-defined]
