"""assert_close: nested containers, item by item, with torch's tolerances."""

from __future__ import annotations

import cmath
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

import torchmlx as torch

from ..core.tensor import Tensor

# (rtol, atol) by dtype; all others have to be equal. torch.testing's table.
TOLERANCES = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}
NUMBERS = {int: "int64", float: "float64", complex: "complex128", bool: "bool"}

Tolerance = tuple[float, float]
Item = tuple[Any, ...]


class _Mismatch(Exception):
    """An error of a type, for the item of the containers that these keys lead to."""

    def __init__(self, kind: type[Exception], text: str, item: Item) -> None:
        super().__init__(text)
        self.kind, self.item = kind, item

    def text(self, msg: str | Callable[[str], str] | None) -> str:
        if isinstance(msg, str):
            return msg
        text = str(self)
        if self.item:
            text += f"\n\nThe failure occurred for item {''.join(f'[{k!r}]' for k in self.item)}"
        return text if msg is None else msg(text)


def assert_close(
    actual: Any, expected: Any, *, allow_subclasses: bool = True, rtol: float | None = None,
    atol: float | None = None, equal_nan: bool = False, check_device: bool = True,
    check_dtype: bool = True, check_layout: bool = True, check_stride: bool = False,
    msg: str | Callable[[str], str] | None = None,
) -> None:  # fmt: skip
    """|actual - expected| <= atol + rtol * |expected| everywhere. torch.testing.assert_close.

    Takes tensors, NumPy's arrays, numbers, None, and sequences and mappings of them. Raises
    AssertionError where they differ, in value or in what is checked besides, TypeError for what
    cannot be compared and ValueError for one tolerance without the other.
    """
    checks = {"device": check_device, "dtype": check_dtype, "stride": check_stride}
    given = _given(rtol, atol)
    failure = None
    try:
        for a, b, item in list(_pairs(actual, expected, allow_subclasses, ())):
            _compare(a, b, item, given, equal_nan, checks)
    except _Mismatch as mismatch:
        failure = mismatch
    if failure is not None:
        raise failure.kind(failure.text(msg))


def _given(rtol: float | None, atol: float | None) -> Tolerance | None:
    if rtol is None and atol is None:
        return None
    if rtol is None or atol is None:
        missing = "rtol" if rtol is None else "atol"
        raise ValueError(
            f"Both 'rtol' and 'atol' must be either specified or omitted, but got no {missing}."
        )
    return rtol, atol


def _pairs(a: Any, b: Any, subclasses: bool, item: Item) -> Iterator[tuple[Any, Any, Item]]:
    """What has to be compared, with the keys that lead there."""
    if all(isinstance(x, Sequence) and not isinstance(x, str) for x in (a, b)):
        if len(a) != len(b):
            text = f"The length of the sequences mismatch: {len(a)} != {len(b)}"
            raise _Mismatch(AssertionError, text, item)
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from _pairs(one, other, subclasses, (*item, i))
    elif isinstance(a, Mapping) and isinstance(b, Mapping):
        missing, more = sorted(set(b) - set(a), key=str), sorted(set(a) - set(b), key=str)
        if missing or more:
            text = "The keys of the mappings do not match:\n"
            text += f"Missing keys in the actual mapping: {missing}\n"
            text += f"Additional keys in the actual mapping: {more}"
            raise _Mismatch(AssertionError, text, item)
        for key in b:
            yield from _pairs(a[key], b[key], subclasses, (*item, key))
    elif a is None or b is None or _comparable(a, b, subclasses):
        yield a, b, item
    else:
        text = f"No comparison pair was able to handle inputs of type {type(a)} and {type(b)}."
        raise _Mismatch(TypeError, text, item)


def _comparable(a: Any, b: Any, subclasses: bool) -> bool:
    if all(isinstance(x, (int, float, complex, np.number, np.bool_)) for x in (a, b)):
        return True
    related = isinstance(a, type(b)) or isinstance(b, type(a))
    if not related or not (subclasses or type(a) is type(b)):
        return False
    return isinstance(a, (Tensor, np.ndarray))


