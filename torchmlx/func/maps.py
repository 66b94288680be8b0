"""vmap: a function called once for each slice, and its results stacked.

torch's results, without a batched kernel's speed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..core.op import TABLE
from ..core.tensor import Tensor
from ..random import default_generators
from ..utils._pytree import tree_flatten, tree_unflatten


def vmap(
    func: Callable, in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *,
    chunk_size: int | None = None,
):  # fmt: skip
    """A function that maps `func` over a dimension of its tensors. torch.func.vmap.

    in_dims: for each argument (or nested as it is) the dimension that is mapped, None for those
    that every call gets whole; out_dims: where that dimension comes in the outputs.
    randomness: "different" draws in each call, "same" the same in all, "error" refuses to draw.
    """
    if randomness not in ("error", "different", "same"):
        raise RuntimeError(
            "Only allowed values for randomness are 'error', 'different', or 'same'. Got "
            f"{randomness}"
        )
    if chunk_size is not None and chunk_size <= 0:
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")

    @functools.wraps(func)
    def wrapped(*args, **kwargs):
        leaves, spec = tree_flatten(args)
        dims = _dims(in_dims, args, spec, _name(func, in_dims))
        size = _size(leaves, dims, _name(func, in_dims))
        calls, first = [], _states()
        for i in range(max(size, 1)):
            if randomness == "same":
                _set_states(first)
            parts = [_slice(x, d, i) for x, d in zip(leaves, dims, strict=True)]
            calls.append(func(*tree_unflatten(parts, spec), **kwargs))
            if randomness == "error" and not _equal(first, _states()):
                raise RuntimeError(
                    "vmap: called random operation while in randomness error mode. Please either "
                    "use the 'same' or 'different' randomness flags on vmap or perform the "
                    "randomness operation out of vmap"
                )
        return _stacked(calls, size, out_dims, _called(func))

    return wrapped


def _states() -> list[Tensor]:
    return [generator.get_state() for generator in default_generators()]


def _set_states(states: list[Tensor]) -> None:
    for generator, state in zip(default_generators(), states, strict=True):
        generator.set_state(state)


def _equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(x.equal(y) for x, y in zip(a, b, strict=True))  # type: ignore[attr-defined]


def _name(func: Callable, in_dims) -> str:
    return f"vmap({_called(func)}, in_dims={in_dims}, ...)(<inputs>)"


def _called(func: Callable) -> str:
    return getattr(func, "__name__", repr(func))


def _spread(dims, tree, spec) -> list | None:
    """A dimension for each leaf of a tree; None where `dims` is nested otherwise."""
    if dims is None or isinstance(dims, int):
        return [dims] * spec.num_leaves
    given, shape = tree_flatten(dims, is_leaf=lambda d: d is None or isinstance(d, int))
    if shape == spec:
        return given
    if shape.type is not spec.type or shape.context != spec.context:
        return None
    if not isinstance(dims, (tuple, list)) or len(dims) != len(spec.children_specs):
        return None
    spread: list = []
    for part, below, child in zip(dims, tree, spec.children_specs, strict=True):
        found = _spread(part, below, child)
        if found is None:
            return None
        spread += found
    return spread


def _dims(in_dims, args: tuple, spec, name: str) -> list:
    """The mapped dimension of each leaf of args, counted from the front, or None."""
    if not isinstance(in_dims, (int, tuple)):
        raise ValueError(
            f"{name}: expected `in_dims` to be int or a (potentially nested) tuple matching the "
            f"structure of inputs, got: {type(in_dims)}."
        )
    if not args:
        raise ValueError(
            f"{name.partition(',')[0]})(<inputs>): got no inputs. Maybe you forgot to add inputs, "
            "or you are trying to vmap over a function with no inputs. The latter is unsupported."
        )
    dims = _spread(in_dims, args, spec)
    if dims is None:
        raise ValueError(
            f"{name}: in_dims is not compatible with the structure of `inputs`. in_dims has "
            f"structure {tree_flatten(in_dims)[1]} but inputs has structure {spec}."
        )
    return [_dim(d, x, name) for d, x in zip(dims, tree_flatten(args)[0], strict=True)]


def _dim(d, x, name: str) -> int | None:
    if d is None:
        return None
    if not isinstance(d, int):
        raise ValueError(
            f"{name}: Got in_dim={d} for an input but in_dim must be either an integer dimension "
            "or None."
        )
    if not isinstance(x, Tensor):
        raise ValueError(
            f"{name}: Got in_dim={d} for an input but the input is of type {type(x)}. We cannot "
            "vmap over non-Tensor arguments, please use None as the respective in_dim"
        )
    if not -x.ndim <= d < x.ndim:
        raise ValueError(
            f"{name}: Got in_dim={d} for some input, but that input is a Tensor of dimensionality "
            f"{x.ndim} so expected in_dim to satisfy -{x.ndim} <= in_dim < {x.ndim}."
        )
    return d % x.ndim


def _size(leaves: list, dims: list, name: str) -> int:
    sizes = [x.shape[d] for x, d in zip(leaves, dims, strict=True) if d is not None]
    if not sizes:
        raise ValueError("vmap: Expected at least one Tensor to vmap over")
    if len(set(sizes)) > 1:
        raise ValueError(
            "vmap: Expected all tensors to have the same size in the mapped dimension, got sizes "
            f"{sizes} for the mapped dimension"
        )
    return sizes[0]


def _slice(x, d: int | None, i: int):
    """Slice i of x; of an empty dimension one of zeros, to learn what comes out."""
    if d is None:
        return x
    if x.shape[d] == 0:
        return x.new_zeros((*x.shape[:d], *x.shape[d + 1 :]))
    return x.select(d, i)


def _stacked(calls: list, size: int, out_dims, name: str):
    flat = [tree_flatten(c)[0] for c in calls]
    spec = tree_flatten(calls[0])[1]
    dims = _spread(out_dims, calls[0], spec)
    if dims is None and isinstance(out_dims, tuple) and len(out_dims) == 1:
        dims = _spread(out_dims[0], calls[0], spec)  # (0,) for a function of one output
    if dims is None:
        raise ValueError(
            f"vmap({name}, ..., out_dims={out_dims})(<inputs>): out_dims is not compatible with "
            f"the structure of `outputs`. out_dims has structure {tree_flatten(out_dims)[1]} but "
            f"outputs has structure {spec}."
        )
    outputs = []
    for k, d in enumerate(dims):
        if d is None:
            outputs.append(flat[0][k])
            continue
        if not isinstance(flat[0][k], Tensor):
            raise ValueError(
                f"vmap({name}, ...): `{name}` must only return Tensors, got type "
                f"{type(flat[0][k])}. Did you mean to set out_dims= to None for output?"
            )
        together = TABLE["stack"].call([row[k] for row in flat], d)
        outputs.append(together.narrow(d, 0, size))
    return tree_unflatten(outputs, spec)
