"""Every kernel, every case, every dtype: values against the float64 reference, and gradients."""

import mlx.core as mx
import numpy as np
import pytest

from torchmlx.kernels import registry
from torchmlx.kernels.accuracy import bound, judge, to_numpy
from torchmlx.kernels.dispatch import use

KERNELS = [registry.get(name) for name in registry.names()]
RUNS = [
    pytest.param(kernel, case, dtype, id=f"{kernel.name}-{case.label}-{dtype}")
    for kernel in KERNELS
    for case in kernel.cases
    for dtype in kernel.nmse
]


def finite(case):
    return all(spec is None or spec.fill != "specials" for spec in case.arrays.values())


def differentiable(case):
    """Values go in and come out: no casts to or from codes of a float8 type."""
    first, *_ = case.arrays.values()
    return first.dtype is None and case.keywords.get("dtype", mx.float32) != mx.uint8


def as_tuple(results):
    return tuple(results) if isinstance(results, tuple | list) else (results,)


def floating(arrays):
    """Positions of the arrays that have gradients."""
    there = ((i, array) for i, array in enumerate(arrays) if array is not None)
    return [i for i, array in there if mx.issubdtype(array.dtype, mx.floating)]


SMOOTH = [kernel for kernel in KERNELS if any(map(differentiable, kernel.cases))]


def replaced(arrays, positions, values):
    """`arrays` with `values` at `positions`."""
    chosen = dict(zip(positions, values, strict=True))
    return [chosen.get(i, array) for i, array in enumerate(arrays)]


def smooth(function, arrays, keywords):
    """The floating results of `function` as a function of the floating arrays alone."""
    positions = floating(arrays)

    def call(*values):
        results = as_tuple(function(*replaced(arrays, positions, values), **keywords))
        return tuple(r for r in results if mx.issubdtype(r.dtype, mx.floating))

    return call, [arrays[i] for i in positions]


def cotangents_of(results):
    rng = np.random.default_rng(1)
    return [mx.array(rng.standard_normal(r.shape, np.float32)).astype(r.dtype) for r in results]


@pytest.mark.parametrize("kernel, case, dtype", RUNS)
def test_matches_the_reference(kernel, case, dtype):
    arrays = case.make(dtype)
    want = kernel.reference(*map(to_numpy, arrays), **case.keywords)
    results = as_tuple(kernel.function(*arrays, **case.keywords))
    assert results[0].dtype == case.keywords.get("dtype", arrays[0].dtype)
    for got, expected in zip(results, as_tuple(want), strict=True):
        assert judge(got, expected, bound(kernel.nmse, got.dtype)).fault == ""


# The gradients of an expert's scale and of decays are sums of thousands of terms that cancel:
# float32 autodiff of the fallback is 6e-11 and 3e-11 off as well. One normalised value is constant
# but for its epsilon, which leaves the truth a gradient of about 1e-6.
CANCELLING = ("fp8_grouped", "gated_delta")


@pytest.mark.parametrize(
    "kernel, case, dtype", [run for run in RUNS if finite(run.values[1]) and run.values[0].vjp]
)
def test_gradients_match_autodiff_of_the_fallback(kernel, case, dtype):
    """In the dtype under test against float64 autodiff; half types differentiate a rounded y."""
    arrays = case.make(dtype)
    function, primals = smooth(kernel.function, arrays, case.keywords)
    cotangents = cotangents_of(function(*primals))
    got = mx.vjp(function, primals, cotangents)[1]
    limit = {"float32": 1e-11, "float16": 1e-5, "bfloat16": 3e-4}[dtype]
    constant = 1e-9
    if kernel.name in CANCELLING:
        limit, constant = max(limit, 1e-9), 1e-5
    for gradient, expected, array in zip(
        got, float64_gradients(kernel, case, arrays, cotangents), primals, strict=True
    ):
        assert gradient.dtype == array.dtype
        if np.abs(expected).max(initial=0.0) < constant:
            # A constant: its gradient is rounding.
            assert np.abs(to_numpy(gradient)).max(initial=0.0) < 1e-2
        else:
            assert judge(gradient, expected, limit).fault == ""


