"""One-line parity tests: one call on torch 2.13 CPU and on torchmlx, values compared."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

import torchmlx

torch = pytest.importorskip("torch", reason="torch 2.13 CPU is the oracle of parity tests")

# Relative and absolute, by the dtype of the result: a few units in the last place of one operation.
TOLERANCE = {
    "float64": 1e-10,
    "float32": 2e-6,
    "float16": 2e-3,
    "bfloat16": 1.6e-2,
    "complex64": 2e-6,
}
FLOATS = ("float32", "bfloat16", "float16")


def data(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Float32 numbers drawn evenly from [low, high)."""
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def both(array, dtype: str | None = None, strided: bool = False):
    """The same tensor for torch and for torchmlx; `strided` gives it a transposed memory order."""
    pair = []
    for lib in (torch, torchmlx):
        x = lib.tensor(array) if dtype is None else lib.tensor(array).to(getattr(lib, dtype))
        if strided and x.ndim > 1:
            x = x.transpose(0, -1).contiguous().transpose(0, -1)
        pair.append(x)
    return tuple(pair)


def to_numpy(x) -> np.ndarray:
    if str(x.dtype) in ("torch.bfloat16", "torch.float8_e4m3fn"):
        x = x.float()
    x = x.detach().resolve_conj()
    return np.array(x.tolist() if x.ndim == 0 else x.numpy())


def same(ours, theirs, tolerance: float | None = None, strides: bool = False) -> None:
    """Assert that a result (tensor, number or nested sequence) equals torch's."""
    if isinstance(theirs, torch.Tensor):
        assert isinstance(ours, torchmlx.Tensor), f"torch gives a tensor, we {type(ours).__name__}"
        assert str(ours.dtype) == str(theirs.dtype)
        assert tuple(ours.shape) == tuple(theirs.shape)
        if strides:
            assert ours.stride() == theirs.stride()
        bound = tolerance if tolerance is not None else TOLERANCE.get(str(theirs.dtype)[6:], 0)
        np.testing.assert_allclose(to_numpy(ours), to_numpy(theirs), rtol=bound, atol=bound)
    elif isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b, tolerance, strides)
    else:
        assert ours == theirs or (ours != ours and theirs != theirs)


def find(lib, name: str):
    """`softmax`, `nn.functional.silu` or `Tensor.add_` of a library."""
    return reduce(getattr, name.split("."), lib)


def convert(value, lib, index: int, dtype: str | None, strided: bool):
    if isinstance(value, np.ndarray):
        return both(value, dtype if value.dtype == np.float32 else None, strided)[index]
    if isinstance(value, (list, tuple)) and any(isinstance(v, np.ndarray) for v in value):
        return type(value)(convert(v, lib, index, dtype, strided) for v in value)
    if isinstance(value, torch.dtype):
        return getattr(lib, str(value)[6:])
    return value


def parity(name: str, *args, dtypes=FLOATS, tolerance: float | None = None, **kwargs) -> None:
    """Call `name` of torch and of torchmlx with the same arguments and compare.

    Arrays become tensors, float32 ones in every dtype of `dtypes`, row-major and transposed in
    memory. A `Tensor.x_` call compares the tensor it changed too. An error must be of torch's type.
    """
    for dtype in dtypes:
        for strided in (False, True):
            outcomes = []
            for i, lib in enumerate((torch, torchmlx)):
                a = [convert(v, lib, i, dtype, strided) for v in args]
                k = {n: convert(v, lib, i, dtype, strided) for n, v in kwargs.items()}
                try:
                    result = find(lib, name)(*a, **k)
                except Exception as error:
                    outcomes.append(error)
                else:
                    changed = name.startswith("Tensor.") and name.endswith("_")
                    outcomes.append((result, a[0]) if changed else result)
            theirs, ours = outcomes
            if isinstance(theirs, Exception):
                assert type(ours) is type(theirs), f"{name}: torch raises {theirs!r}, we {ours!r}"
            elif isinstance(ours, Exception):
                raise ours
            else:
                same(ours, theirs, tolerance)
