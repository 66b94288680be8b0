"""torch.utils._pytree: nested containers as a flat list and a description."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# kind -> (to (children, context), from (children, context))
_KINDS: dict[type, tuple[Callable, Callable]] = {}
_Named = type("namedtuple", (), {})  # all namedtuples share one entry


@dataclass(frozen=True)
class TreeSpec:
    """What a tree looked like; a leaf has type None."""

    type: Any
    context: Any
    children_specs: list[TreeSpec] = field(default_factory=list)

    @property
    def num_leaves(self) -> int:
        """Number of leaves."""
        return 1 if self.type is None else sum(c.num_leaves for c in self.children_specs)

    def is_leaf(self) -> bool:
        """Whether the tree is a leaf."""
        return self.type is None


class LeafSpec(TreeSpec):
    """The description of a leaf."""

    def __init__(self) -> None:
        super().__init__(None, None)


def register_pytree_node(cls: type, flatten_fn: Callable, unflatten_fn: Callable, **_: Any) -> None:
    """Let `cls` be a container: flatten_fn(x) -> (children, context), unflatten_fn back."""
    if cls in _KINDS:
        raise ValueError(f"{cls} is already registered as pytree node.")
    _KINDS[cls] = flatten_fn, unflatten_fn


_register_pytree_node = register_pytree_node


def _dict_back(kind: type) -> Callable:
    return lambda children, keys: kind(zip(keys, children, strict=True))


for _kind in (list, tuple):
    register_pytree_node(_kind, lambda x: (list(x), None), lambda c, _, kind=_kind: kind(c))
for _kind in (dict, OrderedDict):
    register_pytree_node(_kind, lambda x: (list(x.values()), list(x)), _dict_back(_kind))
register_pytree_node(
    defaultdict,
    lambda x: (list(x.values()), (x.default_factory, list(x))),
    lambda c, context: defaultdict(context[0], zip(context[1], c, strict=True)),
)
register_pytree_node(deque, lambda x: (list(x), x.maxlen), deque)
register_pytree_node(_Named, lambda x: (list(x), type(x)), lambda c, kind: kind(*c))


def _kind_of(tree: Any) -> Any:
    kind = type(tree)
    if kind in _KINDS:
        return kind
    return _Named if isinstance(tree, tuple) and hasattr(kind, "_fields") else None


def tree_flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None):
    """The leaves of a tree of containers, and a TreeSpec that tree_unflatten takes."""
    kind = None if is_leaf is not None and is_leaf(tree) else _kind_of(tree)
    if kind is None:
        return [tree], LeafSpec()
    children, context = _KINDS[kind][0](tree)
    leaves, specs = [], []
    for child in children:
        below, spec = tree_flatten(child, is_leaf)
        leaves += below
        specs.append(spec)
    return leaves, TreeSpec(kind, context, specs)


def tree_unflatten(leaves: Any, treespec: TreeSpec) -> Any:
    """The tree with these leaves; ValueError if their number differs."""
    leaves = list(leaves)
    if len(leaves) != treespec.num_leaves:
        raise ValueError(
            f"tree_unflatten(leaves, treespec): `leaves` has length {len(leaves)} but the spec "
            f"refers to a pytree that holds {treespec.num_leaves} items"
        )
    return _grown(iter(leaves), treespec)


def _grown(leaves: Any, spec: TreeSpec) -> Any:
    if spec.type is None:
        return next(leaves)
    return _KINDS[spec.type][1]([_grown(leaves, c) for c in spec.children_specs], spec.context)


def tree_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list:
    """The leaves."""
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> TreeSpec:
    """The description."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(func: Callable, tree: Any, *rests: Any, is_leaf: Callable | None = None) -> Any:
    """The tree with func(leaf, leaves of `rests`) for each leaf."""
    leaves, spec = tree_flatten(tree, is_leaf)
    others = [tree_flatten(r, is_leaf)[0] for r in rests]
    return tree_unflatten([func(*row) for row in zip(leaves, *others, strict=True)], spec)


def tree_map_only(kinds: Any, func: Callable, tree: Any, is_leaf: Callable | None = None) -> Any:
    """tree_map on leaves of these types; the others stay."""
    return tree_map(lambda x: func(x) if isinstance(x, kinds) else x, tree, is_leaf=is_leaf)


def tree_any(pred: Callable[[Any], bool], tree: Any, is_leaf: Callable | None = None) -> bool:
    """Whether `pred` holds for some leaf."""
    return any(map(pred, tree_leaves(tree, is_leaf)))


def tree_all(pred: Callable[[Any], bool], tree: Any, is_leaf: Callable | None = None) -> bool:
    """Whether `pred` holds for all leaves."""
    return all(map(pred, tree_leaves(tree, is_leaf)))
