"""Random tensors: torch.rand and its kin, and the methods that fill a tensor from a distribution.

A tensor is filled in the order of its memory, as in torch; `random.Generator` says which numbers
come.
"""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

from .. import random
from ..core import device as devices
from ..core import dtype as dtypes
from ..core import layout
from ..core.op import TABLE, composite
from ..core.outs import takes_out
from ..core.tensor import Tensor, check_leaf_write, from_array
from ._calling import host
from .convert import contiguous_format

method = ("Tensor",)
function = ("torch",)


def _fill(x: Tensor, generator, on_cpu, on_gpu) -> Tensor:
    """Write on_cpu(generator, n), NumPy in memory order, or on_gpu(key, shape) into x."""
    check_leaf_write(x)
    if x.device.type == "meta":
        return x
    source = random.generator_for(x.device, generator)
    shape = tuple(x.shape)
    if not source.on_cpu:
        with devices.stream_of(x.device):
            x._write(on_gpu(source.key(), shape).astype(x.dtype.mx))
        return x
    values = on_cpu(source, math.prod(shape))
    array = mx.array(values, dtype=mx.float64) if values.dtype == np.float64 else mx.array(values)
    strides = x._strides_or_contiguous
    slowest_first = sorted(range(len(shape)), key=lambda d: -strides[d])
    array = mx.reshape(array, [shape[d] for d in slowest_first])
    x._write(mx.transpose(array, np.argsort(slowest_first).tolist()) if shape else array)
    return x


def _must_be_float(x: Tensor, kernel: str) -> None:
    if x.dtype.category < dtypes.FLOAT:
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{x.dtype.torch_name}'")


def _fused(x: np.ndarray, factor: float, term: float) -> np.ndarray:
    """x * factor + term in float64, rounded once: the errors of both are added (Dekker 1971)."""

    def halves(v):
        high = v * 134217729.0  # 2^27 + 1
        high = high - (high - v)
        return high, v - high

    product = x * factor
    (a, b), (c, d) = halves(x), halves(np.float64(factor))
    lost = ((a * c - product) + a * d + b * c) + b * d
    total = product + term
    back = total - product
    return total + ((product - (total - back)) + (term - back) + lost)


@composite(at=method)
def uniform_(self, from_=0.0, to=1.0, *, generator=None, **kwargs):
    """Evenly distributed over [from, to). Tensor.uniform_."""
    low, high = float(kwargs.get("from", from_)), float(to)
    _must_be_float(self, "check_uniform_bounds")
    if low > high:
        raise RuntimeError(
            f"uniform_ expects to return a [from, to) range, but found from={low:g} > to={high:g}"
        )
    if self.dtype.is_complex:
        TABLE["view_as_real"].call(self).uniform_(low, high, generator=generator)
        return self

    def draw(g, n):
        # The bounds are rounded first. torch fuses the multiplication and the addition: one
        # rounding. What rounds to `to` becomes `from`.
        if self.dtype is dtypes.float64:
            u = _fused(g.uniform53(n), high - low, low)
            return np.where(u >= high, low, u)
        first, last = np.float32(low), np.float32(high)
        u = g.uniform24(n).astype(np.float64) * np.float64(last - first) + first
        u = u.astype(np.float32)
        if self.dtype is dtypes.float32:
            return np.where(u >= last, first, u)
        half = np.append(u, [low, high]).astype(np.float32)
        half = host(mx.array(half).astype(self.dtype.mx)).astype(np.float32)
        return np.where(half[:-2] >= half[-1], half[-2], half[:-2])

    return _fill(self, generator, draw, lambda k, s: mx.random.uniform(low, high, s, key=k))


@composite(at=method)
def normal_(self, mean=0.0, std=1.0, *, generator=None):
    """Normally distributed. Tensor.normal_."""
    mean, std = float(mean), float(std)
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std:g}")
    if self.dtype.is_complex:
        TABLE["view_as_real"].call(self).normal_(mean, std / math.sqrt(2), generator=generator)
        return self
    _must_be_float(self, "normal_kernel_cpu")

    def draw(g, n):
        if n >= 16 and layout.is_contiguous(self.shape, self._strides):
            z = g.normal_blocks(n, self.dtype.name)
            return z if (mean, std) == (0.0, 1.0) else z * z.dtype.type(std) + z.dtype.type(mean)
        z = g.normal_serial(n) * std + mean
        return z if self.dtype is dtypes.float64 else z.astype(np.float32)

    return _fill(self, generator, draw, lambda k, s: mx.random.normal(s, key=k) * std + mean)


