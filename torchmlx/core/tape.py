"""The tape: which operation made a tensor, and what its gradient needs.

A tensor's history is an edge: a node (one recorded operation) and the number of its output. Nodes
keep (cell, version) of what their gradient reads, not arrays, so that MLX may still reuse a buffer
that is written; a write in between is then found by the version. Views share the history of their
base: a write through one of them gives the base a new node, and the others follow at their next
use, as in torch.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx

from . import modes, views

_sequence = itertools.count(1)

IN_PLACE_LEAF = "a leaf Variable that requires grad is being used in an in-place operation."
FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)


@dataclass(slots=True)
class Like:
    """What is known of an array that was not kept."""

    shape: tuple[int, ...]
    dtype: mx.Dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Edge(NamedTuple):
    """A node and the number of its output."""

    node: Node | None
    output_nr: int


NOWHERE = Edge(None, 0)
_edge = functools.partial(tuple.__new__, Edge)  # takes half as long as Edge itself
NOTHING = object()  # in place of the accumulator of a view taken in no_grad mode


class Node:
    """One recorded operation. torch.autograd.graph.Node.

    edges: where the gradient of each input goes; inputs and outputs: their shapes and dtypes.
    pull(values, cotangents): a pure function from the arrays that `saves` yields and one cotangent
    an output to a gradient (or None) for each edge.
    """

    __slots__ = (
        "edges", "inputs", "outputs", "device", "pull", "saves", "sequence", "hooks", "_metadata",
        "__weakref__",
    )  # fmt: skip
    edges: tuple[Edge, ...]
    saves: tuple[Saved, ...] | None

    def __init__(
        self,
        edges: Iterable[Edge],
        inputs: Iterable[Like],
        outputs: Iterable[Like],
        device,
        pull: Callable[..., Any] | None = None,
        saves: tuple[Saved, ...] = (),
    ):
        self.edges, self.inputs, self.outputs = tuple(edges), tuple(inputs), tuple(outputs)
        self.device, self.pull, self.saves = device, pull, saves
        self.sequence = next(_sequence)
        self.hooks: Hooks | None = None

    @property
    def metadata(self) -> dict:
        """A dictionary for users' notes."""
        if not hasattr(self, "_metadata"):
            self._metadata = {}
        return self._metadata

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """The edges, as torch's grad_fn.next_functions."""
        return tuple((e.node, e.output_nr) for e in self.edges)

    def name(self) -> str:
        return type(self).__name__

    def gradients(self, values: list[mx.array], cotangents: list[mx.array]) -> list:
        """A gradient of its input's shape and dtype for each edge, or None."""
        assert self.pull is not None
        if self.outputs and all(o.size == 0 for o in self.outputs):
            # Nothing depends on the inputs; MLX might not come back from reducing nothing.
            return [mx.zeros(i.shape, i.dtype) for i in self.inputs]
        found = self.pull(values, cotangents)
        return [None if g is None else fit(g, i) for g, i in zip(found, self.inputs, strict=True)]

    def values(self) -> list[mx.array]:
        """The arrays that `pull` reads."""
        if self.saves is None:
            raise RuntimeError(FREED)
        return [s.array(self) for s in self.saves]

    def release(self) -> None:
        """Forget what was saved; a second backward pass then says so."""
        if self.saves:
            self.saves = None

    def register_hook(self, hook) -> Removable:
        """Call hook(grad_inputs, grad_outputs) after the node has run."""
        return _hooks_of(self).add("post", hook)

    def register_prehook(self, hook) -> Removable:
        """Call hook(grad_outputs) before the node runs."""
        return _hooks_of(self).add("pre", hook)

    def __repr__(self):
        return f"<{type(self).__name__} object at {id(self):#x}>"


class Hooks:
    """What users hung on a node: hooks by output, before and after, and tensors that keep .grad."""

    __slots__ = ("tensor", "pre", "post", "retain")

    def __init__(self):
        self.tensor: dict[int, dict] = {}
        self.pre: dict = {}
        self.post: dict = {}
        self.retain: dict[int, weakref.ref] = {}

    def add(self, where: str, hook) -> Removable:
        return Removable(getattr(self, where), hook)

    def on_output(self, index: int, hook) -> Removable:
        return Removable(self.tensor.setdefault(index, {}), hook)


def _hooks_of(node: Node) -> Hooks:
    if node.hooks is None:
        node.hooks = Hooks()
    return node.hooks


hooks_of = _hooks_of
_hook_ids = itertools.count(1)


