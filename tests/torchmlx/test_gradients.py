"""Gradients of every operation in torch's op_db, first and second, against torch's backward."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import torchmlx
from torchmlx.core import record

from .opdb import INTERNAL, captured, flat, leaves, ours, run, seed

torch = pytest.importorskip("torch", reason="torch 2.13 CPU is the oracle of parity tests")

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

SAMPLES, CHUNKS = 2, 8

# No gradient: the operation says so (NotImplementedError with its name).
REFUSED = {"nextafter"}
# Not compared: random samples; complex128; a layer norm of one element, whose gradient is noise.
# A view's own strides do not survive the conversion of its sample. Norms of an order below 1 have
# NaN for a slope at 0, where torch has 0 (test_autograd.py holds the usual orders). torch gives
# as_strided_scatter's input the gradient of the elements that were overwritten.
LEFT_OUT = {
    "as_strided_scatter",
    "as_strided/partial_views", "bernoulli", "cdouble",
    "linalg.norm/subgradients_at_zero", "normal", "normal/number_mean",
    "nn.functional.feature_alpha_dropout/without_train",
    "nn.functional.triplet_margin_with_distance_loss",
}  # fmt: skip
# The second gradient is a small difference of large numbers.
# rrelu's gradient does not depend on its input, of which torch says zero and we nothing. Of -inf
# and -inf, which masked elements are, torch's logaddexp has NaN.
LEFT_OUT_TWICE = {"logcumsumexp", "masked.logaddexp", "nn.functional.rrelu"}


def _key(op) -> str:
    return op.name + (f"/{op.variant_test_name}" if op.variant_test_name else "")


def _weights(tensors, seed: int) -> list[np.ndarray]:
    """Cotangents for a list of tensors of either library."""
    rng = np.random.default_rng(seed)
    return [rng.uniform(0.5, 1.5, tuple(t.shape)).astype(np.float32) for t in tensors]


def _gradients(lib, results, inputs, weights, create_graph=False):
    cotangents = [lib.tensor(w).to(r.dtype) for w, r in zip(weights, results, strict=True)]
    return lib.autograd.grad(
        results, inputs, cotangents, allow_unused=True, create_graph=create_graph
    )


def _array(gradient, like) -> np.ndarray:
    if gradient is None:
        return np.zeros(tuple(like.shape))
    return np.array((gradient.detach().resolve_conj().resolve_neg() + 0).tolist())  # no ZeroTensor


def _compare(mine, theirs, inputs) -> str:
    for k, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        x, y = _array(a, inputs[k]), _array(b, inputs[k])
        x = x.reshape(y.shape)
        if not np.allclose(x, y, rtol=2e-3, atol=3e-4, equal_nan=True):
            return f"input {k}: {x.ravel()[:3]}, torch {y.ravel()[:3]}"
    return ""


class _Sample:
    """One call with torch's gradients: `first`, and `second` where there is one."""

    def __init__(self, call, twice: bool):
        self.call = call
        self.inputs = list(leaves((call.args, call.kwargs)))
        seed(0)
        results = flat(run(torch, call.name, call.args, call.kwargs))
        self.where = [
            i for i, r in enumerate(results) if isinstance(r, torch.Tensor) and r.requires_grad
        ]
        results = [results[i] for i in self.where]
        self.weights = _weights(results, 0)
        self.second: Any = None
        if not results:
            return
        self.first = _gradients(torch, results, self.inputs, self.weights, create_graph=twice)
        self.again = [i for i, g in enumerate(self.first) if g is not None and g.requires_grad]
        if twice and self.again:
            gradients = [self.first[i] for i in self.again]
            self.more = _weights(gradients, 1)
            self.second = _gradients(torch, gradients, self.inputs, self.more)

    def check(self) -> str:
        """What differs from torch: nothing, or a line."""
        made: list = []
        args, kwargs = ours((list(self.call.args), self.call.kwargs), made)
        torchmlx.manual_seed(0)
        results = flat(run(torchmlx, self.call.name, args, kwargs))
        results = [results[i] for i in self.where]
        twice = self.second is not None
        first = _gradients(torchmlx, results, made, self.weights, create_graph=twice)
        wrong = _compare(first, self.first, self.inputs)
        if wrong or not twice:
            return wrong
        second = _gradients(torchmlx, [first[i] for i in self.again], made, self.more)
        wrong = _compare(second, self.second, self.inputs)
        return wrong and f"second gradient, {wrong}"


