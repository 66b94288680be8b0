"""Tensors as text, as torch prints them: torch.set_printoptions, repr, str and format."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from . import dtype as dtypes
from .tensor import Tensor


@dataclass
class _Options:
    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_options = _Options()
_PROFILES = {
    "default": _Options(),
    "short": _Options(precision=2, edgeitems=2),
    "full": _Options(threshold=math.inf),
}


def set_printoptions(
    precision=None, threshold=None, edgeitems=None, linewidth=None, profile=None, sci_mode=None
):
    """How tensors print: digits, elements before summarising, edge items, width.

    torch.set_printoptions.
    """
    global _options
    if profile is not None:
        _options = replace(_PROFILES[profile])
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems}
    given |= {"linewidth": linewidth}
    _options = replace(_options, **{k: v for k, v in given.items() if v is not None})
    _options.sci_mode = sci_mode


def get_printoptions() -> dict:
    """The options in force, as a dict.

    torch.get_printoptions is private in torch; this mirrors it.
    """
    return dict(vars(_options))


class _Formatter:
    """One width and notation for all elements of a tensor."""

    def __init__(self, values: np.ndarray, integral: bool):
        self.integral = integral
        self.int_mode, self.sci_mode, self.width = True, False, 1
        if integral:
            self.width = max((len(str(v)) for v in values.reshape(-1).tolist()), default=1)
            return
        finite = values[np.isfinite(values) & (values != 0)]
        if finite.size:
            self._choose(finite)

    def _choose(self, finite: np.ndarray) -> None:
        low, high = np.abs(finite).min(), np.abs(finite).max()
        self.int_mode = bool((finite == np.ceil(finite)).all())
        self.sci_mode = _options.sci_mode
        if self.sci_mode is None:  # torch's rule: beyond 1e8, below 1e-4, or a range above 1000
            self.sci_mode = bool(high / low > 1000.0 or high > 1.0e8 or low < 1.0e-4)
        self.width = max(len(self._text(v)) for v in finite.tolist())

    def _text(self, value: float) -> str:
        if self.sci_mode:
            return f"{value:.{_options.precision}e}"
        if not self.int_mode:
            return f"{value:.{_options.precision}f}"
        return f"{value:.0f}" + ("." if math.isfinite(value) else "")

    def format(self, value) -> str:
        text = str(value) if self.integral else self._text(value)
        return text.rjust(self.width)


class _ComplexFormatter:
    """Real and imaginary parts, each with its own formatter."""

    def __init__(self, values: np.ndarray):
        self.real = _Formatter(np.real(values).astype(np.float64), False)
        self.imag = _Formatter(np.imag(values).astype(np.float64), False)
        self.width = self.real.width + self.imag.width + 1

    def format(self, value) -> str:
        imag = self.imag.format(value.imag).lstrip()
        sign = "" if imag[0] in "+-" else "+"
        return f"{self.real.format(value.real)}{sign}{imag}j"


def _vector(row: np.ndarray, indent: int, formatter, summarize: bool) -> str:
    unit = formatter.width + 2
    per_line = max(1, (_options.linewidth - indent) // unit)
    edge = _options.edgeitems
    if summarize and not edge:
        texts = ["..."]
    elif summarize and row.size > 2 * edge:
        ends = [formatter.format(v) for v in (*row[:edge].tolist(), *row[-edge:].tolist())]
        texts = [*ends[:edge], " ...", *ends[edge:]]
    else:
        texts = [formatter.format(v) for v in row.tolist()]
    lines = [", ".join(texts[i : i + per_line]) for i in range(0, len(texts), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def _nested(values: np.ndarray, indent: int, formatter, summarize: bool) -> str:
    if values.ndim == 0:
        return formatter.format(values.item())
    if values.ndim == 1:
        return _vector(values, indent, formatter, summarize)
    edge = _options.edgeitems
    if summarize and len(values) > 2 * edge:
        parts = [_nested(v, indent + 1, formatter, summarize) for v in values[:edge]]
        parts.append("...")
        parts += [
            _nested(v, indent + 1, formatter, summarize) for v in values[len(values) - edge :]
        ]
    else:
        parts = [_nested(v, indent + 1, formatter, summarize) for v in values]
    separator = "," + "\n" * (values.ndim - 1) + " " * (indent + 1)
    return "[" + separator.join(parts) + "]"


def _shown(values: np.ndarray) -> np.ndarray:
    """The elements that a summary shows: the edges of each dimension."""
    edge = _options.edgeitems
    for axis in range(values.ndim):
        if values.shape[axis] > 2 * edge:
            keep = np.r_[0:edge, values.shape[axis] - edge : values.shape[axis]]
            values = np.take(values, keep, axis)
    return values


def _host_values(x: Tensor) -> np.ndarray:
    x = x.detach()
    if x.dtype.opaque or x.dtype is dtypes.bfloat16:
        x = x.float()
    array = x._read()
    mx.eval(array)
    values = np.array(array)
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def _contents(x: Tensor, indent: int) -> str:
    summarize = x.numel() > _options.threshold
    values = _host_values(x)
    shown = _shown(values) if summarize else values
    if x.dtype.is_complex:
        formatter = _ComplexFormatter(shown.reshape(-1))
    else:
        formatter = _Formatter(shown.reshape(-1), values.dtype.kind in "biu")
    return _nested(values, indent, formatter, summarize)


_IMPLIED = (dtypes.int64, dtypes.bool_)


def tensor_repr(x: Tensor) -> str:
    """The text of repr(x): elements, then what they do not tell.

    Subclasses go by their own name.
    """
    plain = type(x) is Tensor or type(x).__name__ == "Parameter"
    prefix = "tensor(" if plain else f"{type(x).__name__}("
    indent = len(prefix)
    suffixes = []
    if x.device.type != "cpu":
        suffixes.append(f"device='{x.device}'")
    implied = x.dtype is dtypes.get_default_dtype() or x.dtype in _IMPLIED
    if x.dtype.is_complex:
        implied = x.dtype is dtypes.get_default_dtype().to_complex()
    if x.device.type == "meta":
        suffixes.append(f"size={tuple(x.shape)}")
        implied = x.dtype is dtypes.get_default_dtype()
        body = "..."
    elif x.numel() == 0:
        if x.ndim != 1:
            suffixes.append(f"size={tuple(x.shape)}")
        implied = x.dtype is dtypes.get_default_dtype()  # [] would read as floating point
        body = "[]"
    else:
        body = _contents(x, indent)
    if not implied:
        suffixes.append(f"dtype={x.dtype}")
    suffixes += _autograd_suffix(x)
    return _join(prefix + body, suffixes, indent)


def _autograd_suffix(x: Tensor) -> list[str]:
    if x.grad_fn is not None:
        return [f"grad_fn=<{type(x.grad_fn).__name__}>"]
    return ["requires_grad=True"] if x.requires_grad else []


def _join(text: str, suffixes: list[str], indent: int) -> str:
    """The suffixes after the elements, on a new line where they would pass the line width."""
    last = len(text) - text.rfind("\n") + 1
    for suffix in suffixes:
        if last + len(suffix) + 2 > _options.linewidth:
            text += ",\n" + " " * indent + suffix
            last = indent + len(suffix)
        else:
            text += ", " + suffix
            last += len(suffix) + 2
    return text + ")"


def _format(self: Tensor, spec: str) -> str:
    if self.ndim == 0 and self.device.type != "meta":
        return format(self.item(), spec)
    return object.__format__(self, spec)


def install() -> None:
    """Give Tensor its __repr__, __str__ and __format__."""
    Tensor.__repr__ = tensor_repr  # type: ignore[method-assign]
    Tensor.__format__ = _format  # type: ignore[method-assign]


install()