def float64_gradients(kernel, case, arrays, cotangents):
    with mx.stream(mx.cpu):
        function, primals = smooth(kernel.fallback, arrays, case.keywords)
        wide = [array.astype(mx.float64) for array in primals]
        ends = [array.astype(mx.float64) for array in cotangents]
        return [to_numpy(g) for g in mx.vjp(function, wide, ends)[1]]


def size(case):
    return sum(int(np.prod(spec.shape)) for spec in case.arrays.values() if spec is not None)


@pytest.mark.parametrize("kernel", SMOOTH, ids=lambda kernel: kernel.name)
def test_gradients_match_differences_of_the_reference(kernel):
    """A directional derivative of the float64 reference, by central differences."""
    case = next(c for c in kernel.cases if finite(c) and differentiable(c) and size(c) > 20)
    arrays = case.make("float32")
    inputs = [to_numpy(array) for array in arrays]
    rng = np.random.default_rng(2)
    steps = {i: rng.standard_normal(arrays[i].shape) for i in floating(arrays)}
    function, primals = smooth(kernel.function, arrays, case.keywords)
    cotangents = cotangents_of(function(*primals))

    def loss(h):
        moved = replaced(inputs, steps, (inputs[i] + h * step for i, step in steps.items()))
        results = as_tuple(kernel.reference(*moved, **case.keywords))
        smooth_results = (r for r in results if r.dtype.kind == "f")
        pairs = zip(smooth_results, cotangents, strict=True)
        return sum(float((result * to_numpy(weight)).sum()) for result, weight in pairs)

    gradients = mx.vjp(function, primals, cotangents)[1]
    pairs = zip(gradients, steps.values(), strict=True)
    got = sum((to_numpy(gradient) * step).sum() for gradient, step in pairs)
    assert got == pytest.approx((loss(1e-4) - loss(-1e-4)) / 2e-4, rel=1e-4)


@pytest.mark.parametrize("kernel", SMOOTH, ids=lambda kernel: kernel.name)
def test_transformations_agree_with_the_fallback(kernel):
    cases = (c for c in kernel.cases if finite(c) and differentiable(c) and size(c) > 2)
    case = min(cases, key=size)
    first, *rest = case.make("float32")
    function = lambda *a: as_tuple(kernel.function(*a, **case.keywords))[0]  # noqa: E731
    fallback = lambda *a: as_tuple(kernel.fallback(*a, **case.keywords))[0]  # noqa: E731
    x = mx.stack([first, 0.5 * first[..., ::-1] + 0.25])

    def compare(transform):
        got, want = transform(function), transform(fallback)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)

    compare(lambda f: mx.vmap(lambda a: f(a, *rest))(x))
    compare(lambda f: mx.jvp(lambda a: f(a, *rest), [x[0]], [x[1]])[1][0])
    compare(lambda f: mx.grad(lambda a: f(a, *rest).square().sum())(x[0]))
    compare(lambda f: mx.vmap(mx.grad(lambda a: f(a, *rest).square().sum()))(x))
    compare(lambda f: mx.compile(lambda a: f(a, *rest))(x[0]))


def test_second_derivative():
    """d2/dx2 of softmax(x)[0] at two values: p q (q - p)."""
    softmax = registry.get("softmax").function
    inner = mx.grad(lambda x: softmax(x)[0])
    got = mx.grad(lambda x: inner(x)[0])(mx.array([0.3, -0.2]))
    p = 1 / (1 + np.exp(-0.5))
    assert got[0].item() == pytest.approx(p * (1 - p) * (1 - 2 * p), rel=1e-5)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_cost_is_positive_and_counts_the_inputs(kernel):
    for case in kernel.cases:
        arrays = case.outline("float16")
        cost = kernel.cost(*arrays, **case.keywords)
        if min(array.size for array in arrays if array is not None):
            assert cost.bytes > 0
            assert cost.flops > 0


def test_an_override_to_the_fallback_changes_no_value():
    softmax = registry.get("softmax").function
    x = mx.array([[0.1, 2.0, -3.0]])
    with use("fallback"):
        forced = softmax(x)
    assert mx.array_equal(forced, softmax(x)).item()
