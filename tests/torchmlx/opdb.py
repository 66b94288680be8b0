"""torch's op_db, sample by sample: the call that an OpInfo makes, for torch and for torchmlx."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import torchmlx

from .parity import find

torch = pytest.importorskip("torch", reason="torch 2.13 CPU is the oracle of parity tests")

from torch.overrides import TorchFunctionMode, resolve_name  # noqa: E402
from torch.testing._internal import common_utils  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.opinfo import core  # noqa: E402

# Names of torch's internals: compositions for its compiler, programs for a GPU, sparse layouts.
INTERNAL = ("_", "ops.", "torch.ops.", "jiterator", "sparse.")
# Not functions of torch's namespaces, or given functions of torch's tensors.
NOT_COMPARED = {
    "max_pool2d_with_indices_backward", "native_dropout_backward",
    "nn.functional.triplet_margin_with_distance_loss", "slice",
}  # fmt: skip
# Each draws numbers, or returns memory that nobody has written.
RANDOM = {
    "bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "empty_strided", "exponential",
    "geometric", "log_normal", "multinomial", "new_empty", "new_empty_strided",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.rrelu", "normal", "pca_lowrank", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "svd_lowrank", "uniform",
}  # fmt: skip

# Equal values of a sort may come in any order; eigenvectors have any phase; one element of a layer
# norm is noise; torch has the sample's view of a storage, we its values.
AMBIGUOUS = {
    "argsort", "as_strided/partial_views", "linalg.eig", "linalg.eigh", "native_layer_norm",
    "nn.functional.layer_norm",
    "sort", "topk",
}  # fmt: skip
DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool)  # the first that an OpInfo has


def seed(number: int) -> None:
    """Seed what draws numbers here: the CPU's generator, Python's and NumPy's."""
    torch.default_generator.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


# Before each sample torch seeds the generators of absent accelerators too, for which it formats the
# stack, and looks through the stack for a unittest: under pytest's 60 frames that took 70 s of this
# folder's 110 (2026-12-02). The numbers are the same.
common_utils.set_rng_seed = seed
common_utils.extract_test_fn = core.extract_test_fn = lambda: None


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


def key_of(op) -> str:
    return op.name + (f"/{op.variant_test_name}" if op.variant_test_name else "")


def operations() -> list:
    """The OpInfos of torch's public functions."""
    return [op for op in op_db if not op.name.startswith(INTERNAL) and op.name not in NOT_COMPARED]


def captured(op, sample) -> Call | None:
    """What the OpInfo `op` calls for a sample, None where it calls nothing of torch."""
    if op.op is _public(op.name):  # a Python function: its first call is one of its parts
        return Call("torch." + op.name, (sample.input, *sample.args), sample.kwargs)
    if op.name in ("T", "H", "mT", "mH"):
        return Call("torch.Tensor." + op.name, (sample.input,), {})
    mode = _First()
    with contextlib.suppress(Exception), mode:  # whoever runs the call sees what is wrong
        op.op(sample.input, *sample.args, **sample.kwargs)
    return mode.call if mode.call and mode.call.name else None


def _public(name: str):
    try:
        return find(torch, name)
    except AttributeError:
        return None


def ours(value, made: list):
    """The same value for torchmlx, laid out alike; tensors that require grad are appended to
    `made`.
    """
    if isinstance(value, torch.Tensor):
        array = value.detach().resolve_conj().resolve_neg()
        if array.is_contiguous() and array.nbytes > array.untyped_storage().nbytes():
            raise ValueError("torch's storage is too small for it: a refused cat left it so")
        if not array.is_contiguous():  # as `strided` makes them
            array = array.transpose(0, -1).contiguous() if array.ndim > 1 else array.contiguous()
        half = array.dtype == torch.bfloat16
        x = torchmlx.tensor(array.float().numpy() if half else array.numpy())
        x = x.bfloat16() if half else x
        if not value.is_contiguous():
            x = torchmlx.stack((x, x), -1)[..., 0]
            x = x.transpose(0, -1) if x.ndim > 1 else x
        if value.requires_grad:
            made.append(x.requires_grad_())
        return x
    if isinstance(value, torch.dtype):
        return getattr(torchmlx, str(value)[6:])
    if isinstance(value, torch.device):
        return torchmlx.device(str(value))
    if isinstance(value, (torch.memory_format, torch.layout)):
        return getattr(torchmlx, str(value)[6:])
    if isinstance(value, torch.Size):
        return tuple(value)
    return _inside(value, lambda v: ours(v, made))


