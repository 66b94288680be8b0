"""Derivatives of functions: backward passes that are recorded themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..autograd.engine import grad as gradients
from ..core import modes
from ..core.op import TABLE
from ..core.tape import AccumulateGrad
from ..core.tensor import Tensor
from ..utils._pytree import tree_flatten, tree_map, tree_map_only, tree_unflatten

# ---- inputs to differentiate by


def _input(x):
    """A tensor that stands for x: with x's history where it has one, else a leaf."""
    if not isinstance(x, Tensor):
        return x
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()


def _inputs(tree):
    return tree_map(_input, tree)


def _tensors(tree) -> list[Tensor]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, Tensor)]


def _differentiated(outputs: Sequence[Tensor], inputs: list[Tensor], cotangents=None) -> list:
    """Gradients by inputs, zeros where nothing leads there, recorded for further derivatives."""
    known = [i for i, y in enumerate(outputs) if y.requires_grad]
    zeros = TABLE["zeros_like"].call
    if not known:
        return [zeros(x) for x in inputs]
    found = gradients(
        [outputs[i] for i in known],
        inputs,
        None if cotangents is None else [cotangents[i] for i in known],
        create_graph=True,
        allow_unused=True,
    )
    return [zeros(x) if g is None else g for g, x in zip(found, inputs, strict=True)]


def _leaves_of(tensors: list[Tensor]) -> set[int]:
    """The leaves that these tensors' histories begin at, by identity."""
    found, seen = set(), set()
    stack: list[Any] = []
    for t in tensors:
        if t.grad_fn is not None:
            stack.append(t.grad_fn)
        elif t.requires_grad:
            found.add(id(t))
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, AccumulateGrad):
            found.add(id(node.variable))
        stack += [edge.node for edge in node.edges if edge.node is not None]
    return found


def _released(results, inputs):
    """The results without their history, where it begins at nothing but our own leaves."""
    own = {id(x) for x in _tensors(inputs) if x.is_leaf}
    if _leaves_of(_tensors(results)) - own:
        return results
    return tree_map_only(Tensor, lambda t: t.detach(), results)


def _chosen(args: tuple, argnums) -> Any:
    """The arguments to differentiate by: one, or a tuple of them."""
    if isinstance(argnums, int):
        return args[_place(args, argnums)]
    return tuple(args[_place(args, i)] for i in argnums)


def _place(args: tuple, argnum) -> int:
    if not isinstance(argnum, int):
        raise RuntimeError(f"argnum must be int, got: {type(argnum)}")
    if not -len(args) <= argnum < len(args):
        raise RuntimeError(f"Got argnum={argnum}, but only {len(args)} positional inputs")
    return argnum % len(args)


def _substituted(args: tuple, argnums, values) -> tuple:
    new = list(args)
    for i, value in (
        [(argnums, values)] if isinstance(argnums, int) else zip(argnums, values, strict=True)
    ):
        new[_place(args, i)] = value
    return tuple(new)


# ---- derivatives


def grad_and_value(func: Callable, argnums: int | tuple[int, ...] = 0, has_aux: bool = False):
    """A function that gives (gradient by the arguments argnums, value) of a scalar function.

    With has_aux, `func` returns (output, aux) and the value is that pair. torch.func.
    """

    @functools.wraps(func)
    def wrapped(*args, **kwargs):
        with modes.enable_grad():
            inputs = _inputs(_chosen(args, argnums))
            result = func(*_substituted(args, argnums, inputs), **kwargs)
            output, aux = _with_aux(result, has_aux, "grad_and_value(f)(*args)")
            _check_scalar(output)
            leaves, spec = tree_flatten(inputs)
            at = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
            for i, g in zip(at, _differentiated([output], [leaves[i] for i in at]), strict=True):
                leaves[i] = g
            found = tree_unflatten(leaves, spec)
        found, output, aux = _released((found, output, aux), inputs)
        return found, (output, aux) if has_aux else output

    return wrapped


