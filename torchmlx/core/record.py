"""Recording of operations on the tape, and the gradients that are written by hand.

An operation is a pure function on arrays, so `mx.vjp` of it is its gradient. A derivative written
by hand replaces that where it reads less, is faster, or where torch answers otherwise.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import mlx.core as mx

from . import modes
from .tape import Edge, Like, Node, Saved, edge_of, node_class, set_history
from .tensor import Tensor, from_array, from_cell

# An argument that a gradient reads, and whose gradients those are (None: everyone's).
Reads = dict[str, frozenset[str] | None]


class Derivative(NamedTuple):
    """A gradient written by hand: function(cotangent, *the operation's arguments) -> gradients in
    the order of its parameters. `saves` tells the arguments (or "result") that it reads; of the
    others it gets shape and dtype.
    """

    function: Callable
    saves: Reads


DERIVATIVES: dict[str, Derivative] = {}
# What MLX's own gradient of an operation reads of the floating point tensors, where not all.
READS: dict[str, Reads] = {}
# torch's names where they are not the operation's own in capitals.
NAMES: dict[str, str] = {}


def reads(text: str) -> Reads:
    """ "a b:c" as a table: everyone's gradient reads a, and c's reads b; "b:c,d" that d's does too.

    Saving no more than that, as torch does, lets scripts overwrite the rest.
    """
    words = (word.partition(":") for word in text.split())
    return {name: frozenset(of.split(",")) if colon else None for name, colon, of in words}


def derivative(*names: str, saves: str = ""):
    """Register the gradient of the operations `names`; `saves` is what `reads` reads."""

    def register(function):
        for name in names:
            DERIVATIVES[name] = Derivative(function, reads(saves))
        return function

    return register


def _read_by(saves: Reads, key: str, wanted: Sequence[str]) -> bool:
    """Whether the gradient of one of `wanted` reads the argument `key`."""
    if key not in saves:
        return False
    readers = saves[key]
    return readers is None or not readers.isdisjoint(wanted)


def node_name(name: str) -> str:
    """AddBackward0 for add, as torch calls its nodes."""
    if name in NAMES:
        return NAMES[name]
    words = name.rpartition(".")[2].strip("_").split("_")
    return "".join(w[:1].upper() + w[1:] for w in words) + "Backward0"


def needed(tensors: Sequence[Tensor]) -> bool:
    """Whether an operation on these tensors is to be recorded."""
    if not modes.grad_enabled():
        return False
    for t in tensors:  # noqa: SIM110  # `any` of a generator takes twice as long
        if t._requires_grad or (t._root is not None and t.requires_grad):
            return True
    return False


Path = tuple[Any, ...]


def _slots(args, kwargs) -> list[tuple[Path, Tensor]]:
    """Where the tensors are among the arguments: index or keyword, then indices in sequences."""
    found: list[tuple[Path, Tensor]] = []
    for i, a in enumerate(args):
        if isinstance(a, Tensor):
            found.append(((i,), a))
        elif type(a) in (tuple, list):
            _inside(a, (i,), found)
    for k, a in kwargs.items():
        if isinstance(a, Tensor):
            found.append(((k,), a))
        elif type(a) in (tuple, list):
            _inside(a, (k,), found)
    return found


def _inside(sequence, path: Path, found: list) -> None:
    for i, a in enumerate(sequence):
        if isinstance(a, Tensor):
            found.append(((*path, i), a))
        elif type(a) in (tuple, list):
            _inside(a, (*path, i), found)


def _fill(args, kwargs, paths: Sequence[Path], values: Sequence):
    """The arguments with `values` at `paths`."""
    args, kwargs = list(args), dict(kwargs)
    for path, value in zip(paths, values, strict=True):
        place: Any = kwargs if isinstance(path[0], str) else args
        for key in path[:-1]:
            if type(place[key]) is not list:
                place[key] = list(place[key])
            place = place[key]
        place[path[-1]] = value
    return args, kwargs


def _at(args, kwargs, path: Path):
    place: Any = kwargs if isinstance(path[0], str) else args
    for key in path:
        place = place[key]
    return place


def flat(result) -> list:
    """The arrays or tensors of a result, in order."""
    if isinstance(result, (tuple, list)):
        return [leaf for part in result for leaf in flat(part)]
    return [result]


class Call:
    """One call of a pure function: its arguments without the tensors' arrays."""

    __slots__ = ("function", "name", "args", "kwargs", "paths", "casts", "wants", "outputs", "back")

    def __init__(self, function, name, args, kwargs, paths, casts, wants, outputs, back):
        self.function, self.name = function, name
        self.args, self.kwargs, self.paths, self.casts = args, kwargs, paths, casts
        self.wants = wants  # which tensors need a gradient
        self.outputs = outputs  # which results have a history
        self.back = back  # the dtype that the result was cast to in the end, or None

    def _cast(self, values) -> list:
        return [
            v if c is None or type(v) is Like or v.dtype == c else v.astype(c)
            for v, c in zip(values, self.casts, strict=True)
        ]

    def pull(self, values, cotangents):
        """The gradients by MLX's own differentiation."""
        values = self._cast(values)

        def forward(*wanted):
            for i, x in zip(self.wants, wanted, strict=True):
                values[i] = x
            args, kwargs = _fill(self.args, self.kwargs, self.paths, values)
            results = flat(self.function(*args, **kwargs))
            if self.back is not None:
                results = [r.astype(self.back) for r in results]
            if len(self.outputs) > 1:
                # MLX 0.32.4 drops the cotangent of an array that is returned twice.
                return [results[k] * 1 for k in self.outputs]
            return [results[k] for k in self.outputs]

        try:
            return mx.vjp(forward, [values[i] for i in self.wants], cotangents)[1]
        except (ValueError, RuntimeError) as error:
            if "not implemented" not in str(error).lower() or isinstance(
                error, NotImplementedError
            ):
                raise
            raise NotImplementedError(
                f"the derivative for '{self.name}' is not implemented."
            ) from error

    def keys(self) -> list[str]:
        """The parameters that the tensors were passed for."""
        parameters = _parameters(self.function)
        return [parameters[p[0]] if isinstance(p[0], int) else p[0] for p in self.paths]

    def by_hand(self, rule: Derivative, likes: list[Like]):
        """`pull` for a derivative written by hand; its values are those it saves."""
        parameters, keys = _parameters(self.function), self.keys()
        wanted = [keys[i] for i in self.wants]
        saved = [i for i, k in enumerate(keys) if _read_by(rule.saves, k, wanted)]
        with_result = "result" in rule.saves

        def pull(values, cotangents):
            every: list = list(likes)
            for i, v in zip(saved, values, strict=False):
                every[i] = v
            args, kwargs = _fill(self.args, self.kwargs, self.paths, self._cast(every))
            g = cotangents if len(cotangents) > 1 else cotangents[0]
            if self.back is not None:
                g = g.astype(mx.float32)
            if with_result:
                kwargs["result"] = values[-1]
            found = rule.function(g, *args, **kwargs)
            if not isinstance(found, tuple):
                return [found]
            by_name = dict(zip(parameters, found, strict=False))
            return [by_name[keys[i]] for i in self.wants]

        return pull, saved, with_result


# Weakly: functions made for one call come here too, with what they close over.
_PARAMETERS: WeakKeyDictionary[Callable, list[str]] = WeakKeyDictionary()


def _parameters(function) -> list[str]:
    found = _PARAMETERS.get(function)
    if found is None:
        found = _PARAMETERS[function] = list(inspect.signature(function).parameters)
    return found


def _has_gradient(x: Tensor) -> bool:
    return x.dtype.category >= 2 and not x.dtype.opaque


def record(function, name: str, given, arrays, back, result) -> None:
    """Give the tensors of `result` their history.

    given: (args, kwargs) as called, with Tensors; arrays: the same with the arrays that `function`
    saw; back: the dtype that its result was cast back to, or None.
    """
    slots = _slots(given[0], given[1])
    paths = [p for p, _ in slots]
    tensors = [t for _, t in slots]
    wants = [i for i, t in enumerate(tensors) if t.dtype.category >= 2 and t.requires_grad]
    results = flat(result)
    outputs = [k for k, r in enumerate(results) if isinstance(r, Tensor) and _has_gradient(r)]
    if not outputs:
        return
    args, kwargs = arrays
    seen = [_at(args, kwargs, p).dtype for p in paths]
    likes = [Like(tuple(t.shape), t.dtype.mx) for t in tensors]
    casts = [None if s == k.dtype else s for s, k in zip(seen, likes, strict=True)]
    args, kwargs = _fill(args, kwargs, paths, [None] * len(paths))
    call = Call(function, name, args, kwargs, paths, casts, wants, outputs, back)
    edges = [edge_of(t) for t in tensors]
    rule = DERIVATIVES.get(name)
    pull: Callable[..., Any] = call.pull
    saved: Sequence[int] = range(len(tensors))
    with_result = False
    if rule is not None:
        pull, saved, with_result = call.by_hand(rule, likes)
    elif (saves := READS.get(name)) is not None:
        keys = call.keys()
        wanted = [keys[i] for i in wants]
        saved = [
            i for i, t in enumerate(tensors)
            if t.dtype.category < 2 or _read_by(saves, keys[i], wanted)
        ]  # fmt: skip
        pull = _of_shapes(call, likes, saved)
    node = node_class(node_name(name))(
        [edges[i] for i in wants],
        [likes[i] for i in wants],
        [Like(tuple(results[k].shape), results[k].dtype.mx) for k in outputs],
        results[outputs[0]].device,
        pull,
        tuple(Saved(tensors[i], edges[i]) for i in saved),
    )
    for index, k in enumerate(outputs):
        set_history(results[k], node, index)
    if with_result:
        node.saves = (*node.saves, Saved(results[0], output=0))  # type: ignore[misc]


def record_plain(function, name: str, args, arrays, result) -> None:
    """`record` for the most usual call, where it is needed: a tensor and perhaps another or a
    number, by position, nothing cast.
    """
    count = len(args) if isinstance(args[-1], Tensor) else 1
    tensors = args[:count]
    if not needed(tensors):
        return
    rule = DERIVATIVES.get(name)
    if rule is None or not isinstance(result, Tensor):
        record(function, name, (args, {}), (arrays, {}), None, result)
        return
    edges = tuple(map(edge_of, tensors))
    wanted = edges[0].node is not None, edges[-1].node is not None
    kind, saved, with_result = _plan(function, name, count, wanted)
    likes, others = tuple(map(_like, arrays[:count])), arrays[count:]

    def pull(values, cotangents):
        given = [*likes, *others]
        for i, v in zip(saved, values, strict=False):
            given[i] = v
        extra = {"result": values[-1]} if with_result else {}
        found = rule.function(cotangents[0], *given, **extra)
        if not isinstance(found, tuple):
            return [found]
        return [g if e.node else None for g, e in zip(found, edges, strict=False)]

    node = kind(edges, likes, (_like(result._cell.array),), result.device, pull)
    result._node, result._requires_grad = node, True
    if saved or with_result:
        saves = [Saved(tensors[i], edges[i]) for i in saved]
        if with_result:
            saves.append(Saved(result, output=0))
        node.saves = tuple(saves)


def _like(array: mx.array) -> Like:
    return Like(array.shape, array.dtype)


@functools.cache
def _plan(function, name: str, count: int, wanted: tuple[bool, bool]):
    """The node's class, which of the first `count` arguments it saves, and whether its result."""
    parameters, saves = _parameters(function)[:count], DERIVATIVES[name].saves
    keys = [key for key, want in zip(parameters, wanted, strict=False) if want]
    saved = [i for i, key in enumerate(parameters) if _read_by(saves, key, keys)]
    return node_class(node_name(name)), saved, "result" in saves


def _of_shapes(call: Call, likes: list[Like], saved: Sequence[int]):
    def pull(values, cotangents):
        every = [mx.zeros(k.shape, k.dtype) for k in likes]
        for i, v in zip(saved, values, strict=True):
            every[i] = v
        return call.pull(every, cotangents)

    return pull


def computed(
    name: str, function, input: Tensor, *others: Tensor, dtype=None, where=None, strides=None
) -> Tensor:
    """function(arrays of the tensors), a pure function, as a tensor of input's dtype and device
    (or of those given), recorded as one operation.
    """
    arrays = [input._read(), *(o._read() for o in others)]
    result = from_array(function(*arrays), where or input.device, dtype or input.dtype, strides)
    tensors = (input, *others)
    if needed(tensors):
        record(function, name, (tensors, {}), (arrays, {}), None, result)
    return result


def differentiable(name: str, function, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of function(*arrays) -> list of arrays, recorded as one operation."""
    arrays = [t._read() for t in tensors]
    results = [from_array(r, tensors[0].device) for r in function(*arrays)]
    if needed(tensors):
        record(function, name, (tuple(tensors), {}), (arrays, {}), None, results)
    return results


def snapshot(tensor: Tensor) -> Tensor:
    """The tensor's value and history apart from its cell, which is about to be written."""
    new = from_array(tensor._read(), tensor.device, tensor.dtype, tensor._strides)
    if tensor.requires_grad:
        edge = edge_of(tensor)
        set_history(new, edge.node, edge.output_nr)  # type: ignore[arg-type]
    return new


def restored(saved: Saved, node: Node) -> Tensor:
    """A saved value as a tensor with its history."""
    if saved.unpack is not None or saved.cell.version != saved.version or saved.steps:
        new = from_array(saved.array(node), node.device, saved.dtype)
    else:
        new = from_cell(saved.cell, saved.dtype, node.device)
    edge: Edge = saved.history(node)
    if edge.node is not None:
        set_history(new, edge.node, edge.output_nr)
    return new