def _bounds_of(kind) -> int:
    """One more than the largest number that random_() writes: whole numbers that the dtype holds
    exactly.
    """
    digits = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
    if kind.name in digits:
        return (1 << digits[kind.name]) + 1
    return 2 if kind is dtypes.bool_ else dtypes.iinfo(kind).max + 1


def _check_range(kind, low: int, high: int) -> None:
    if kind.is_complex:
        raise RuntimeError(
            "check_random_bounds handles only integral, floating-point and boolean types"
        )
    if kind.category == dtypes.FLOAT:
        return
    whole = kind is not dtypes.bool_
    least, most = (dtypes.iinfo(kind).min, dtypes.iinfo(kind).max) if whole else (0, 1)
    spelled = {"uint8": "unsigned char", "int8": "signed char"}.get(kind.name, kind.name)
    if not least <= low <= most:
        raise RuntimeError(f"from is out of bounds for {spelled}")
    if not least <= high - 1 <= most:
        raise RuntimeError(f"to - 1 is out of bounds for {spelled}")


@composite(at=method)
def random_(self, from_=None, to=None, *, generator=None, **kwargs):
    """Whole numbers in [from, to); without bounds, all that the dtype holds exactly.

    Tensor.random_.
    """
    from_ = kwargs.get("from", from_)
    if from_ is None and to is None:
        low, high = 0, _bounds_of(self.dtype)
    else:
        low, high = (0, int(from_)) if to is None else (int(from_ or 0), int(to))
        if low >= high:
            raise RuntimeError(
                f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
            )
        _check_range(self.dtype, low, high)

    def draw(g, n):
        if from_ is None and to is None:
            wide = self.dtype in (dtypes.int64, dtypes.float64)
            words = g.bits64(n) if wide else g.bits32(n)
            values = (words % words.dtype.type(high)).astype(np.int64)
        else:
            values = g.integers(n, low, high)
        return values.astype(np.float64) if self.dtype.is_floating_point else values

    return _fill(self, generator, draw, lambda k, s: mx.random.randint(low, high, s, key=k))


@composite(at=method)
def bernoulli_(self, p=0.5, *, generator=None):
    """1 with probability p (a number, or a tensor of probabilities), else 0. Tensor.bernoulli_."""
    if isinstance(p, Tensor):
        return _bernoulli_of(self, p, generator)
    p = float(p)
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p:g}")
    return _fill(
        self,
        generator,
        lambda g, n: g.uniform53(n) < p,
        lambda k, s: mx.random.bernoulli(p, s, key=k),
    )


def _bernoulli_of(x: Tensor, p: Tensor, generator) -> Tensor:
    chances = p.expand(x.shape).to(dtypes.float64 if p.device.type == "cpu" else dtypes.float32)
    if bool(((chances < 0) | (chances > 1)).any()):
        raise RuntimeError(
            "Expected p_in >= 0 && p_in <= 1 to be true, but got false.  (Could this error "
            "message be "
            "improved?  If so, please report an enhancement request to PyTorch.)"
        )
    strides = x._strides_or_contiguous
    slowest_first = sorted(range(x.ndim), key=lambda d: -strides[d])

    def draw(g, n):
        u = g.uniform53(n) if p.dtype is dtypes.float64 else g.uniform24(n)
        return u < host(chances.permute(*slowest_first).mx).reshape(-1)

    return _fill(x, generator, draw, lambda k, s: mx.random.uniform(shape=s, key=k) < chances.mx)


def _transformed(name: str, check, transform, signature: str):
    """A method that fills with transform(u, parameters), u even over [0, 1) with 53 bits."""

    def method_of(self, first, second, generator):
        _must_be_float(self, f"{name}_cpu")
        check(first, second)

        def draw(g, n):
            with np.errstate(divide="ignore"):
                values = transform(np, g.uniform53(n), first, second)
            return values if self.dtype is dtypes.float64 else values.astype(np.float32)

        def gpu(k, s):
            return transform(mx, mx.random.uniform(shape=s, key=k), first, second)

        return _fill(self, generator, draw, gpu)

    method_of.__name__ = name
    method_of.__doc__ = signature
    return method_of


def _positive(name: str, what: str, value: float) -> None:
    if not value > 0:
        raise RuntimeError(f"{name} expects {what} > 0.0, but found {what}={value:g}")


