"""The backward pass: nodes run in the reverse of the order in which they were recorded."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import mlx.core as mx

from ..core import device as devices
from ..core import modes
from ..core.op import TABLE
from ..core.record import differentiable, restored
from ..core.tape import CANNOT_RETAIN, AccumulateGrad, Edge, Like, Node, edge_of, retain_grad
from ..core.tensor import Tensor, from_array


class _Checking:
    nan = False  # torch.autograd.set_detect_anomaly


checking = _Checking()

# Gradients are mx.arrays, or Tensors while the backward pass is itself recorded.
Gradient = Any


class _Pass:
    """One backward pass."""

    def __init__(self, roots: Sequence[tuple[Edge, Gradient]], keep: bool, create: bool, wanted):
        self.keep, self.create = keep, create
        self.wanted: dict[Edge, Gradient] | None = wanted
        self.waiting: dict[Node, list[Gradient]] = {}
        self.queue: list[tuple[int, int, Node]] = []
        self.needed = None if wanted is None else _leading_to({e.node for e in wanted}, roots)
        for edge, gradient in roots:
            self.send(edge, gradient)

    def send(self, edge: Edge, gradient: Gradient) -> None:
        node = edge.node
        if node is None or (self.needed is not None and node not in self.needed):
            return
        row = self.waiting.get(node)
        if row is None:
            row = self.waiting[node] = [None] * len(node.outputs)
            heapq.heappush(self.queue, (-node.sequence, id(node), node))
        before = row[edge.output_nr]
        row[edge.output_nr] = gradient if before is None else before + gradient

    def run(self) -> None:
        while self.queue:
            node = heapq.heappop(self.queue)[2]
            row = self.waiting.pop(node)
            with devices.stream_of(node.device) if devices.STREAMS else nullcontext():
                self.visit(node, row)

    def visit(self, node: Node, row: list[Gradient]) -> None:
        if isinstance(node, AccumulateGrad):
            self.arrive(node, row[0])
            return
        if node.hooks is not None:
            self.call_tensor_hooks(node, row)
        if self.wanted is not None:
            for index, gradient in enumerate(row):
                if Edge(node, index) in self.wanted:
                    self.wanted[Edge(node, index)] = gradient
            if not any(e.node in self.needed for e in node.edges):  # type: ignore[operator]
                return
        if node.hooks is not None and node.hooks.pre:
            row = self.call_pre_hooks(node, row)
        gradients = self.through(node, row)
        if node.hooks is not None and node.hooks.post:
            gradients = self.call_post_hooks(node, gradients, row)
        if checking.nan:
            self.refuse_nan(node, gradients)
        for edge, gradient in zip(node.edges, gradients, strict=True):
            if gradient is not None:
                self.send(edge, gradient)
        if not self.keep:
            node.release()

    def through(self, node: Node, row: list[Gradient]) -> Sequence[Gradient]:
        """The gradients of a node's inputs."""
        run = getattr(node, "run_on_tensors", None)
        if run is not None:  # written in terms of Tensors
            gradients = run([None if g is None else self.tensor(g) for g in row])
            return gradients if self.create else [g if g is None else g._read() for g in gradients]
        if self.create:
            filled = [_zeros(k, node) if g is None else g for g, k in zip(row, node.outputs)]  # noqa: B905
            return _recorded(node, filled)
        row = [
            mx.zeros(k.shape, k.dtype) if g is None else g
            for g, k in zip(row, node.outputs, strict=True)
        ]
        return node.gradients(node.values(), row)

    def refuse_nan(self, node: Node, gradients) -> None:
        for i, g in enumerate(gradients):
            if g is not None and bool(self.tensor(g).isnan().any()):  # type: ignore[attr-defined]
                raise RuntimeError(
                    f"Function '{node.name()}' returned nan values in its {i}th output."
                )

    # ---- leaves and hooks

    def tensor(self, gradient: Gradient) -> Tensor:
        return gradient if self.create else from_array(gradient)

    def plain(self, gradient: Any) -> Gradient:
        return gradient if self.create else gradient._read()

    def arrive(self, node: AccumulateGrad, gradient: Gradient) -> None:
        """A leaf's gradient: through its hooks, then to who asked for it or into .grad."""
        leaf = node.variable
        if leaf is None or not leaf._requires_grad:
            return
        for hook in tuple((leaf._hooks or {}).values()):
            changed = hook(self.tensor(gradient))
            gradient = gradient if changed is None else self.plain(changed)
        if self.wanted is not None and Edge(node, 0) in self.wanted:
            self.wanted[Edge(node, 0)] = gradient
            return
        self.accumulate(leaf, gradient)
        for hook in tuple((leaf._post_accumulate_hooks or {}).values()):
            hook(leaf)

    def accumulate(self, leaf: Tensor, gradient: Gradient) -> None:
        if leaf.grad is None:
            given = gradient if self.create else from_array(gradient, leaf.device, leaf.dtype)
            leaf.grad = given
        elif self.create:
            leaf.grad = leaf.grad + gradient
        else:
            leaf.grad._write(leaf.grad._read() + gradient)

    def call_tensor_hooks(self, node: Node, row: list[Gradient]) -> None:
        assert node.hooks is not None
        for index, gradient in enumerate(row):
            if gradient is None:
                continue
            for hook in tuple(node.hooks.tensor.get(index, {}).values()):
                changed = hook(self.tensor(gradient))
                gradient = row[index] = gradient if changed is None else self.plain(changed)
            kept = node.hooks.retain.get(index)
            kept = kept and kept()
            if kept is not None:
                self.accumulate(kept, gradient)

    def call_pre_hooks(self, node: Node, row: list[Gradient]) -> list[Gradient]:
        assert node.hooks is not None
        for hook in tuple(node.hooks.pre.values()):
            changed = hook(tuple(g if g is None else self.tensor(g) for g in row))
            row = row if changed is None else [g if g is None else self.plain(g) for g in changed]
        return row

    def call_post_hooks(self, node: Node, gradients, row) -> Sequence[Gradient]:
        assert node.hooks is not None
        outer = tuple(g if g is None else self.tensor(g) for g in row)
        for hook in tuple(node.hooks.post.values()):
            inner = tuple(g if g is None else self.tensor(g) for g in gradients)
            changed = hook(inner, outer)
            if changed is not None:
                gradients = [g if g is None else self.plain(g) for g in changed]
        return gradients


