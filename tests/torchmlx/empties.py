"""Everything that reduces, on empty tensors, by torch and by torchmlx: a process of its own.

MLX may never come back from reducing an empty array, as its uninitialised memory has it. So each
result's graph is searched for such a reduction before it is evaluated, and each case is named
before it runs. Prints the cases that went wrong, after "WRONG".
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import torch

import torchmlx
from tests.torchmlx.parity import same

SHAPES = ((0,), (0, 3), (3, 0), (2, 0, 3), (0, 0))


def _sliced(x, shape):
    return x[tuple(slice(1, n + 1) for n in shape)]


# The shape of a leaf, and the view of it that has the shape wanted.
LAYOUTS: dict[str, tuple[Callable, Callable]] = {
    "contiguous": (lambda s: s, lambda x, s: x),
    "transposed": (lambda s: s[::-1], lambda x, s: x.permute(tuple(range(x.ndim))[::-1])),
    "expanded": (lambda s: (1,) * len(s), lambda x, s: x.expand(s)),
    "sliced": (lambda s: tuple(n + 2 for n in s), _sliced),
}


class Case(NamedTuple):
    """function(library, x, *others): x gets every layout, others are arrays with gradients."""

    name: str
    function: Callable
    shape: tuple[int, ...]
    others: tuple = ()


def numbers(shape) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(np.float32)


def leaf(lib, array):
    x = lib.tensor(array)
    return x.requires_grad_() if x.dtype == lib.float32 else x


def tensors(value) -> list:
    if isinstance(value, (tuple, list)):
        return [t for v in value for t in tensors(v)]
    return [value] if hasattr(value, "requires_grad") else []


def attempt(function):
    """function(), or the error."""
    try:
        return function()
    except Exception as error:
        return error


def outcome(lib, case: Case, layout: str) -> tuple:
    """(the result, the gradients of the leaves), either of them perhaps an error."""
    shape_of, view = LAYOUTS[layout]
    leaves = [leaf(lib, a) for a in (numbers(shape_of(case.shape)), *case.others)]
    result = attempt(lambda: case.function(lib, view(leaves[0], case.shape), *leaves[1:]))
    roots = [t for t in tensors(result) if t.requires_grad]
    wanted = [x for x in leaves if x.requires_grad]
    # Cotangents that are transposed in memory.
    ones = [lib.ones(t.shape[::-1]).permute(tuple(range(t.ndim))[::-1]).to(t.dtype) for t in roots]
    return result, roots and attempt(
        lambda: lib.autograd.grad(roots, wanted, ones, materialize_grads=True)
    )


def reduces_nothing(arrays: list[mx.array]) -> bool:
    """Whether MLX would reduce an empty array to evaluate these."""
    found = []

    def look(part):
        if part["type"] == "primitive" and part["name"] == "Reduce":
            found.extend(1 for _, shape, _ in part["inputs"] if 0 in shape)

    # Not everything can be exported; what comes before it has been seen by then.
    with contextlib.suppress(ValueError):
        mx.export_function(look, lambda: arrays)
    return bool(found)


def wrong(case: Case, layout: str) -> str | None:
    """What is wrong about a case, or None."""
    pairs = zip(*(outcome(lib, case, layout) for lib in (torch, torchmlx)), strict=True)
    for theirs, ours in pairs:
        if theirs == []:
            continue  # what torch does not differentiate
        if isinstance(theirs, Exception) or isinstance(ours, Exception):
            if type(ours) is not type(theirs):
                return f"torch has {theirs!r}, we have {ours!r}"
            continue
        if reduces_nothing([t._read() for t in tensors(ours)]):
            return "MLX reduces nothing"
        try:
            same(ours, theirs)
        except Exception as error:
            return repr(error)
    return None


# ---- reductions, along each dim and over all

_ALONG = (
    "sum mean prod any all amax amin max min argmax argmin logsumexp nansum nanmean count_nonzero "
    "cumsum cumprod cummax cummin logcumsumexp sort argsort median nanmedian mode softmax "
    "log_softmax diff trapezoid cumulative_trapezoid aminmax var std var_mean std_mean"
)
_WHOLE = (
    "sum mean prod any all amax amin max min argmax argmin nansum nanmean count_nonzero median "
    "nanmedian aminmax var std norm nonzero isfinite msort histc cov corrcoef trace logdet det"
)
_LOSSES = (
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits kl_div "
    "poisson_nll_loss soft_margin_loss hinge_embedding_loss multilabel_soft_margin_loss"
)
_BINARY = (
    "add sub mul div pow maximum minimum fmax atan2 hypot logaddexp fmod remainder copysign xlogy"
)


def _named(name, lib, *tensors, **options):
    return getattr(lib, name)(*tensors, **options)


def _along(name, lib, x, d):
    return getattr(lib, name)(x, dim=d)


def _norm(p, lib, x, d):
    return lib.linalg.vector_norm(x, p, d)


def _functional(name, lib, *tensors, **options):
    return getattr(lib.nn.functional, name)(*tensors, **options)


ALONG = {
    **{n: partial(_along, n) for n in _ALONG.split()},
    **{f"norm {p}": partial(_norm, p) for p in (0, 1, 2, 3, -1, math.inf, -math.inf)},
    "sum keepdim": lambda lib, x, d: x.sum(d, keepdim=True),
    "sum of integers": lambda lib, x, d: x.long().sum(d),
    "sum in half precision": lambda lib, x, d: x.half().sum(d),
    "sum of complex": lambda lib, x, d: x.to(lib.complex64).sum(d),
    "prod of integers": lambda lib, x, d: x.long().prod(d),
    "any of bool": lambda lib, x, d: (x > 1).any(d),
    "all of uint8": lambda lib, x, d: x.to(lib.uint8).all(d),
    "topk": lambda lib, x, d: x.topk(0, d),
    "kthvalue": lambda lib, x, d: x.kthvalue(1, d),
    "quantile": lambda lib, x, d: lib.quantile(x, 0.5, d),
    "normalize": lambda lib, x, d: lib.nn.functional.normalize(x, dim=d),
    "renorm": lambda lib, x, d: lib.renorm(x, 2, d, 1.0),
    "cosine_similarity": lambda lib, x, d: lib.cosine_similarity(x, x * 2, dim=d),
    "softmax times": lambda lib, x, d: (x.softmax(d) * x).sum(d),
    "logcumsumexp in double": lambda lib, x, d: x.double().logcumsumexp(d),
}  # fmt: skip

WHOLE = {
    **{n: partial(_named, n) for n in _WHOLE.split()},
    "sum of two": lambda lib, x: x.sum((0, -1) if x.ndim > 1 else 0),
    "bincount": lambda lib, x: x.reshape(-1).long().bincount(),
    "allclose": lambda lib, x: lib.allclose(x, x),
    "equal": lambda lib, x: lib.equal(x, x),
    "matrix norms": lambda lib, x: [lib.linalg.matrix_norm(x, p) for p in ("fro", 1)],
    "dist": lambda lib, x: lib.dist(x, x + 1),
    "cdist": lambda lib, x: lib.cdist(x, x + 1),
    "einsum": lambda lib, x: lib.einsum("...i,...i->...", x, x),
    "tensordot": lambda lib, x: lib.tensordot(x, x, dims=([0], [0])),
    "gram": lambda lib, x: x @ x.transpose(0, -1) if x.ndim == 2 else x * 1,
    "moved sum": lambda lib, x: x.movedim(0, -1).sum(-1),
    "twice": lambda lib, x: (x.sum(0) * x).sum(),
}


def _loss(name, how, lib, x):
    return _functional(name, lib, x, x.detach() * 0 + 1, reduction=how)


def reductions() -> Iterator[Case]:
    for shape in SHAPES:
        for name, function in WHOLE.items():
            yield Case(name, function, shape)
        for d in range(len(shape)):
            for name, function in ALONG.items():
                yield Case(f"{name} along {d}", lambda lib, x, f=function, d=d: f(lib, x, d), shape)
        for name in _LOSSES.split():
            for how in ("none", "mean"):
                yield Case(f"{name} {how}", partial(_loss, name, how), shape)


# ---- gradients of what broadcasts

BINARY = {
    **{n: partial(_named, n) for n in _BINARY.split()},
    "where": lambda lib, x, y: lib.where(x > 1, x, y),
    "lerp": lambda lib, x, y: lib.lerp(x, y, y),
    "addcmul": lambda lib, x, y: lib.addcmul(x, y, y),
    "addcdiv": lambda lib, x, y: lib.addcdiv(y, x, y),
    "expand_as": lambda lib, x, y: y.expand_as(x),
    "in place": lambda lib, x, y: (x * 1).mul_(y),
    "prelu": lambda lib, x, y: lib.nn.functional.prelu(x, y.reshape(-1)[:1]),
    "gaussian": lambda lib, x, y: lib.nn.functional.gaussian_nll_loss(
        x, x.detach() * 0, y.abs().expand(x.shape)
    ),
}


def broadcasts() -> Iterator[Case]:
    for shape in SHAPES:
        partners = {(), (1,) * len(shape), shape[-1:], (*shape[:-1], 1)}
        for other in sorted(partners, key=str):
            for name, function in BINARY.items():
                yield Case(f"{name} with {other}", function, shape, (numbers(other),))


# ---- products, layers and losses of their own shapes


def products() -> Iterator[Case]:
    one, square, bias = numbers((3,)), numbers((4, 3)), numbers((4,))
    for shape in ((0, 3), (2, 0, 3), (0, 2, 3)):
        yield Case("linear", partial(_functional, "linear"), shape, (square, bias))
        yield Case("matmul", lambda lib, x, w: x @ w.T, shape, (square,))
        yield Case("mv", lambda lib, x, w: x @ w, shape, (one,))
        yield Case("bilinear", lambda lib, x, w, b: lib.nn.functional.bilinear(x, x, w, b), shape,
                   (numbers((4, 3, 3)), bias))  # fmt: skip
        yield Case(
            "attention",
            lambda lib, x: lib.nn.functional.scaled_dot_product_attention(x, x, x),
            shape,
        )
    for shape in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        yield Case("bmm", lambda lib, x, y: x.bmm(y.expand(x.shape[0], x.shape[2], 2)), shape,
                   (numbers((1, 1, 2)),))  # fmt: skip
        yield Case("addbmm", lambda lib, x, y: lib.addbmm(y, x, x.mT), shape, (numbers(()),))
        yield Case("baddbmm", lambda lib, x, y: lib.baddbmm(y, x, x.mT), shape, (numbers((1,)),))
    for shape in ((0,), (0, 3), (3, 0)):
        yield Case("rows", lambda lib, x, w: lib.nn.functional.embedding(x.long(), w), shape,
                   (square,))  # fmt: skip
        yield Case("index_select", lambda lib, x, w: w.index_select(0, x.long().reshape(-1)), shape,
                   (square,))  # fmt: skip
        yield Case("outer", lambda lib, x, y: x.reshape(-1).outer(y), shape, (one,))
        yield Case("stack", lambda lib, x, y: lib.stack([x + y, x * y]).sum((0, 1)), shape,
                   (numbers(()),))  # fmt: skip
        if len(shape) == 2:
            yield Case("addmm", lambda lib, x, y: lib.addmm(y, x, x.T), shape, (numbers(()),))


def layers() -> Iterator[Case]:
    one = numbers((3,))
    for shape in ((0, 3), (2, 0, 3), (0, 2, 3)):
        yield Case("layer_norm", lambda lib, x, w, b: lib.nn.functional.layer_norm(x, (3,), w, b),
                   shape, (one, one))  # fmt: skip
        yield Case("rms_norm", lambda lib, x, w: lib.nn.functional.rms_norm(x, (3,), w), shape,
                   (one,))  # fmt: skip
    for shape in ((0, 3), (0, 3, 4), (0, 3, 2, 2)):
        yield Case("batch_norm", lambda lib, x, w, b: lib.nn.functional.batch_norm(
            x, w.detach(), b.detach(), w, b), shape, (one, one))  # fmt: skip
        yield Case("group_norm", lambda lib, x, w, b: lib.nn.functional.group_norm(x, 1, w, b),
                   shape, (one, one))  # fmt: skip
    for shape in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        for name in ("adaptive_avg_pool1d", "adaptive_max_pool1d", "avg_pool1d", "max_pool1d"):
            yield Case(name, partial(_pool, name, {}), shape)
        yield Case("conv1d", partial(_functional, "conv1d"), shape,
                   (numbers((2, 3, 2)), numbers((2,))))  # fmt: skip
    for shape in ((0, 3, 4, 4), (2, 0, 4, 4)):
        for name in ("adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool2d", "max_pool2d"):
            yield Case(name, partial(_pool, name, {}), shape)
        for name in ("adaptive_max_pool2d", "max_pool2d"):
            yield Case(f"{name}, indices", partial(_pool, name, {"return_indices": True}), shape)


def _pool(name, options, lib, x):
    # torch averages no channels, but has no gradient of it.
    x = x.detach() if "adaptive_avg" in name and x.shape[1] == 0 else x
    return _functional(name, lib, x, 2, **options)


def classifications() -> Iterator[Case]:
    for shape in ((0, 3), (0, 4), (3, 0)):
        target = np.zeros(shape[:1], np.int64)
        for how in ("none", "mean", "sum"):
            for name in ("cross_entropy", "nll_loss", "smooth", "soft", "multi", "labels"):
                # torch's mean of no rows is what was in memory.
                if how != "mean" or name not in ("multi", "labels"):
                    yield Case(f"{name} {how}", partial(_classes, name, how), shape, (target,))


def _classes(name, how, lib, x, target):
    f = lib.nn.functional
    if name == "smooth":
        return f.cross_entropy(x, target, reduction=how, label_smoothing=0.1)
    if name == "soft":
        return f.cross_entropy(x, x.detach(), reduction=how)
    if name == "multi":
        return f.multi_margin_loss(x, target, reduction=how)
    if name == "labels":
        return f.multilabel_margin_loss(x, x.detach().long() * 0, reduction=how)
    return getattr(f, name)(x, target, reduction=how)


def optimised(name: str, layout: str) -> str | None:
    """Whether a step of an optimiser leaves an empty parameter and moves its neighbour as torch."""
    ends = []
    for lib in (torch, torchmlx):
        empty = lib.nn.Parameter(lib.zeros(0, 3).T if layout == "transposed" else lib.zeros(3, 0))
        full = lib.nn.Parameter(lib.tensor(numbers((3, 2))))
        optimiser = getattr(lib.optim, name)([empty, full], lr=0.1)
        for _ in range(2):
            ((full**2).sum() + (empty * 2).sum()).backward()
            lib.nn.utils.clip_grad_norm_([empty, full], 10.0)
            optimiser.step(*([lambda full=full: (full**2).sum()] if name == "LBFGS" else []))
        ends.append([full.detach(), empty.detach()])
    try:
        same(ends[1], ends[0], 1e-5)
    except AssertionError as error:
        return str(error)
    return None


OPTIMISERS = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "LBFGS", "NAdam")


def tell(name: str, what: Callable[[], str | None]) -> None:
    print(name, flush=True)
    if found := what():
        print("WRONG", name, found, flush=True)


def main() -> None:
    warnings.simplefilter("ignore")
    for make in (reductions, broadcasts, products, layers, classifications):
        for case in make():
            # All four, for the time they take, only of matrices.
            matrix = len(case.shape) == 2 and any(case.shape)
            layouts = LAYOUTS if matrix else ("transposed", "expanded")
            for layout in layouts:
                tell(f"{case.name} of {case.shape}, {layout}", partial(wrong, case, layout))
    for name in OPTIMISERS:
        for layout in ("contiguous", "transposed"):
            tell(f"{name}, {layout}", partial(optimised, name, layout))


if __name__ == "__main__":
    main()