def grad(func: Callable, argnums: int | tuple[int, ...] = 0, has_aux: bool = False):
    """A function that gives the gradient of a scalar function by its arguments argnums.

    With has_aux, `func` returns (output, aux), the new one (gradient, aux). torch.func.grad.
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def wrapped(*args, **kwargs):
        found, value = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return wrapped


def _with_aux(result, has_aux: bool, what: str):
    if not has_aux:
        return result, None
    if not (isinstance(result, tuple) and len(result) == 2):
        raise RuntimeError(
            f"{what}: output of function f should be a tuple: (output, aux) if has_aux is True"
        )
    return result


def _check_scalar(output) -> None:
    if not isinstance(output, Tensor):
        raise RuntimeError(
            "grad_and_value(f)(*args): Expected f(*args) to return a tensor, got "
            f"{type(output).__name__}"
        )
    if output.ndim != 0:
        raise RuntimeError(
            "grad_and_value(f)(*args): Expected f(*args) to return a scalar Tensor, got tensor "
            f"with {output.ndim} dims. Maybe you wanted to use the vjp or jacrev APIs instead?"
        )


def vjp(func: Callable, *primals, has_aux: bool = False):
    """(func(*primals), a function from cotangents of its output to those of the primals).

    With has_aux, aux comes third. torch.func.vjp.
    """
    with modes.enable_grad():
        inputs = _inputs(primals)
        output, aux = _with_aux(func(*inputs), has_aux, "vjp(f, *primals)")
    shape = tree_flatten(output)[1]
    by = _tensors(inputs)

    def pull(cotangents, retain_graph=True, create_graph=None):
        given, spec = tree_flatten(cotangents)
        if spec != shape:
            raise RuntimeError(
                f"Expected pytree structure of cotangents to be the same as pytree structure of "
                f"outputs to the function. cotangents: {spec}, primal output: {shape}"
            )
        with modes.enable_grad():
            found = iter(_differentiated(tree_flatten(output)[0], by, given))
            result = tree_map_only(Tensor, lambda _: next(found), inputs)
        return _released(result, inputs)

    value = _released(output, inputs)
    return (value, pull, aux) if has_aux else (value, pull)


def jvp(
    func: Callable, primals: tuple, tangents: tuple, *, strict: bool = False, has_aux: bool = False
):
    """(func(*primals), its Jacobian times tangents). torch.func.jvp.

    By differentiating the vector-Jacobian product by its vector.
    """
    if not isinstance(primals, tuple):
        raise RuntimeError(
            "jvp(f, primals, tangents): Expected primals to be a tuple. E.g. it should be valid to "
            "call f(*primals)."
        )
    if tree_flatten(primals)[1] != tree_flatten(tangents)[1]:
        raise RuntimeError(
            "jvp(f, primals, tangents): Expected primals and tangents to have the same python "
            "structure."
        )
    with modes.enable_grad():
        inputs = _inputs(primals)
        output, aux = _with_aux(func(*inputs), has_aux, "jvp(f, primals, tangents)")
        outputs, spec = tree_flatten(output)
        products = tree_unflatten(_pushed(outputs, _tensors(inputs), _tensors(tangents)), spec)
    value, products, aux = _released((output, products, aux), inputs)
    return (value, products, aux) if has_aux else (value, products)


def _pushed(outputs: list[Tensor], inputs: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
    """The Jacobian of outputs by inputs times tangents."""
    zeros = TABLE["zeros_like"].call
    vectors = [zeros(y).requires_grad_() for y in outputs]
    pulled = _differentiated(outputs, inputs, vectors)
    known = [i for i, p in enumerate(pulled) if p.requires_grad]
    if not known:
        return [zeros(y) for y in outputs]
    found = gradients(
        [pulled[i] for i in known], vectors, [tangents[i] for i in known],
        create_graph=True, allow_unused=True,
    )  # fmt: skip
    return [zeros(y) if t is None else t for t, y in zip(found, outputs, strict=True)]


def linearize(func: Callable, *primals):
    """(func(*primals), a function from tangents to its Jacobian times them). torch.func."""
    with modes.enable_grad():
        inputs = _inputs(primals)
        output = func(*inputs)
        outputs, spec = tree_flatten(output)

    def push(*tangents):
        with modes.enable_grad():
            found = tree_unflatten(_pushed(outputs, _tensors(inputs), _tensors(tangents)), spec)
        return _released(found, inputs)

    return _released(output, inputs), push


def jacrev(
    func: Callable, argnums: int | tuple[int, ...] = 0, *, has_aux: bool = False,
    chunk_size: int | None = None, _preallocate_and_copy: bool = False,
):  # fmt: skip
    """A function that gives the Jacobian by the arguments argnums: [*output, *input] each.

    One backward pass an element of the output. torch.func.jacrev.
    """
    if chunk_size is not None and chunk_size <= 0:
        raise ValueError("jacrev: `chunk_size` should be greater than 0.")

    @functools.wraps(func)
    def wrapped(*args, **kwargs):
        with modes.enable_grad():
            inputs = _inputs(_chosen(args, argnums))
            result = func(*_substituted(args, argnums, inputs), **kwargs)
            output, aux = _with_aux(result, has_aux, "jacrev(f)(*args)")
            jacobians = tree_map(lambda y: _jacobian(y, inputs), output)
        jacobians, aux = _released((jacobians, aux), inputs)
        return (jacobians, aux) if has_aux else jacobians

    return wrapped


def _jacobian(y: Tensor, inputs):
    by, flat = _tensors(inputs), y.reshape(-1)
    rows = [_differentiated([flat[i]], by) for i in range(flat.numel())]
    stack = TABLE["stack"].call
    parts = iter(
        stack([row[k] for row in rows]).reshape((*y.shape, *x.shape))
        if rows
        else x.new_zeros((*y.shape, *x.shape))
        for k, x in enumerate(by)
    )
    return tree_map_only(Tensor, lambda _: next(parts), inputs)


def jacfwd(
    func: Callable, argnums: int | tuple[int, ...] = 0, has_aux: bool = False, *,
    randomness: str = "error",
):  # fmt: skip
    """What `jacrev` gives, in the same way. torch.func.jacfwd."""
    return jacrev(func, argnums, has_aux=has_aux)


def hessian(func: Callable, argnums: int | tuple[int, ...] = 0):
    """A function that gives the second derivatives. torch.func.hessian."""
    return jacfwd(jacrev(func, argnums), argnums)
