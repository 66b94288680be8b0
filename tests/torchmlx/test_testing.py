"""torch.testing against torch's: the same verdicts in the same words."""

import numpy as np
import pytest
import torch

import torchmlx

NAN, INF = float("nan"), float("inf")


def cases(lib):
    """(actual, expected, options) by name."""
    t = lib.tensor
    half = lambda *values: t(list(values), dtype=lib.bfloat16)  # noqa: E731
    double = lambda *values: t(list(values), dtype=lib.float64)  # noqa: E731
    one, two = t([1.0, 2.0]), t([1.0, 3.0])
    return {
        "differ": (one, two, {}),
        "unequal": (one, two, {"rtol": 0, "atol": 0}),
        "own limits": (one, two, {"rtol": 0.0, "atol": 1.0}),
        "integers": (t([[1, 2], [3, 4]]), t([[1, 2], [3, 9]]), {}),
        "bytes": (t([1, 2], dtype=lib.uint8), t([1, 255], dtype=lib.uint8), {}),
        "large integers": (t([2**62]), t([2**62 + 1]), {}),
        "booleans": (t([True, False]), t([True, True]), {}),
        "nan": (t([NAN, 1.0]), t([NAN, 1.0]), {}),
        "equal nan": (t([NAN, 1.0]), t([NAN, 1.0]), {"equal_nan": True}),
        "infinite": (t([INF, INF]), t([INF, 1.0]), {}),
        "zero expected": (t([5.0, 0.0]), t([0.0, 1e-9]), {}),
        "shape": (one, t([1.0]), {}),
        "dtype": (t([1.0]), t([1]), {}),
        "dtype unchecked": (t([1, 2]), t([1.5, 2.0]), {"check_dtype": False}),
        "wider unchecked": (double(1.0), t([1.0000001]), {"check_dtype": False}),
        "stride": (lib.zeros(2, 3).T, lib.zeros(3, 2), {"check_stride": True}),
        "bfloat16 close": (half(1.0), half(1.01), {}),
        "bfloat16": (half(1.0, 3.0), half(1.1, 3.0), {}),
        "double close": (double(1.0), double(1.0 + 1e-8), {}),
        "double": (double(1.0), double(1.0 + 1e-6), {}),
        "complex": (t([1 + 1j]), t([1 + 2j]), {}),
        "scalars": (t(1.0), t(2.0), {}),
        "empty": (t([]), t([]), {}),
        "arrays": (np.ones(2), np.zeros(2), {}),
        "floats": (1.0, 2.0, {}),
        "ints": (1, 2, {}),
        "large ints": (2**62, 2**62 + 1, {}),
        "int and float": (1, 1.0, {}),
        "int or float": (1, 1.0, {"check_dtype": False}),
        "complex numbers": (1 + 1j, 1 + 2j, {}),
        "nan numbers": (NAN, NAN, {}),
        "inf numbers": (INF, INF, {}),
        "bools": (True, False, {}),
        "none": (None, None, {}),
        "none and one": (None, 1, {}),
        "lengths": ([1, 2], [1], {}),
        "tuple and list": ((1, 2), [1, 2], {}),
        "item": ([1, 2], [1, 3], {}),
        "keys": ({"a": 1, "c": 2}, {"b": 1, "c": 2}, {}),
        "value": ({"a": one}, {"a": two}, {}),
        "nested": ([{"a": [t(1.0), t(2.0)]}], [{"a": [t(1.0), t(3.0)]}], {}),
        "nested keys": ([{"a": 1}], [{}], {}),
        "text": ("a", "b", {}),
        "sets": ({1}, {1}, {}),
        "tensor and number": (t(1.0), 1.0, {}),
        "parameter": (lib.nn.Parameter(t([1.0])), t([1.0]), {}),
        "no subclass": (lib.nn.Parameter(t([1.0])), t([1.0]), {"allow_subclasses": False}),
        "own words": (one, two, {"msg": "mine"}),
        "words around": (one, two, {"msg": lambda text: f"<{text}>"}),
        "one limit": (one, two, {"rtol": 1e-3}),
    }


def verdict(lib, name):
    actual, expected, options = cases(lib)[name]
    try:
        lib.testing.assert_close(actual, expected, **options)
    except Exception as error:
        return type(error), str(error).replace("torchmlx.core.tensor.", "torch.").replace(
            "torchmlx.", "torch."
        )
    return None


@pytest.mark.parametrize("name", cases(torchmlx))
def test_verdicts_and_words_are_torchs(name):
    assert verdict(torchmlx, name) == verdict(torch, name)


DTYPES = ["bool", "uint8", "int8", "int64", "float16", "bfloat16", "float32", "complex64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_lie_within_torchs_limits(dtype):
    dtype = getattr(torchmlx, dtype)
    x = torchmlx.testing.make_tensor(40, 50, dtype=dtype, device="cpu")
    assert (x.shape, x.dtype) == ((40, 50), dtype)
    parts = torchmlx.view_as_real(x) if dtype.is_complex else x
    values = parts.double().numpy()
    low = 0 if dtype in (torchmlx.bool, torchmlx.uint8) else -9
    high = {torchmlx.bool: 1}.get(dtype, 9)
    assert values.min() >= low and values.max() <= high
    assert values.max() - values.min() > 0.95 * (high - low)  # 2,000 draws reach both ends


def test_settings_of_make_tensor():
    make = torchmlx.testing.make_tensor
    x = make((4, 6), dtype=torchmlx.float32, device="cpu", noncontiguous=True, requires_grad=True)
    assert x.shape == (4, 6) and not x.is_contiguous() and x.requires_grad
    narrow = make(2000, dtype=torchmlx.int64, device="cpu", low=-0.5, high=1.5, exclude_zero=True)
    assert narrow.unique().tolist() == [1]
    wide = make(2000, dtype=torchmlx.float32, device="cpu", low=-INF, high=INF)
    assert bool(wide.isfinite().all()) and wide.abs().max().item() > 3e38
    assert make(3, dtype=torchmlx.float8_e4m3fn, device="cpu").dtype == torchmlx.float8_e4m3fn


@pytest.mark.parametrize(
    "options",
    [
        {"low": 2, "high": 1},
        {"low": NAN},
        {"dtype": "uint8", "low": -5, "high": -1},
        {"dtype": "int64", "requires_grad": True},
        {"noncontiguous": True, "memory_format": "contiguous_format"},
    ],
)
def test_bad_settings_in_torchs_words(options):
    said = []
    for lib in (torchmlx, torch):
        named = {key: getattr(lib, v) if isinstance(v, str) else v for key, v in options.items()}
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are compared
            lib.testing.make_tensor(3, device="cpu", **({"dtype": lib.float32} | named))
        said.append(str(caught.value).replace("torchmlx.", "torch."))
    assert said[0] == said[1]