_exponential = _transformed(
    "exponential",
    lambda rate, _: _positive("exponential_", "lambda", rate),
    lambda lib, u, rate, _: -lib.log1p(-u) / rate,
    "-log(1 - u) / lambda",
)
_cauchy = _transformed(
    "cauchy",
    lambda median, sigma: _positive("cauchy_", "sigma", sigma),
    lambda lib, u, median, sigma: median + sigma * lib.tan(math.pi * (u - 0.5)),
    "median + sigma * tan(pi * (u - 1/2))",
)


@composite(at=method)
def exponential_(self, lambd=1.0, *, generator=None):
    """Exponentially distributed with rate lambd. Tensor.exponential_."""
    return _exponential(self, float(lambd), 0.0, generator)


@composite(at=method)
def cauchy_(self, median=0.0, sigma=1.0, *, generator=None):
    """Cauchy distributed. Tensor.cauchy_."""
    return _cauchy(self, float(median), float(sigma), generator)


@composite(at=method)
def geometric_(self, p, *, generator=None):
    """Trials until the first success of probability p. Tensor.geometric_."""
    p = float(p)
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p:g}")

    def draw(g, n):
        with np.errstate(divide="ignore"):
            return np.ceil(np.log(g.uniform53(n)) / np.log1p(-p))

    return _fill(
        self,
        generator,
        draw,
        lambda k, s: mx.ceil(mx.log(mx.random.uniform(shape=s, key=k)) / math.log1p(-p)),
    )


@composite(at=method)
def log_normal_(self, mean=1.0, std=2.0, *, generator=None):
    """The exponential of a normal distribution. Tensor.log_normal_."""
    _must_be_float(self, "log_normal_cpu")
    mean, std = float(mean), float(std)
    if not std > 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std:g}")

    def draw(g, n):
        values = np.exp(g.normal_serial(n) * std + mean)
        return values if self.dtype is dtypes.float64 else values.astype(np.float32)

    return _fill(
        self, generator, draw, lambda k, s: mx.exp(mx.random.normal(s, key=k) * std + mean)
    )


# ---- new tensors


def _filled(name: str, fill: str, doc: str):
    """torch.NAME(*size) and torch.NAME_like(input), filled by a method."""
    empty_like = TABLE["empty_like"].call

    @composite(name, at=function)
    def made(*size, generator=None, requires_grad=False, **kwargs):
        result = getattr(_empty(*size, **kwargs), fill)(generator=generator)
        return result.requires_grad_() if requires_grad else result

    @composite(name + "_like", at=function)
    def like(input, *, generator=None, requires_grad=False, **kwargs):
        result = getattr(empty_like(input, **kwargs), fill)(generator=generator)
        return result.requires_grad_() if requires_grad else result

    made.__doc__ = f"{doc}, of the given size. torch.{name}."
    like.__doc__ = f"{doc}, in the shape of `input`. torch.{name}_like."


# What is given as `out=` is filled itself, in the order of its memory.
_empty = takes_out("empty", TABLE["empty"].call)
_filled("rand", "uniform_", "Numbers even over [0, 1)")
_filled("randn", "normal_", "Standard normal numbers")


def _limits(args: tuple, kwargs: dict, more: int):
    """(low, high, the rest) of randint's arguments: [low=0,] high, ..."""
    args = list(args)
    low = kwargs.pop("low", None)
    high = kwargs.pop("high", None)
    if high is None and low is None and len(args) > 1 + more:
        low, high = args.pop(0), args.pop(0)
    elif high is None:
        first = args.pop(0)
        low, high = (low, first) if low is not None or len(args) == more else (first, args.pop(0))
    elif low is None and len(args) > more:
        low = args.pop(0)
    return int(low or 0), int(high), args


@composite(at=function)
def randint(*args, generator=None, dtype=None, requires_grad=False, **kwargs):
    """Whole numbers in [low, high): randint(high, size) or randint(low, high, size).

    torch.randint.
    """
    low, high, rest = _limits(args, kwargs, 0 if "size" in kwargs else 1)
    size = kwargs.pop("size", rest[0] if rest else ())
    if low >= high:
        raise RuntimeError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )
    if kwargs.get("out") is None:
        dtype = dtype or dtypes.int64
    result = _empty(size, dtype=dtype, **kwargs).random_(low, high, generator=generator)
    return result.requires_grad_() if requires_grad else result


@composite(at=function)
def randint_like(input, *args, generator=None, dtype=None, **kwargs):
    """Whole numbers in [low, high) in the shape of `input`. torch.randint_like."""
    low, high, _ = _limits(args, kwargs, 0)
    result = TABLE["empty_like"].call(input, dtype=dtype, **kwargs)
    return result.random_(low, high, generator=generator)


