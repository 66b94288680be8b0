"""torch's dtypes, their MLX storage, and torch's promotion rules.

A facade dtype is what the user sees; `dtype.mx` is the MLX dtype that stores it. They differ only
for float8 (MLX has none: bytes), which is why results are typed by facade dtypes and never by MLX's
rules.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

BOOL, INTEGER, FLOAT, COMPLEX = range(4)


class dtype:
    """A torch element type. Compared by identity, printed as torch prints it (`torch.float32`)."""

    __slots__ = ("name", "mx", "itemsize", "category", "is_signed", "opaque", "short", "torch_name")

    def __init__(self, name, storage, itemsize, category, torch_name, signed=True, opaque=False):
        self.name = name
        self.mx = storage
        self.itemsize = itemsize
        self.category = category
        self.is_signed = signed
        self.opaque = opaque  # stored as raw bytes: only operations that say so may read it
        self.torch_name = torch_name  # as torch's error messages spell it: Float, BFloat16, ...

    @property
    def is_floating_point(self) -> bool:
        return self.category == FLOAT

    @property
    def is_complex(self) -> bool:
        return self.category == COMPLEX

    def to_complex(self) -> dtype:
        return {float64: complex128, float16: complex64}.get(self, complex64)

    def to_real(self) -> dtype:
        return {complex64: float32, complex128: float64}.get(self, self)

    def __repr__(self):
        return f"torch.{self.name}"

    def __reduce__(self):
        return (_by_name, (self.name,))


bool_ = dtype("bool", mx.bool_, 1, BOOL, "Bool", signed=False)
uint8 = dtype("uint8", mx.uint8, 1, INTEGER, "Byte", signed=False)
int8 = dtype("int8", mx.int8, 1, INTEGER, "Char")
int16 = dtype("int16", mx.int16, 2, INTEGER, "Short")
int32 = dtype("int32", mx.int32, 4, INTEGER, "Int")
int64 = dtype("int64", mx.int64, 8, INTEGER, "Long")
uint16 = dtype("uint16", mx.uint16, 2, INTEGER, "UInt16", signed=False)
uint32 = dtype("uint32", mx.uint32, 4, INTEGER, "UInt32", signed=False)
uint64 = dtype("uint64", mx.uint64, 8, INTEGER, "UInt64", signed=False)
float16 = dtype("float16", mx.float16, 2, FLOAT, "Half")
bfloat16 = dtype("bfloat16", mx.bfloat16, 2, FLOAT, "BFloat16")
float32 = dtype("float32", mx.float32, 4, FLOAT, "Float")
float64 = dtype("float64", mx.float64, 8, FLOAT, "Double")
complex64 = dtype("complex64", mx.complex64, 8, COMPLEX, "ComplexFloat")
complex128 = dtype("complex128", None, 16, COMPLEX, "ComplexDouble")
float8_e4m3fn = dtype("float8_e4m3fn", mx.uint8, 1, FLOAT, "Float8_e4m3fn", opaque=True)
float8_e5m2 = dtype("float8_e5m2", mx.uint8, 1, FLOAT, "Float8_e5m2", opaque=True)
float8_e8m0fnu = dtype(
    "float8_e8m0fnu", mx.uint8, 1, FLOAT, "Float8_e8m0fnu", signed=False, opaque=True
)

ALL = (
    bool_, uint8, int8, int16, int32, int64, uint16, uint32, uint64, float16, bfloat16, float32,
    float64, complex64, complex128, float8_e4m3fn, float8_e5m2, float8_e8m0fnu,
)  # fmt: skip
_NAMES = {d.name: d for d in ALL}
_FROM_MX = {d.mx: d for d in ALL if not d.opaque and d.mx is not None}
ALIASES = {
    "bool": bool_, "half": float16, "float": float32, "double": float64, "short": int16,
    "int": int32, "long": int64, "cfloat": complex64, "cdouble": complex128,
}  # fmt: skip


def _by_name(name: str) -> dtype:
    return _NAMES[name]


def from_mx(storage: mx.Dtype) -> dtype:
    """The facade dtype of a plain MLX dtype."""
    return _FROM_MX[storage]


_default = float32


def get_default_dtype() -> dtype:
    """The dtype of floating point literals and of integer-to-float results."""
    return _default


def set_default_dtype(d: dtype) -> None:
    """Set the default floating point dtype. torch.set_default_dtype."""
    global _default
    if not d.is_floating_point or d.opaque:
        raise TypeError(f"only floating-point types are supported as the default type, got {d}")
    _default = d


def scalar_dtype(value) -> dtype:
    """The dtype a Python number has when it becomes a tensor."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, int):
        return int64
    if isinstance(value, float):
        return _default
    if isinstance(value, complex):
        return _default.to_complex()
    if isinstance(value, np.generic):
        return scalar_dtype(value.item())
    raise TypeError(f"argument must be Tensor or Number, not {type(value).__name__}")