class Removable:
    """A hook's handle: `remove()` takes it away. torch.utils.hooks.RemovableHandle."""

    def __init__(self, hooks: dict, hook):
        self._hooks, self.id = hooks, next(_hook_ids)
        hooks[self.id] = hook

    def remove(self) -> None:
        self._hooks.pop(self.id, None)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.remove()


def fit(gradient: mx.array, target: Like) -> mx.array:
    """`gradient` summed over broadcast dimensions and cast to the input's dtype."""
    shape = target.shape
    if 0 in shape:
        return mx.zeros(shape, target.dtype)  # whatever MLX had to reduce for it
    if gradient.dtype == mx.complex64 and target.dtype != mx.complex64:
        gradient = mx.real(gradient)
    if gradient.shape != shape:
        if 0 in gradient.shape:
            return mx.zeros(shape, target.dtype)
        half = gradient.dtype in (mx.float16, mx.bfloat16)
        gradient = gradient.astype(mx.float32) if half else gradient
        lead = gradient.ndim - len(shape)
        axes = [*range(lead)]
        axes += [lead + d for d, n in enumerate(shape) if n == 1 != gradient.shape[lead + d]]
        gradient = mx.reshape(mx.sum(gradient, axis=axes), shape) if axes else gradient
    return gradient if gradient.dtype == target.dtype else gradient.astype(target.dtype)


# ---- what a gradient needs


class _Local(threading.local):
    hooks: tuple = ()  # (pack, unpack) of torch.autograd.graph.saved_tensors_hooks


local = _Local()


class Saved:
    """An array that a gradient will read: the cell and its version, not the array."""

    __slots__ = ("cell", "steps", "version", "edge", "output", "dtype", "packed", "unpack", "name")
    cell: Any  # the Cell, or a weak reference where the hooks keep the value

    def __init__(self, tensor, edge: Edge = NOWHERE, output: int | None = None):
        """`output`: the number of the node's own output that this is."""
        self.edge, self.output, self.dtype = edge, output, tensor.dtype
        self.unpack = None
        self.cell, self.steps = tensor._cell, tensor._steps
        self.version = self.cell.version
        if local.hooks:
            self.cell = weakref.ref(self.cell)  # only to see writes: the hooks have the value
            pack, self.unpack = local.hooks[-1]
            with modes.no_grad():
                self.packed = pack(tensor.detach() if tensor.requires_grad else tensor)

    def array(self, node: Node) -> mx.array:
        """The value, or torch's error where the tensor was written since."""
        cell: Any = self.cell if self.unpack is None else self.cell()
        if cell is not None and cell.version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [torch.{self.dtype.torch_name}Tensor "
                f"{list(views.read(cell.array, self.steps).shape)}], which is read by "
                f"{type(node).__name__}, is at version {cell.version}; expected version "
                f"{self.version} instead. Hint: enable anomaly detection to find the operation "
                "that failed to compute its gradient, with "
                "torch.autograd.set_detect_anomaly(True)."
            )
        if self.unpack is not None:
            with modes.no_grad():
                return self.unpack(self.packed)._read()
        array = self.cell.array
        return views.read(array, self.steps) if self.steps else array

    def history(self, node: Node) -> Edge:
        """Where the gradient of this value goes, for a backward pass that is itself recorded."""
        return self.edge if self.output is None else Edge(node, self.output)


# ---- leaves


class AccumulateGrad(Node):
    """The end of every path: adds to a leaf's .grad.

    The leaf has the node, the node knows the leaf weakly: nobody could read another's .grad.
    """

    __slots__ = ("_leaf",)

    def __init__(self, variable):
        kept = Like(tuple(variable.shape), variable.dtype.mx)
        super().__init__((), (), (kept,), variable.device)
        self._leaf = weakref.ref(variable)
        self.sequence = -self.sequence  # after everything that contributes

    @property
    def variable(self):
        return self._leaf()


def edge_of(tensor) -> Edge:
    """Where a tensor's gradient goes."""
    if tensor._root is None:
        if not tensor._requires_grad:
            return NOWHERE
    elif not follow(tensor):
        return NOWHERE
    node = tensor._node
    if node is not None:
        return _edge((node, tensor._index))
    node = tensor._accumulator
    if node is NOTHING:
        return NOWHERE
    if node is None:
        node = tensor._accumulator = AccumulateGrad(tensor)
    return _edge((node, 0))


_CLASSES: dict[str, type[Node]] = {}


def node_class(name: str) -> type[Node]:
    """The class of an operation's nodes, which only carries torch's name for them."""
    found = _CLASSES.get(name)
    if found is None:
        found = _CLASSES[name] = type(name, (Node,), {"__slots__": ()})
    return found