def _compare(a, b, item: Item, given: Tolerance | None, equal_nan: bool, checks: dict) -> None:
    def fail(text: str) -> NoReturn:
        raise _Mismatch(AssertionError, text, item)

    if a is None or b is None:
        if a is not b:
            fail(f"None mismatch: {a} is not {b}")
    elif isinstance(a, (Tensor, np.ndarray)):
        _compare_tensors(_tensor(a), _tensor(b), given, equal_nan, checks, fail)
    elif isinstance(a, (bool, np.bool_)) and isinstance(b, (bool, np.bool_)):
        if bool(a) is not bool(b):
            fail(f"Booleans mismatch: {bool(a)} is not {bool(b)}")
    else:
        a, b = (x.item() if isinstance(x, np.generic) else x for x in (a, b))
        if checks["dtype"] and type(a) is not type(b):
            fail(f"The (d)types do not match: {type(a)} != {type(b)}.")
        limits = given or _largest(NUMBERS[type(a)], NUMBERS[type(b)])
        _compare_numbers(a, b, limits, equal_nan, fail)


def _tensor(x: Any) -> Tensor:
    return x.detach() if isinstance(x, Tensor) else torch.as_tensor(x)


def _largest(*names: str) -> Tolerance:
    rtols, atols = zip(*(TOLERANCES.get(name, (0.0, 0.0)) for name in names), strict=True)
    return max(rtols), max(atols)


def _compare_numbers(a, b, limits: Tolerance, equal_nan: bool, fail) -> None:
    rtol, atol = limits
    both_nan = cmath.isnan(a) and cmath.isnan(b)
    if a == b or (equal_nan and both_nan):
        return
    difference = abs(a - b)
    if not cmath.isinf(b) and difference <= atol + rtol * abs(b):
        return
    relative = float("inf") if b == 0 else difference / abs(b)
    fail(
        f"Scalars are not {_closeness(limits)}!\n\nExpected {b} but got {a}.\n"
        f"Absolute difference: {difference}{_allowed(atol, limits)}\n"
        f"Relative difference: {relative}{_allowed(rtol, limits)}"
    )


def _closeness(limits: Tolerance) -> str:
    return "close" if any(limits) else "equal"


def _allowed(limit: float, limits: Tolerance) -> str:
    return f" (up to {limit} allowed)" if any(limits) else ""


def _compare_tensors(a: Tensor, b: Tensor, given, equal_nan: bool, checks: dict, fail) -> None:
    def attribute(name: str, one: Any, other: Any) -> None:
        if one != other:
            fail(f"The values for attribute '{name}' do not match: {one} != {other}.")

    attribute("shape", a.shape, b.shape)
    if checks["stride"]:
        attribute("stride()", a.stride(), b.stride())
    if checks["device"]:
        attribute("device", a.device, b.device)
    if checks["dtype"]:
        attribute("dtype", a.dtype, b.dtype)
    limits = given or _largest(a.dtype.name, b.dtype.name)
    if a.dtype != b.dtype:
        common = torch.promote_types(a.dtype, b.dtype)
        a, b = a.to(common), b.to(common)
    if a.dim() == 0:
        _compare_numbers(a.item(), b.item(), limits, equal_nan, fail)
        return
    if a.dtype.itemsize == 1 and a.dtype.is_floating_point:
        a, b = a.float(), b.float()
    matches = a.isclose(b, rtol=limits[0], atol=limits[1], equal_nan=equal_nan)
    if not bool(matches.all()):
        fail(_tensors_differ(a, b, matches, limits))


def _tensors_differ(a: Tensor, b: Tensor, matches: Tensor, limits: Tolerance) -> str:
    wrong, count = int(matches.logical_not().sum()), matches.numel()
    if not (a.is_floating_point() or a.is_complex()):
        a, b = a.to(torch.int64), b.to(torch.int64)
    absolute = (a - b).abs().masked_fill(matches, 0)
    relative = ((a - b).abs() / b.abs()).masked_fill(matches, 0)

    def greatest(kind: str, differences: Tensor, limit: float) -> str:
        at = int(differences.flatten().argmax())
        index = tuple(int(i) for i in np.unravel_index(at, tuple(a.shape)))
        value = differences.flatten()[at].item()
        return f"Greatest {kind} difference: {value} at index {index}{_allowed(limit, limits)}"

    return (
        f"Tensor-likes are not {_closeness(limits)}!\n\n"
        f"Mismatched elements: {wrong} / {count} ({wrong / count:.1%})\n"
        f"{greatest('absolute', absolute, limits[1])}\n"
        f"{greatest('relative', relative, limits[0])}"
    )
