"""torch's op_db, sample by sample: the call that an OpInfo makes, for torch and for torchmlx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import torchmlx

torch = pytest.importorskip("torch", reason="torch 2.13 CPU is the oracle of parity tests")

from torch.overrides import TorchFunctionMode, resolve_name  # noqa: E402


class Call(NamedTuple):
    """The first call of torch that a sample makes: a name such as `torch.Tensor.add`."""

    name: str
    args: Any
    kwargs: Any


class _First(TorchFunctionMode):
    """Notes the first call, and lets it run."""

    call: Call | None = None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = resolve_name(func) or ""
        if self.call is None and name.rpartition(".")[2] not in ("__get__", "manual_seed"):
            name = name.replace("torch.functional.", "torch.")
            self.call = Call(name.replace("torch._VariableFunctionsClass.", "torch."), args, kwargs)
        return func(*args, **kwargs)


def captured(op, sample) -> Call | None:
    """What the OpInfo `op` calls for a sample, None where it calls nothing of torch."""
    mode = _First()
    with mode:
        op.op(sample.input, *sample.args, **sample.kwargs)
    return mode.call


def ours(value, made: list):
    """The same value for torchmlx; tensors that require grad are appended to `made`."""
    if isinstance(value, torch.Tensor):
        array = value.detach().resolve_conj().resolve_neg().contiguous()
        x = torchmlx.tensor(array.numpy())
        if value.requires_grad:
            made.append(x.requires_grad_())
        return x
    if isinstance(value, torch.dtype):
        return getattr(torchmlx, str(value)[6:])
    if isinstance(value, torch.device):
        return torchmlx.device(str(value))
    if isinstance(value, torch.memory_format):
        return getattr(torchmlx, str(value)[6:])
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, (tuple, list)):
        return type(value)(ours(v, made) for v in value)
    if isinstance(value, dict):
        return {k: ours(v, made) for k, v in value.items()}
    return value


def leaves(value) -> Iterator:
    """torch's tensors that require grad, in the order of `ours`."""
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            yield value
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from leaves(v)
    elif isinstance(value, dict):
        for v in value.values():
            yield from leaves(v)


def run(lib, name: str, args, kwargs):
    """Call `torch.NAME` of torch or torchmlx."""
    parts = name.split(".")[1:]
    if parts[0] == "Tensor":
        return getattr(args[0], parts[1])(*args[1:], **kwargs)
    found = lib
    for part in parts:
        found = getattr(found, part)
    return found(*args, **kwargs)


def flat(result) -> list:
    if isinstance(result, (tuple, list)):
        return [leaf for part in result for leaf in flat(part)]
    return [result]
