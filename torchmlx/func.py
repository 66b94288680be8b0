"""torch.func: derivatives and maps of functions.

Derivatives are backward passes that are recorded themselves. `vmap` calls the function once for
each slice and stacks the results: torch's results, without a batched kernel's speed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .autograd.engine import grad as gradients
from .core import modes
from .core.op import TABLE
from .core.tape import AccumulateGrad
from .core.tensor import Tensor
from .nn.utils.stateless import functional_call as _call
from .random import default_generators
from .utils._pytree import tree_flatten, tree_map, tree_map_only, tree_unflatten

__all__ = [
    "functional_call",
    "functionalize",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "stack_module_state",
    "vjp",
    "vmap",
]


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


# ---- maps


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


# ---- modules as functions


def functional_call(
    module, parameter_and_buffer_dicts, args=None, kwargs=None, *, tie_weights=True, strict=False
):
    """module(*args, **kwargs) with these tensors, by name, in place of its own.

    A dict, or several whose names differ. torch.func.functional_call.
    """
    given = parameter_and_buffer_dicts
    if isinstance(given, (list, tuple)):
        names = [name for part in given for name in part]
        if len(names) != len(set(names)):
            twice = sorted({n for n in names if names.count(n) > 1})
            raise ValueError(
                f"{twice} appeared in multiple dictionaries; behavior of functional call is "
                "ambiguous"
            )
        given = {name: value for part in given for name, value in part.items()}
    elif not isinstance(given, dict):
        raise ValueError(
            "Expected parameter_and_buffer_dicts to be a dict, or a list/tuple of dicts, but got "
            f"{type(given)}"
        )
    return _call(module, given, args, kwargs, tie_weights=tie_weights, strict=strict)


def stack_module_state(models) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(parameters, buffers) of modules of one class, stacked by name. torch.func."""
    if len(models) == 0:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if len({m.training for m in models}) > 1:
        raise RuntimeError(
            "stack_module_state: Expected all models to have the same training/eval mode."
        )
    if len({type(m) for m in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")

    def stacked(named):
        rows = [dict(named(m)) for m in models]
        return {
            name: TABLE["stack"].call([row[name] for row in rows]).detach()
            .requires_grad_(rows[0][name].requires_grad)
            for name in rows[0]
        }  # fmt: skip

    return stacked(lambda m: m.named_parameters()), stacked(lambda m: m.named_buffers())


def functionalize(func: Callable, *, remove: str = "mutations") -> Callable:
    """The function itself: writes in place are already carried out on copies. torch.func."""
    return func