def _samples(op, twice: bool):
    """The OpInfo's samples that torch itself can differentiate."""
    try:
        given = itertools.islice(
            op.sample_inputs("cpu", torch.float32, requires_grad=True), SAMPLES
        )
        given = list(given)
    except Exception:
        return
    for sample in given:
        seed(0)
        try:
            call = captured(op, sample)
            found = None if call is None else _Sample(call, twice)
        except Exception:  # torch refuses the sample, or its second gradient
            continue
        if found is not None and found.where:
            yield found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_gradients_are_torchs(chunk):
    wrong, passed = {}, 0
    chosen = [op for op in op_db if op.supports_autograd and not op.name.startswith(INTERNAL)]
    for op in chosen[chunk::CHUNKS]:
        key = _key(op)
        if torch.float32 not in op.supported_dtypes("cpu") or key in LEFT_OUT:
            continue
        twice = op.supports_gradgrad and key not in LEFT_OUT_TWICE
        for sample in _samples(op, twice):
            try:
                difference = sample.check()
            except AttributeError as error:  # a name that does not exist: op_db's other test
                difference = "" if "has no attribute" in str(error) else repr(error)
                passed -= not difference
            except NotImplementedError as error:
                difference = "" if key in REFUSED else f"NotImplementedError: {error}"
            except Exception as error:
                difference = repr(error)
            passed += not difference
            if difference:
                wrong[key] = f"{sample.call.name}: {difference}"
    assert not wrong
    assert passed >= 80


def test_a_gradient_that_is_missing_says_so():
    x = torchmlx.tensor([0.5, 1.5], requires_grad=True)
    with pytest.raises(NotImplementedError, match="nextafter"):
        torchmlx.nextafter(x, torchmlx.ones(2)).sum().backward()


CHOOSING = {
    "where": lambda lib, x, mask: lib.where(mask, x, x * 0),
    "where with a number": lambda lib, x, mask: lib.where(mask, 0.0, x),
    "masked_fill": lambda lib, x, mask: x.masked_fill(mask, 0.0),
    "index_fill": lambda lib, x, mask: x.index_fill(0, lib.tensor([1]), 0.0),
    "tril": lambda lib, x, mask: x.tril(),
    "triu": lambda lib, x, mask: x.triu(1),
    "threshold": lambda lib, x, mask: lib.nn.functional.threshold(x, 0.1, 0.0),
    "hardshrink": lambda lib, x, mask: lib.nn.functional.hardshrink(x),
    "softshrink": lambda lib, x, mask: lib.nn.functional.softshrink(x),
    "hardsigmoid": lambda lib, x, mask: lib.nn.functional.hardsigmoid(x * 3),
    "fmax": lambda lib, x, mask: lib.fmax(x, lib.zeros(3)),
    "fmin": lambda lib, x, mask: lib.fmin(x, lib.tensor([0.5, math.nan, -0.5])),
    "mask = number": lambda lib, x, mask: _written(x, mask, 0.0),
    "mask = tensor": lambda lib, x, mask: _written(x, mask, lib.tensor(1.5)),
    "max_pool1d": lambda lib, x, mask: lib.nn.functional.max_pool1d(x, 2, 1),
    "max_pool2d": lambda lib, x, mask: lib.nn.functional.max_pool2d(x[None], 3, 2, 1),
    "max_pool3d": lambda lib, x, mask: lib.nn.functional.max_pool3d(x[None, None], (1, 2, 2)),
    "hardswish": lambda lib, x, mask: lib.nn.functional.hardswish(x * 3),
    "copysign": lambda lib, x, mask: lib.copysign(x * mask, x.detach()),
    "nll_loss": lambda lib, x, mask: _classified(lib, "nll_loss", x),
    "cross_entropy": lambda lib, x, mask: _classified(lib, "cross_entropy", x),
    "max": lambda lib, x, mask: x.max(),
    "median": lambda lib, x, mask: x.median(),
    "angle": lambda lib, x, mask: x.angle(),
    "diag": lambda lib, x, mask: x[0].diag(),
    "embedding_bag": lambda lib, x, mask: lib.nn.functional.embedding_bag(
        lib.tensor([[0, 1, 1]]), x, mode="max"
    ),
    "grid_sample": lambda lib, x, mask: lib.nn.functional.grid_sample(
        x[None, None], x.detach()[None, :, :2, None].expand(1, 3, 2, 2), align_corners=False
    ),
    "cosine_embedding_loss": lambda lib, x, mask: lib.nn.functional.cosine_embedding_loss(
        x, x.detach() + 1, lib.tensor([1, -1, -1]), margin=0.9, reduction="none"
    ),
    "gelu": lambda lib, x, mask: lib.nn.functional.gelu(x),
    "silu": lambda lib, x, mask: lib.nn.functional.silu(x),
    "leaky_relu": lambda lib, x, mask: lib.nn.functional.leaky_relu(x),
    "prelu": lambda lib, x, mask: lib.nn.functional.prelu(x, lib.tensor([0.1, 0.2, 0.3])),
    "var": lambda lib, x, mask: x.var(1),
    "huber_loss": lambda lib, x, mask: lib.nn.functional.huber_loss(
        x, x.detach() * 0, reduction="none"
    ),
}