def set_history(tensor, node: Node, index: int = 0) -> None:
    """The tensor is output `index` of `node`."""
    tensor._node, tensor._index, tensor._requires_grad = node, index, True


CANNOT_RETAIN = "can't retain_grad on Tensor that has requires_grad=False"


def retain_grad(tensor) -> None:
    """Let a tensor that is no leaf keep its gradient in .grad."""
    if not tensor.requires_grad:
        raise RuntimeError(CANNOT_RETAIN)
    if tensor._node is not None:
        hooks_of(tensor._node).retain[tensor._index] = weakref.ref(tensor)


# ---- views and writes


def _like(tensor) -> Like:
    return Like(tuple(tensor.shape), tensor.dtype.mx)


def _chain(steps: tuple, before: Like) -> Callable[..., Any]:
    """The gradient of a chain of view steps on an array like `before`."""

    def pull(values, cotangents):
        sources = [before]
        x = mx.zeros(before.shape, before.dtype)  # never evaluated: only shapes are read
        for step in steps[:-1]:
            x = step.forward(x)
            sources.append(Like(x.shape, x.dtype))
        (g,) = cotangents
        for step, source in zip(reversed(steps), reversed(sources), strict=True):
            g = step.pull(source, g)
        return [g]

    return pull


_VIEW_NAMES = {
    views.Reshape: "ViewBackward0", views.Permute: "PermuteBackward0",
    views.Index: "SliceBackward0", views.Expand: "ExpandBackward0",
    views.Gather: "AsStridedBackward0", views.Bits: "ViewAsRealBackward0",
    views.Part: "RealBackward0",
}  # fmt: skip


def record_view(base, view, step) -> None:
    """`view` is `base` through one more step: it shares base's history."""
    root = view._root = base if base._root is None else base._root
    view._seen = root._node
    if base.requires_grad and view.dtype.category >= 2:
        before = _like(base)
        cls = node_class(_VIEW_NAMES[type(step)])
        node = cls(
            (edge_of(base),), (before,), (_like(view),), base.device, _chain((step,), before)
        )
        set_history(view, node)


def follow(view) -> bool:
    """Bring a view's history up to its base's, which a write may have changed."""
    root: Any = view._root
    if root._node is not view._seen:
        view._seen = root._node
        before, steps = _like(root), view._steps[len(root._steps) :]
        cls = node_class("AsStridedBackward0")
        edges = (edge_of(root),)
        node = cls(edges, (before,), (_like(view),), view.device, _chain(steps, before))
        set_history(view, node)
    return view._requires_grad


def check_write(tensor) -> None:
    """torch forbids in-place writes to a leaf that requires grad while grad mode is on."""
    if not modes.grad_enabled():
        return
    root = tensor._root
    if root is not None and root._requires_grad and root._node is None:
        raise RuntimeError("a view of " + IN_PLACE_LEAF)
    if tensor._requires_grad and tensor._node is None:
        raise RuntimeError(IN_PLACE_LEAF)


def rebase(target, source, fresh: bool) -> None:
    """`target` is about to be overwritten with the values of `source` (None: constants).

    fresh: nobody else has `source`, so that its history becomes target's.
    """
    if not (target.requires_grad or (source is not None and source.requires_grad)):
        return
    check_write(target)
    root: Any = target._root
    edge = NOWHERE if source is None else edge_of(source)
    if root is None:
        own: Any = source if fresh and source is not None and source._root is None else None
        if own is not None and own._node is not None and own.dtype is target.dtype:
            set_history(target, edge.node, edge.output_nr)  # type: ignore[arg-type]
        else:
            like = _like(target)
            before = like if source is None else _like(source)
            edges = (edge, edge_of(target))
            node = node_class("CopyBackwards")(
                edges, (before, like), (like,), target.device, _overwritten
            )
            set_history(target, node)
        return
    set_history(root, _copy_slices(root, target, source, edge))


def _overwritten(values, cotangents):
    """What was written gets the gradient, what was there before gets zeros, as in torch."""
    (g,) = cotangents
    return [g, mx.zeros_like(g)]


def _copy_slices(root, target, source, edge: Edge) -> Node:
    """The base after a write through one of its views."""
    steps = target._steps[len(root._steps) :]
    base, part = _like(root), _like(target)

    def pull(values, cotangents):
        (g,) = cotangents
        hole = mx.zeros(part.shape, part.dtype)
        return [views.write(g, steps, hole), views.read(g, steps)]

    inputs = (base, part if source is None else _like(source))
    return node_class("CopySlices")((edge_of(root), edge), inputs, (base,), root.device, pull)