_INTEGER_RANK = {int8: 0, int16: 1, int32: 2, int64: 3}
_FLOAT_RANK = {float16: 0, bfloat16: 0, float32: 1, float64: 2}
_PROMOTED: dict[tuple[dtype, dtype], dtype] = {}


def promote_types(a: dtype, b: dtype) -> dtype:
    """The smallest dtype that both can be converted to without changing category.

    torch.promote_types.
    """
    if a is b:
        return a
    found = _PROMOTED.get((a, b))
    if found is None:
        found = _PROMOTED[a, b] = _PROMOTED[b, a] = _promote(a, b)
    return found


def _promote(a: dtype, b: dtype) -> dtype:
    if a.opaque or b.opaque:
        raise RuntimeError(
            f"Promotion for Float8 Types is not supported, attempted to promote "
            f"{a.torch_name} and {b.torch_name}"
        )
    if a.category < b.category:
        a, b = b, a
    if a.is_complex:
        return complex128 if float64 in (a.to_real(), b.to_real()) else complex64
    if a.category != b.category:
        return a
    if a.is_floating_point:
        if _FLOAT_RANK[a] == _FLOAT_RANK[b]:
            return float32
        return a if _FLOAT_RANK[a] > _FLOAT_RANK[b] else b
    return _promote_integers(a, b)


def _promote_integers(a: dtype, b: dtype) -> dtype:
    if a.is_signed and b.is_signed:
        return a if _INTEGER_RANK[a] > _INTEGER_RANK[b] else b
    if not a.is_signed and not b.is_signed:
        return a if a.itemsize > b.itemsize else b
    signed, unsigned = (a, b) if a.is_signed else (b, a)
    if unsigned is not uint8:
        raise RuntimeError(
            f"Promotion for uint16, uint32, uint64 types is not supported, attempted to promote "
            f"{a.torch_name} and {b.torch_name}"
        )
    return int16 if signed is int8 else signed


def can_cast(source: dtype, target: dtype) -> bool:
    """Whether an in-place result of `source` may be stored in `target`. torch.can_cast."""
    if source.category == FLOAT and target.category < FLOAT:
        return False
    if source.category == COMPLEX and target.category < COMPLEX:
        return False
    return not (source.category != BOOL and target.category == BOOL)


def _number(value) -> str:
    return f"{value:g}"


class finfo:
    """Limits of a floating point dtype. torch.finfo: bits, eps, max, min, tiny, smallest_normal."""

    # (bits, eps, max, tiny, resolution); IEEE 754 and OCP OFP8 values.
    _TABLE = {
        "float16": (16, 2.0**-10, 65504.0, 2.0**-14, 1e-3),
        "bfloat16": (16, 2.0**-7, (2 - 2.0**-7) * 2.0**127, 2.0**-126, 1e-2),
        "float32": (32, 2.0**-23, (2 - 2.0**-23) * 2.0**127, 2.0**-126, 1e-6),
        "float64": (64, 2.0**-52, (2 - 2.0**-52) * 2.0**1023, 2.0**-1022, 1e-15),
        "float8_e4m3fn": (8, 2.0**-3, 448.0, 2.0**-6, 1.0),
        "float8_e5m2": (8, 2.0**-2, 57344.0, 2.0**-14, 1.0),
    }

    def __init__(self, type: dtype | None = None):
        type = type or _default
        if type.name not in self._TABLE and not type.is_complex:
            raise TypeError(
                f"torch.finfo() requires a floating point input type. Use torch.iinfo to handle "
                f"'torch.{type.name}'"
            )
        self.dtype = type.to_real().name
        self.bits, self.eps, self.max, self.tiny, self.resolution = self._TABLE[self.dtype]
        self.min, self.smallest_normal = -self.max, self.tiny

    def __repr__(self):
        fields = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        body = ", ".join(f"{f}={_number(getattr(self, f))}" for f in fields)
        return f"finfo({body}, dtype={self.dtype})"


class iinfo:
    """Limits of an integer dtype. torch.iinfo: bits, min, max."""

    def __init__(self, type: dtype):
        if type.category != INTEGER:
            raise TypeError(
                f"torch.iinfo() requires an integer input type. Use torch.finfo to handle "
                f"'torch.{type.name}'"
            )
        self.dtype, self.bits = type.name, 8 * type.itemsize
        self.min = -(1 << (self.bits - 1)) if type.is_signed else 0
        self.max = (1 << (self.bits - (1 if type.is_signed else 0))) - 1

    def __repr__(self):
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"
