"""torch.LongTensor and its kin: names for a dtype on the CPU, used in annotations, isinstance and
old code.
"""

from __future__ import annotations

from . import dtype as dtypes
from .device import set_default_device
from .tensor import Tensor, legacy_constructor


class _TensorType(type):
    """The type of a typed name: its instances are the tensors of one dtype."""

    dtype: dtypes.dtype

    def __instancecheck__(cls, instance):
        return (
            isinstance(instance, Tensor)
            and instance.dtype is cls.dtype
            and instance.device.type == "cpu"
        )

    def __call__(cls, *args, **kwargs):
        return legacy_constructor(Tensor, args, {**kwargs, "dtype": cls.dtype})

    def __repr__(cls):
        return f"<class 'torch.{cls.__name__}'>"


def _typed(d: dtypes.dtype) -> type:
    return _TensorType(f"{d.torch_name}Tensor", (), {"dtype": d, "__module__": "torch"})


_NAMED = (
    dtypes.bool_, dtypes.uint8, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64,
    dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64,
)  # fmt: skip
TYPES = {f"{d.torch_name}Tensor": _typed(d) for d in _NAMED}


def set_default_tensor_type(t) -> None:
    """Make a floating type ("torch.DoubleTensor", or the type) the default one.

    torch.set_default_tensor_type.
    """
    name = t if isinstance(t, str) else f"torch.{t.__name__}"
    kind = TYPES.get(name.rpartition(".")[2])
    if kind is None or not kind.dtype.is_floating_point:  # type: ignore[attr-defined]
        raise TypeError("only floating-point types are supported as the default type")
    dtypes.set_default_dtype(kind.dtype)  # type: ignore[attr-defined]
    if name.count(".") == 2:
        set_default_device(name.split(".")[1])