def _zeros(like: Like, node: Node) -> Tensor:
    return from_array(mx.zeros(like.shape, like.dtype), node.device)


def _recorded(node: Node, row: list[Tensor]) -> Sequence[Tensor | None]:
    """A node's gradients as a recorded operation on what it saved and on its cotangents."""
    if node.saves is None:
        node.values()  # raises
    saved = [restored(s, node) for s in node.saves or ()]
    present: list[int] = []

    def function(*arrays):
        every = node.gradients(list(arrays[: len(saved)]), list(arrays[len(saved) :]))
        present[:] = [i for i, g in enumerate(every) if g is not None]
        return [every[i] for i in present]

    results = differentiable(node.name(), function, [*saved, *row])
    gradients: list[Tensor | None] = [None] * len(node.edges)
    for i, g in zip(present, results, strict=True):
        gradients[i] = g
    return gradients


def _leading_to(targets: set, roots) -> set[Node]:
    """The nodes from which a target can be reached, targets included."""
    found, seen, stack = set(), set(), [e.node for e, _ in roots if e.node is not None]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(e.node for e in node.edges if e.node is not None)
    for node in sorted(seen, key=lambda n: n.sequence):  # inputs come before what uses them
        if node in targets or any(e.node in found for e in node.edges):
            found.add(node)
    return found


def _roots(tensors: Sequence[Tensor], gradients, create: bool) -> list[tuple[Edge, Gradient]]:
    """Where the pass starts, with what; a scalar starts with one."""
    if gradients is None:
        gradients = [None] * len(tensors)
    if len(gradients) != len(tensors):
        raise RuntimeError(f"got {len(tensors)} tensors and {len(gradients)} gradients")
    roots = []
    for i, (t, g) in enumerate(zip(tensors, gradients, strict=True)):
        if not t.requires_grad:
            raise RuntimeError(
                f"element {i} of tensors does not require grad and does not have a grad_fn"
            )
        roots.append((edge_of(t), _start(t, g, i, create)))
    return roots


