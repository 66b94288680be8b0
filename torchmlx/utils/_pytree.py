"""torch.utils._pytree: nested containers as a flat list and a description."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# kind -> (to (children, context), from (children, context), to (pairs of key and child, context))
_KINDS: dict[type, tuple[Callable, Callable, Callable | None]] = {}
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


@dataclass(frozen=True)
class SequenceKey:
    """Where a child of a sequence is. torch.utils._pytree.SequenceKey."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"

    def get(self, tree: Any) -> Any:
        return tree[self.idx]


@dataclass(frozen=True)
class MappingKey:
    """Where a child of a mapping is. torch.utils._pytree.MappingKey."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"

    def get(self, tree: Any) -> Any:
        return tree[self.key]


@dataclass(frozen=True)
class GetAttrKey:
    """Where a child that is an attribute is. torch.utils._pytree.GetAttrKey."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"

    def get(self, tree: Any) -> Any:
        return getattr(tree, self.name)


class LeafSpec(TreeSpec):
    """The description of a leaf."""

    def __init__(self) -> None:
        super().__init__(None, None)


def register_pytree_node(
    cls: type, flatten_fn: Callable, unflatten_fn: Callable, *,
    flatten_with_keys_fn: Callable | None = None, **_: Any,
) -> None:  # fmt: skip
    """Let `cls` be a container: flatten_fn(x) -> (children, context), unflatten_fn back.

    flatten_with_keys_fn(x) -> (pairs of key and child, context), for the functions with paths.
    """
    if cls in _KINDS:
        raise ValueError(f"{cls} is already registered as pytree node.")
    _KINDS[cls] = flatten_fn, unflatten_fn, flatten_with_keys_fn


_register_pytree_node = register_pytree_node


def _list_flatten(x: Any) -> tuple[list, Any]:
    return list(x), None


def _list_flatten_with_keys(x: Any) -> tuple[list, Any]:
    return [(SequenceKey(i), child) for i, child in enumerate(x)], None


def _dict_flatten(x: Any) -> tuple[list, Any]:
    return list(x.values()), list(x)


def _dict_flatten_with_keys(x: Any) -> tuple[list, Any]:
    return [(MappingKey(key), child) for key, child in x.items()], list(x)


def _dict_unflatten(children: Any, keys: Any) -> dict:
    return dict(zip(keys, children, strict=True))


def _ordered_unflatten(children: Any, keys: Any) -> OrderedDict:
    return OrderedDict(zip(keys, children, strict=True))


def _default_flatten(x: Any) -> tuple[list, Any]:
    return list(x.values()), (x.default_factory, list(x))


def _default_flatten_with_keys(x: Any) -> tuple[list, Any]:
    return _dict_flatten_with_keys(x)[0], (x.default_factory, list(x))


def _named_flatten_with_keys(x: Any) -> tuple[list, Any]:
    return [(GetAttrKey(n), c) for n, c in zip(x._fields, x, strict=True)], type(x)


for _kind, *_functions in (
    (list, _list_flatten, lambda c, _: list(c), _list_flatten_with_keys),
    (tuple, _list_flatten, lambda c, _: tuple(c), _list_flatten_with_keys),
    (dict, _dict_flatten, _dict_unflatten, _dict_flatten_with_keys),
    (OrderedDict, _dict_flatten, _ordered_unflatten, _dict_flatten_with_keys),
    (
        defaultdict,
        _default_flatten,
        lambda c, context: defaultdict(context[0], zip(context[1], c, strict=True)),
        _default_flatten_with_keys,
    ),
    (deque, lambda x: (list(x), x.maxlen), deque, _list_flatten_with_keys),
    (_Named, lambda x: (list(x), type(x)), lambda c, kind: kind(*c), _named_flatten_with_keys),
):
    register_pytree_node(_kind, _functions[0], _functions[1], flatten_with_keys_fn=_functions[2])


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


def tree_iter(tree: Any, is_leaf: Callable[[Any], bool] | None = None):
    """The leaves, one after the other."""
    yield from tree_leaves(tree, is_leaf)


def tree_flatten_with_path(tree: Any, is_leaf: Callable[[Any], bool] | None = None):
    """Pairs of path (a tuple of keys) and leaf, and the TreeSpec."""
    return list(_with_paths((), tree, is_leaf)), tree_structure(tree, is_leaf)


def tree_leaves_with_path(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list:
    """Pairs of path and leaf."""
    return list(_with_paths((), tree, is_leaf))


def _with_paths(path: tuple, tree: Any, is_leaf: Callable[[Any], bool] | None):
    kind = None if is_leaf is not None and is_leaf(tree) else _kind_of(tree)
    if kind is None:
        yield path, tree
        return
    with_keys = _KINDS[kind][2]
    if with_keys is None:
        raise ValueError(
            f"Did not find a flatten_with_keys_fn for type: {kind}. Please pass a "
            "flatten_with_keys_fn argument to register_pytree_node."
        )
    for key, child in with_keys(tree)[0]:
        yield from _with_paths((*path, key), child, is_leaf)


def tree_map_with_path(func: Callable, tree: Any, *rests: Any, is_leaf: Any = None) -> Any:
    """The tree with func(path, leaf, leaves of `rests`) for each leaf."""
    pairs, spec = tree_flatten_with_path(tree, is_leaf)
    others = [tree_leaves(r, is_leaf) for r in rests]
    return tree_unflatten([func(*p, *row) for p, *row in zip(pairs, *others, strict=True)], spec)


def keystr(path: tuple) -> str:
    """A path as Python would write it."""
    return "".join(map(str, path))


def key_get(obj: Any, path: tuple) -> Any:
    """What `path` leads to."""
    for key in path:
        obj = key.get(obj)
    return obj
