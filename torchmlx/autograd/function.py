"""torch.autograd.Function: operations whose gradient the user writes."""

from __future__ import annotations

import functools
import weakref

import mlx.core as mx

from ..core import modes
from ..core.dtype import from_mx
from ..core.record import computed, needed, restored
from ..core.tape import Edge, Like, Node, Saved, check_write, edge_of, fit, set_history
from ..core.tensor import Tensor, from_array


class FunctionCtx:
    """What forward leaves for backward."""

    def __init__(self):
        self.needs_input_grad: tuple[bool, ...] = ()
        self._to_save: tuple = ()
        self._not_differentiable: tuple = ()
        self._dirty: tuple = ()
        self._materialize = True
        self._node: weakref.ref[Node] | None = None
        self._kept: tuple[Saved | Tensor | None, ...] = ()

    def save_for_backward(self, *tensors) -> None:
        """Keep tensors (inputs, outputs or others) for backward; writes to them are detected."""
        self._to_save = tensors

    save_for_forward = save_for_backward

    @property
    def saved_tensors(self) -> tuple:
        """What save_for_backward kept, with its history."""
        node = self._node and self._node()
        if node is None:
            return self._to_save
        if node.saves is None:
            node.values()  # raises: freed
        return tuple(restored(k, node) if isinstance(k, Saved) else k for k in self._kept)

    def mark_non_differentiable(self, *tensors) -> None:
        """These outputs do not require gradients."""
        self._not_differentiable = tensors

    def mark_dirty(self, *tensors) -> None:
        """These inputs were written in place and are returned."""
        self._dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether backward gets zeros (True) or None for outputs without a gradient."""
        self._materialize = value


class _FunctionNode(Node):
    """The node of a custom function: backward runs on Tensors."""

    __slots__ = ("ctx", "backward_of", "positions", "count")

    def run_on_tensors(self, row: list[Tensor | None]) -> list[Tensor | None]:
        if self.saves is None:
            self.values()  # raises: freed
        if self.ctx._materialize:
            row = [
                from_array(mx.zeros(k.shape, k.dtype), self.device) if g is None else g
                for g, k in zip(row, self.outputs, strict=True)
            ]
        found = self.backward_of(self.ctx, *row)
        found = found if isinstance(found, tuple) else (found,)
        if len(found) > self.count and all(g is None for g in found[self.count :]):
            found = found[: self.count]
        if len(found) != self.count:
            raise RuntimeError(
                f"function {type(self).__name__} returned an incorrect number of gradients "
                f"(expected {self.count}, got {len(found)})"
            )
        kept = (found[i] for i in self.positions)
        return [self._checked(g, k) for g, k in zip(kept, self.inputs, strict=True)]

    def release(self) -> None:
        super().release()
        if self.saves is None:
            self.ctx._kept = ()

    def _checked(self, gradient, like: Like):
        if gradient is None or (
            tuple(gradient.shape) == like.shape and gradient.dtype.mx == like.dtype
        ):
            return gradient
        if tuple(gradient.shape) == like.shape:
            return gradient.to(from_mx(like.dtype))
        try:
            same = mx.broadcast_shapes(tuple(gradient.shape), like.shape) == tuple(gradient.shape)
        except ValueError:
            same = False
        if not same:
            raise RuntimeError(
                f"Function {type(self).__name__} returned an invalid gradient at index 0 - got "
                f"{list(gradient.shape)} but expected shape compatible with {list(like.shape)}"
            )
        return computed("SumToSize", lambda g: fit(g, like), gradient)


class Function:
    """An operation with a gradient of its own: static `forward(ctx, ...)` and `backward(ctx, ...)`.

    torch.autograd.Function.
    """

    @staticmethod
    def forward(*args, **kwargs):
        """The operation; the first argument is ctx unless setup_context is defined."""
        raise NotImplementedError(
            "You must implement the forward function for custom autograd.Function."
        )

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        """Fill ctx from inputs and output, where forward takes no ctx."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx, *grad_outputs):
        """A gradient (or None) for each argument of forward."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom "
            "autograd.Function to use it with backward mode AD."
        )

    @classmethod
    def apply(cls, *args):
        """Run forward and record backward."""
        ctx = FunctionCtx()
        tensors = [a for a in args if isinstance(a, Tensor)]
        ctx.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        recording = needed(tensors)
        edges = {i: edge_of(a) for i, a in enumerate(args) if ctx.needs_input_grad[i]}
        with modes.no_grad():
            if cls.setup_context is not Function.setup_context:
                result = cls.forward(*args)
                cls.setup_context(ctx, args, result)
            else:
                result = cls.forward(ctx, *args)
        if not recording:
            return result
        return _record(cls, ctx, args, edges, result)

    vjp = backward


def _record(cls, ctx: FunctionCtx, args, edges: dict[int, Edge], result):
    """Give the outputs of a custom function their history."""
    several = isinstance(result, (tuple, list))
    outputs = list(result) if several else [result]
    for k, r in enumerate(outputs):
        if isinstance(r, Tensor) and any(r is a for a in args) and not _among(r, ctx._dirty):
            outputs[k] = r.view_as(r.detach())  # an input handed through is a new tensor
            outputs[k]._root = None
    has_history = [
        isinstance(r, Tensor) and r.dtype.category >= 2 and not _among(r, ctx._not_differentiable)
        for r in outputs
    ]
    recorded = [r for r, h in zip(outputs, has_history, strict=True) if h]
    if recorded:
        node = _make_node(cls, ctx, args, edges, outputs)
        _keep(ctx, node, args, edges, outputs)
        for index, (r, h) in enumerate(zip(outputs, has_history, strict=True)):
            if h:
                if _among(r, ctx._dirty):
                    check_write(r)
                r._root = None
                set_history(r, node, index)
    return type(result)(outputs) if several else outputs[0]


def _among(x, tensors) -> bool:
    return any(x is t for t in tensors)


def _make_node(cls, ctx, args, edges: dict[int, Edge], outputs) -> _FunctionNode:
    name = cls.__name__ + "Backward"
    node_type = _types(cls, name)
    likes = [
        Like(tuple(r.shape), r.dtype.mx) if isinstance(r, Tensor) else Like((), mx.float32)
        for r in outputs
    ]
    inputs = [Like(tuple(args[i].shape), args[i].dtype.mx) for i in edges]
    where = next(r.device for r in outputs if isinstance(r, Tensor))
    node = node_type(list(edges.values()), inputs, likes, where)
    node.ctx, node.backward_of = ctx, cls.backward
    node.positions, node.count = tuple(edges), len(args)
    return node


@functools.lru_cache(maxsize=1024)
def _types(cls, name: str) -> type[_FunctionNode]:
    return type(name, (_FunctionNode,), {"__slots__": ()})


def _keep(ctx: FunctionCtx, node: Node, args, edges: dict[int, Edge], outputs) -> None:
    """Turn what forward saved into saved values, without holding on to outputs' histories."""
    kept = []
    for t in ctx._to_save:
        if t is None:
            kept.append(None)
            continue
        output = next((k for k, r in enumerate(outputs) if r is t), None)
        edge = next((edges[i] for i in edges if args[i] is t), Edge(None, 0))
        kept.append(Saved(t, edge, None if edge.node is not None else output))
    ctx._kept, ctx._to_save, ctx._node = tuple(kept), (), weakref.ref(node)
    node.saves = tuple(k for k in kept if k is not None)


def once_differentiable(function):
    """Mark a backward whose own gradient is not defined. torch.autograd.function."""

    @functools.wraps(function)
    def wrapped(ctx, *gradients):
        with modes.no_grad():
            return function(ctx, *gradients)

    return wrapped