def strided(value):
    """The same value of torch's with tensors that are every other element of a transposed one."""
    if isinstance(value, torch.Tensor):
        x = value.transpose(0, -1).contiguous() if value.ndim > 1 else value
        x = torch.stack((x, x), -1)[..., 0]
        return x.transpose(0, -1) if value.ndim > 1 else x
    return _inside(value, strided)


def _inside(value, change):
    if isinstance(value, (tuple, list)):
        return type(value)(change(v) for v in value)
    if isinstance(value, dict):
        return {k: change(v) for k, v in value.items()}
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
        found = getattr(args[0], parts[1])
        return found(*args[1:], **kwargs) if callable(found) else found
    return find(lib, ".".join(parts))(*args, **kwargs)


def flat(result) -> list:
    if isinstance(result, (tuple, list)):
        return [leaf for part in result for leaf in flat(part)]
    return [result]


def _values(x) -> np.ndarray:
    if not hasattr(x, "dtype"):
        return np.array(x)
    x = x.detach().resolve_conj().resolve_neg()
    return (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()


def difference(mine, theirs, bound: float) -> str:
    """What differs between two results, "" if nothing: "values: ..." where they differ by more
    than `bound` of the largest.
    """
    mine, theirs = flat(mine), flat(theirs)
    if len(mine) != len(theirs):
        return f"shape: {len(mine)} results, torch {len(theirs)}"
    for a, b in zip(mine, theirs, strict=True):
        if str(getattr(a, "dtype", None)) != str(getattr(b, "dtype", None)):
            return f"dtype: {getattr(a, 'dtype', type(a))}, torch {getattr(b, 'dtype', type(b))}"
        x, y = _values(a), _values(b)
        if x.shape != y.shape:
            return f"shape: {x.shape}, torch {y.shape}"
        if x.dtype.kind in "fc":
            finite = np.abs(y[np.isfinite(y)]).max(initial=1e-3)
            equal = np.isclose(x, y, rtol=bound, atol=bound * min(finite, 1e30), equal_nan=True)
        else:
            equal = x == y
        if not equal.all():
            return f"values: {x[~equal].ravel()[:3]}, torch {y[~equal].ravel()[:3]}"
    return ""


def samples(op, dtype, most: int, laid_out=lambda value: value) -> Iterator[tuple[Call, Any]]:
    """Calls of an OpInfo with torch's results: of every third sample, if torch itself takes it."""
    for sample in itertools.islice(op.sample_inputs("cpu", dtype), 0, 3 * most, 3):
        try:
            call = captured(op, sample)
            if call is None:
                continue
            call = Call(call.name, laid_out(call.args), laid_out(call.kwargs))
            seed(0)
            result = run(torch, call.name, call.args, call.kwargs)
        except (RuntimeError, TypeError, ValueError):  # what torch refuses
            continue
        yield call, result


def misses(op, dtype, most: int, bound: float, laid_out=lambda value: value):
    """(how many samples agree with torch, what differs in each of the others)."""
    passed, wrong = 0, []
    for call, want in samples(op, dtype, most, laid_out):
        args, kwargs = ours((list(call.args), call.kwargs), [])
        torchmlx.manual_seed(0)
        try:
            found = difference(run(torchmlx, call.name, args, kwargs), want, bound)
        except Exception as error:
            absent = isinstance(error, AttributeError) and "has no attribute" in str(error)
            found = "absent" if absent else f"error: {error!r}"
        passed += not found
        wrong += [found] if found else []
    return passed, wrong


def first_miss(op, most: int, bound: float) -> str | None:
    """How the first differing sample of the OpInfo differs, in a word; None if all agree, or none
    can be compared.
    """
    dtype = next((d for d in DTYPES if d in op.supported_dtypes("cpu")), None)
    if dtype is None or op.name in RANDOM or key_of(op) in AMBIGUOUS:
        return None
    wrong = misses(op, dtype, most, bound)[1]
    return wrong[0].partition(":")[0] if wrong else None


def refusals(op) -> Iterator[tuple[str, Exception, Exception | None, str]]:
    """(what is called, torch's error, ours, torch's message) for the OpInfo's wrong inputs."""
    for wrong in op.error_inputs("cpu"):
        call = captured(op, wrong.sample_input)
        if call is None:
            continue
        try:
            args, kwargs = ours((list(call.args), call.kwargs), [])
        except (AttributeError, RuntimeError, TypeError, ValueError):
            continue  # complex128, sparse and meta tensors, 65 dimensions
        try:
            run(torch, call.name, call.args, call.kwargs)
        except Exception as error:
            theirs = error
        else:
            continue
        try:
            run(torchmlx, call.name, args, kwargs)
        except Exception as error:
            yield call.name, theirs, error, wrong.error_regex
        else:
            yield call.name, theirs, None, wrong.error_regex
