"""Every kernel, every case, every dtype: values against the float64 reference, and gradients."""

import mlx.core as mx
import numpy as np
import pytest

from torchmlx.kernels import registry
from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.dispatch import use

KERNELS = [registry.get(name) for name in registry.names()]
RUNS = [
    pytest.param(kernel, case, dtype, id=f"{kernel.name}-{case.label}-{dtype}")
    for kernel in KERNELS
    for case in kernel.cases
    for dtype in kernel.nmse
]


def finite(case):
    return all(spec.fill == "normal" for spec in case.arrays.values())


@pytest.mark.parametrize("kernel, case, dtype", RUNS)
def test_matches_the_reference(kernel, case, dtype):
    arrays = case.make(dtype)
    want = kernel.reference(*map(to_numpy, arrays), **case.keywords)
    got = kernel.function(*arrays, **case.keywords)
    assert got.dtype == arrays[0].dtype
    assert judge(got, want, kernel.nmse[dtype]).fault == ""


@pytest.mark.parametrize(
    "kernel, case, dtype", [run for run in RUNS if finite(run.values[1]) and run.values[0].vjp]
)
def test_gradients_match_autodiff_of_the_fallback(kernel, case, dtype):
    """In the dtype under test against float64 autodiff; half types differentiate a rounded y."""
    arrays = case.make(dtype)
    shape = kernel.function(*arrays, **case.keywords).shape
    cotangent = mx.array(np.random.default_rng(1).standard_normal(shape)).astype(arrays[0].dtype)
    got = mx.vjp(lambda *a: kernel.function(*a, **case.keywords), arrays, [cotangent])[1]
    bound = {"float32": 1e-11, "float16": 1e-5, "bfloat16": 3e-4}[dtype]
    for gradient, expected, array in zip(
        got, float64_gradients(kernel, case, arrays, cotangent), arrays, strict=True
    ):
        assert gradient.dtype == array.dtype
        if case.label == "x=3x1,axis=1":
            assert np.abs(to_numpy(gradient)).max() < 1e-2  # a constant: the gradient is rounding
        else:
            assert judge(gradient, expected, bound).fault == ""


def float64_gradients(kernel, case, arrays, cotangent):
    with mx.stream(mx.cpu):
        wide = [array.astype(mx.float64) for array in (*arrays, cotangent)]
        function = lambda *a: kernel.fallback(*a, **case.keywords)  # noqa: E731
        return [to_numpy(g) for g in mx.vjp(function, wide[:-1], wide[-1:])[1]]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_gradients_match_differences_of_the_reference(kernel):
    """A directional derivative of the float64 reference, by central differences."""
    case = next(c for c in kernel.cases if sum(np.prod(s.shape) for s in c.arrays.values()) > 20)
    arrays = case.make("float32")
    inputs = [to_numpy(array) for array in arrays]
    rng = np.random.default_rng(2)
    steps = [rng.standard_normal(array.shape) for array in inputs]
    forward = kernel.reference(*inputs, **case.keywords)
    cotangent = rng.standard_normal(forward.shape).astype(np.float32)

    def loss(h):
        moved = (array + h * step for array, step in zip(inputs, steps, strict=True))
        return float((kernel.reference(*moved, **case.keywords) * cotangent).sum())

    function = lambda *a: kernel.function(*a, **case.keywords)  # noqa: E731
    gradients = mx.vjp(function, arrays, [mx.array(cotangent)])[1]
    got = sum((to_numpy(g) * step).sum() for g, step in zip(gradients, steps, strict=True))
    assert got == pytest.approx((loss(1e-4) - loss(-1e-4)) / 2e-4, rel=1e-4)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_transformations_agree_with_the_fallback(kernel):
    case = next(case for case in kernel.cases if case.arrays["x"].shape == (1, 3))
    arrays = case.make("float32")
    keywords = {name: 0 if name == "axis" else v for name, v in case.keywords.items()}
    function = lambda *a: kernel.function(*a, **keywords)  # noqa: E731
    fallback = lambda *a: kernel.fallback(*a, **keywords)  # noqa: E731
    x, rest = mx.array([[[1.0, 2.0, -1.0]], [[0.5, 0.25, 3.0]]]), arrays[1:]

    def compare(transform):
        np.testing.assert_allclose(transform(function), transform(fallback), rtol=1e-6)

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
        assert cost.bytes >= sum(array.nbytes for array in arrays)
        assert cost.flops > 0


def test_an_override_to_the_fallback_changes_no_value():
    softmax = registry.get("softmax").function
    x = mx.array([[0.1, 2.0, -3.0]])
    with use("fallback"):
        forced = softmax(x)
    assert mx.array_equal(forced, softmax(x)).item()