def _start(t: Tensor, g: Tensor | None, i: int, create: bool) -> Gradient:
    if g is None:
        if t.numel() != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        if t.dtype.is_complex:
            raise RuntimeError(
                f"grad can be implicitly created only for real scalar outputs but got {t.dtype}"
            )
        g = from_array(mx.ones(t.shape, t.dtype.mx), t.device)
    elif g.shape != t.shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output[{i}] has a shape of {g.shape} and output[{i}] has a "
            f"shape of {t.shape}."
        )
    elif g.dtype is not t.dtype:
        g = g.to(t.dtype)
    assert g is not None
    return g if create else g._read()


def _sequence(x) -> tuple:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def backward(
    tensors, grad_tensors=None, retain_graph=None, create_graph=False, grad_variables=None,
    inputs=None,
) -> None:  # fmt: skip
    """Add the gradients of tensors to the .grad of the leaves (or of `inputs`).

    grad_tensors: a cotangent for each tensor; None for scalars. torch.autograd.backward.
    """
    tensors = _sequence(tensors)
    if not tensors:
        return
    if inputs is not None and len(_sequence(inputs)) == 0:
        raise RuntimeError("`inputs` argument to `backward` cannot be empty.")
    keep = create_graph if retain_graph is None else retain_graph
    gradients = None if grad_tensors is None else _sequence(grad_tensors)
    roots = _roots(tensors, gradients, create_graph)
    wanted = None
    if inputs is not None:
        inputs = _sequence(inputs)
        if not all(x.requires_grad for x in inputs):
            raise RuntimeError(CANNOT_RETAIN)
        wanted = {edge_of(x): None for x in inputs}
    with modes.set_grad_enabled(create_graph):
        work = _Pass(roots, keep, create_graph, wanted)
        work.run()
        for x in inputs or ():
            if wanted[edge_of(x)] is not None:  # type: ignore[index]
                work.accumulate(x, wanted[edge_of(x)])  # type: ignore[index]
            retain_grad(x)


def grad(
    outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False,
    only_inputs=True, allow_unused=None, is_grads_batched=False, materialize_grads=False,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradients of the sum of outputs with respect to inputs. torch.autograd.grad."""
    if is_grads_batched:
        raise NotImplementedError("torch.autograd.grad(is_grads_batched=True) is not implemented")
    if not only_inputs:
        warnings.warn("only_inputs argument is deprecated and is ignored now.", stacklevel=2)
    outputs, inputs = _sequence(outputs), _sequence(inputs)
    if not inputs:
        raise ValueError("grad requires non-empty inputs.")
    for x in inputs:
        if not x.requires_grad:
            raise RuntimeError("One of the differentiated Tensors does not require grad")
    keep = create_graph if retain_graph is None else retain_graph
    edges = [edge_of(x) for x in inputs]
    wanted: dict[Edge, Gradient] = dict.fromkeys(edges)
    given = None if grad_outputs is None else _sequence(grad_outputs)
    with modes.set_grad_enabled(create_graph):
        work = _Pass(_roots(outputs, given, create_graph), keep, create_graph, wanted)
        work.run()
    unused_is_fine = materialize_grads if allow_unused is None else allow_unused
    return tuple(
        _result(wanted[e], x, create_graph, unused_is_fine, materialize_grads)
        for e, x in zip(edges, inputs, strict=True)
    )


def _result(gradient, x: Tensor, create: bool, unused_is_fine: bool, materialize: bool):
    if gradient is None:
        if not unused_is_fine:
            raise RuntimeError(
                "One of the differentiated Tensors appears to not have been used in the graph. Set "
                "allow_unused=True if this is the desired behavior."
            )
        return TABLE["zeros_like"].call(x) if materialize else None
    return gradient if create else from_array(gradient, x.device, x.dtype)
