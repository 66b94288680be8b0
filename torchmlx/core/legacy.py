"""torch.LongTensor and its kin: names for a dtype on the CPU, used in annotations, isinstance and
old code.
"""

from __future__ import annotations

from . import dtype as dtypes
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