@composite(at=function)
def randperm(n, *, generator=None, dtype=dtypes.int64, device=None, requires_grad=False, **_):
    """A random permutation of 0 .. n - 1. torch.randperm."""
    if n < 0:
        raise RuntimeError(f"Trying to create tensor with negative dimension {n}: [{n}]")
    where = devices.resolve(device)
    source = random.generator_for(where, generator)
    if not source.on_cpu:
        with devices.stream_of(where):
            order = mx.random.permutation(n, key=source.key()).astype(dtype.mx)
        return from_array(order, where, dtype)
    # Fisher-Yates from the front: one word for each element but the last.
    order = list(range(n))
    for i, word in enumerate(source.bits32(max(n - 1, 0)).tolist()):
        j = i + word % (n - i)
        order[i], order[j] = order[j], order[i]
    return from_array(mx.array(np.array(order, np.int64)).astype(dtype.mx), where, dtype)


@composite(at=function)
def normal(mean=0.0, std=1.0, size=None, *, generator=None, dtype=None, device=None, out=None, **_):
    """Normal numbers whose mean and standard deviation are numbers or tensors. torch.normal."""
    given = [v for v in (mean, std) if isinstance(v, Tensor)]
    if not given:
        empty = _empty(size, dtype=dtype, device=device, out=out)
        return empty.normal_(mean, std, generator=generator)
    if isinstance(std, Tensor) and bool((std < 0).any()):
        raise RuntimeError("normal expects all elements of std >= 0.0")
    shape = layout.broadcast_shapes(*(v.shape for v in given))
    kind, where = (given[0].dtype, given[0].device) if out is None else (None, None)
    result = _empty(shape, dtype=kind, device=where, out=out)
    mean, std = (v.detach() if isinstance(v, Tensor) else v for v in (mean, std))
    if not isinstance(std, Tensor):
        return result.normal_(0.0, std, generator=generator).add_(mean)
    return result.normal_(generator=generator).mul_(std).add_(mean)


@composite()
def bernoulli(input, p=None, *, generator=None, out=None):
    """0 or 1, 1 with the probability that `input` (or p) gives. torch.bernoulli."""
    if p is None:
        _must_be_float(input, "bernoulli_tensor_cpu_p_")
    if out is None:
        result = TABLE["empty_like"].call(input, memory_format=contiguous_format)
    else:
        result = _empty(input.shape, out=out)
    return result.bernoulli_(input if p is None else p, generator=generator)


@composite()
def multinomial(input, num_samples, replacement=False, *, generator=None):
    """Indices drawn from rows of unnormalised probabilities, [n] or [rows, n].

    torch.multinomial.
    """
    if input.ndim not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if not input.dtype.is_floating_point:
        raise RuntimeError(
            "multinomial only supports floating-point dtypes for input, got: "
            f"{input.dtype.torch_name}"
        )
    if num_samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and num_samples > input.shape[-1]:
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
        )
    if not bool(((input >= 0) & (input < math.inf)).all()):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    if not bool((input.sum(-1) > 0).all()):
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    if replacement and num_samples > 1:
        return _with_replacement(input, num_samples, generator)
    # A race of exponential clocks: the first num_samples to ring.
    race = input / TABLE["empty_like"].call(input).exponential_(1.0, generator=generator)
    if num_samples == 1:
        return race.argmax(-1, keepdim=True)
    return race.topk(num_samples, -1)[1]


def _with_replacement(input: Tensor, num_samples: int, generator) -> Tensor:
    source = random.generator_for(input.device, generator)
    if not source.on_cpu:
        with devices.stream_of(input.device):
            logits = mx.expand_dims(mx.log(input.mx.astype(mx.float32)), -2)
            shape = (*input.shape[:-1], num_samples)
            drawn = mx.random.categorical(logits, axis=-1, shape=shape, key=source.key())
        return from_array(drawn.astype(mx.int64), input.device)
    rows = host(input.mx).reshape(-1, input.shape[-1])
    rows = rows.astype(np.float32) if rows.dtype == np.float16 else rows
    edges = np.cumsum(rows, axis=1, dtype=rows.dtype)
    edges = edges / edges[:, -1:]
    u = source.uniform53(len(rows) * num_samples).reshape(len(rows), num_samples)
    found = [np.searchsorted(e.astype(np.float64), r) for e, r in zip(edges, u, strict=True)]
    found = np.minimum(np.array(found, np.int64), input.shape[-1] - 1)
    return from_array(mx.array(found.reshape(*input.shape[:-1], num_samples)), input.device)
