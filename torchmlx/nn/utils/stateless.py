"""A module called with other parameters than its own. torch.nn.utils.stateless."""

from __future__ import annotations

from contextlib import contextmanager

from ...core.tensor import Tensor

__all__ = ["functional_call"]

_ABSENT = object()


def functional_call(
    module, parameters_and_buffers, args=None, kwargs=None, *, tie_weights=True, strict=False
):
    """module(*args, **kwargs) with these tensors, by name, in place of its own.

    tie_weights: names that share a tensor all get the one given. strict: all names and no others.
    Raises RuntimeError with strict, ValueError where tied names are given different tensors.
    """
    args = () if args is None else args if isinstance(args, tuple) else (args,)
    with _replaced(module, dict(parameters_and_buffers), tie_weights, strict):
        return module(*args, **(kwargs or {}))


def _own(module) -> dict[str, Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _with_ties(given: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
    """The given tensors under every name that shares a tensor with theirs."""
    groups: dict[int, list[str]] = {}
    for name, tensor in own.items():
        groups.setdefault(id(tensor), []).append(name)
    tied = dict(given)
    for names in groups.values():
        values = {id(given[n]): given[n] for n in names if n in given}
        if len(values) > 1:
            raise ValueError(
                f"functional_call got multiple values for keys {sorted(names)}, which are tied. "
                "Consider using tie_weights=False"
            )
        for value in values.values():
            tied |= dict.fromkeys(names, value)
    return tied


@contextmanager
def _replaced(module, given: dict[str, Tensor], tie_weights: bool, strict: bool):
    own = _own(module)
    if tie_weights:
        given = _with_ties(given, own)
    if strict:
        _check_names(type(module).__name__, given, own)
    before = []
    try:
        for name, tensor in given.items():
            path, _, last = name.rpartition(".")
            holder = module.get_submodule(path)
            table = next(
                (t for t in (holder._parameters, holder._buffers) if last in t), holder.__dict__
            )
            before.append((table, last, table.get(last, _ABSENT)))
            table[last] = tensor
        yield
    finally:
        for table, name, tensor in reversed(before):
            if tensor is _ABSENT:
                table.pop(name, None)
            else:
                table[name] = tensor


def _check_names(kind: str, given: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    wrong = [
        f"\n\t{label} key(s): {', '.join(map(repr, sorted(names)))}."
        for label, names in (
            ("Unexpected", set(given) - set(own)),
            ("Missing", set(own) - set(given)),
        )
        if names
    ]
    if wrong:
        raise RuntimeError(f"Error(s) in reparametrizing for {kind}:" + "".join(wrong))