def _written(x, mask, value):
    y = x * 1
    y[mask] = value
    return y


def _classified(lib, name: str, x):
    targets = lib.tensor([1, -100, 2])
    return getattr(lib.nn.functional, name)(x, targets, reduction="none")


@pytest.mark.parametrize("cotangent", [math.nan, math.inf, 2.0])
@pytest.mark.parametrize("name", CHOOSING)
def test_what_was_not_chosen_gets_zero(name, cotangent):
    """Also where the cotangent is no number: a product with 0 would be none either."""
    slopes = []
    for lib in (torch, torchmlx):
        x = lib.tensor([[1.0, -2, 0.3], [0.2, 0.7, -0.1], [1.5, 3, -0.6]], requires_grad=True)
        y = CHOOSING[name](lib, x, x.detach() > 0.25)
        slopes.append(lib.autograd.grad(y, x, lib.full(tuple(y.shape), cotangent))[0].numpy())
    np.testing.assert_allclose(slopes[1], slopes[0], rtol=1e-6)


def _numbers(lib, *shape, values=(-1.0, 0.0, 1.0)):
    """Whole numbers, so that many are equal, and many 0."""
    drawn = np.random.default_rng(0).choice(values, shape).astype(np.float32)
    return lib.tensor(drawn, requires_grad=True)


# Where a function has no slope, torch takes one; equal elements share a gradient, or the first has
# it.
AT_KINKS = {
    **{
        name: lambda lib, name=name: getattr(lib.nn.functional, name)(_leaf(lib))
        for name in ("elu", "selu", "celu", "logsigmoid", "gelu", "softplus", "mish", "hardswish")
    },
    "erf": lambda lib: lib.erf(_leaf(lib)),
    "std of equals": lambda lib: (_leaf(lib) * 0 + 2).std(1),
    "std": lambda lib: _leaf(lib).std((0, 1)),
    "var, no degrees of freedom": lambda lib: _leaf(lib).var(1, correction=6),
    "std_mean": lambda lib: sum(lib.std_mean(_leaf(lib) * 0, dim=1)),
    "max": lambda lib: _leaf(lib).max(),
    "median": lambda lib: _leaf(lib).median(),
    "max_pool2d": lambda lib: lib.nn.functional.max_pool2d(_leaf(lib)[None], 2),
    "max_pool2d that overlaps": lambda lib: lib.nn.functional.max_pool2d(
        _leaf(lib)[None], (3, 2), (1, 2), (1, 0), (1, 2), True
    ),
    "bce_with_logits": lambda lib: lib.nn.functional.binary_cross_entropy_with_logits(
        _leaf(lib), lib.full((6, 6), 0.25), reduction="none", pos_weight=lib.tensor(3.0)
    ),
    "bce": lambda lib: lib.nn.functional.binary_cross_entropy(
        _leaf(lib).abs(), lib.eye(6), reduction="none"
    ),
    "cross_entropy, all ignored": lambda lib: lib.nn.functional.cross_entropy(
        _leaf(lib), lib.full((6,), -100)
    ),
    "gaussian_nll_loss": lambda lib: lib.nn.functional.gaussian_nll_loss(
        _leaf(lib), lib.ones(6, 6), _leaf(lib).abs(), reduction="none"
    ),
    "xlogy": lambda lib: lib.xlogy(_leaf(lib), _leaf(lib).abs() + 1),
    "xlog1py": lambda lib: lib.special.xlog1py(_leaf(lib), _leaf(lib).abs() + 1),
    "entr": lambda lib: lib.special.entr(_leaf(lib)),
    "logit": lambda lib: lib.logit(_leaf(lib)),
    "hypot": lambda lib: lib.hypot(_leaf(lib), lib.ones(6)),
    "atan2": lambda lib: lib.atan2(_leaf(lib), _leaf(lib) * 0),
    "pow 0": lambda lib: _leaf(lib) ** 0,
    "pow": lambda lib: 0.0 ** _leaf(lib).abs(),
    "logaddexp": lambda lib: lib.logaddexp(_leaf(lib).double(), lib.zeros(6).double()),
    "embedding_bag": lambda lib: lib.nn.functional.embedding_bag(
        lib.tensor([[0, 1, 1], [3, 2, 4]]), _leaf(lib), mode="max"
    ),
    "scatter_reduce": lambda lib: _leaf(lib).scatter_reduce(
        0, lib.zeros(3, 6, dtype=lib.int64), _leaf(lib)[1:4], "amax"
    ),
    "scatter_reduce, not with itself": lambda lib: _leaf(lib).scatter_reduce(
        0, lib.zeros(3, 6, dtype=lib.int64), _leaf(lib)[1:4], "amin", include_self=False
    ),
    **{
        f"{p}-norm": lambda lib, p=p: lib.linalg.vector_norm(_leaf(lib), p, 1)
        for p in (-1, 0.5, 1, 2, 3, math.inf, -math.inf)
    },
}  # fmt: skip
_made: list = []


def _leaf(lib):
    _made.append(_numbers(lib, 6, 6))
    return _made[-1]


@pytest.mark.parametrize("name", AT_KINKS)
def test_gradients_at_kinks_and_of_equals(name):
    slopes = []
    for lib in (torch, torchmlx):
        _made.clear()
        y = AT_KINKS[name](lib)
        weights = lib.arange(1.0, 1 + y.numel()).reshape(y.shape).to(y.dtype)
        found = lib.autograd.grad(y, _made, weights, allow_unused=True)
        slopes.append([g.numpy() for g in found if g is not None])
    for mine, theirs in zip(slopes[1], slopes[0], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_the_number_of_elements_has_no_gradient():
    for lib in (torch, torchmlx):
        x = _numbers(lib, 3)
        lib.linalg.vector_norm(x, 0).backward()
        assert x.grad is None
        assert lib.autograd.grad(x.norm(0) + x.sum(), x)[0].tolist() == [1, 1, 1]


def test_functions_of_one_call_are_not_kept():
    x = torchmlx.ones(2, requires_grad=True)
    x.clone()
    before = len(record._PARAMETERS)
    for _ in range(20):
        x.clone().to(torchmlx.float64).sum()
    assert len(record._PARAMETERS) <= before + 2
