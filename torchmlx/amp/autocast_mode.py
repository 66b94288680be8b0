"""torch.autocast: products in half precision, losses in float32."""

from __future__ import annotations

import functools
import warnings

from ..core import device as devices
from ..core import dtype as dtypes
from ..core import modes
from ..core.dtype import dtype as Dtype
from ..core.tensor import Tensor

_DTYPES = {"cpu": dtypes.bfloat16, "cuda": dtypes.float16, "mps": dtypes.float16}


def get_autocast_dtype(device_type: str) -> Dtype:
    """The dtype that autocast uses on a device type unless told otherwise."""
    return _DTYPES[device_type]


def set_autocast_dtype(device_type: str, dtype: Dtype) -> None:
    """Set the dtype that autocast uses on a device type."""
    _DTYPES[device_type] = dtype


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Whether autocast is on in this thread (for a device type; for the GPU if none is given)."""
    on = modes.autocast()
    if on is None:
        return False
    return on.device_type == device_type if device_type else on.device_type != "cpu"


class autocast:
    """Inside, matrix products run in `dtype` and losses in float32. torch.autocast.

    dtype: bfloat16 on the CPU and float16 on a GPU by default. A context manager and a decorator.
    """

    def __init__(
        self, device_type: str, dtype: Dtype | None = None, enabled: bool = True, cache_enabled=None
    ):
        if not isinstance(device_type, str):
            raise ValueError(
                f"Expected `device_type` of type `str`, got: `{type(device_type).__name__}`"
            )
        device_type = devices.device(device_type).type  # raises for what is no device type at all
        if device_type not in _DTYPES:
            raise RuntimeError(
                f"User specified an unsupported autocast device_type '{device_type}'"
            )
        self.device = device_type
        self.fast_dtype = dtype or _DTYPES[device_type]
        self._enabled = enabled
        if enabled and device_type != "cpu" and (devices.GPU is None or
                                                 devices.GPU.type != device_type):  # fmt: skip
            warnings.warn(
                f"User provided device_type of '{device_type}', but {device_type.upper()} is not "
                "available. Disabling",
                stacklevel=2,
            )
            self._enabled = False
        if self._enabled and self.fast_dtype not in (dtypes.bfloat16, dtypes.float16):
            warnings.warn(
                f"In {device_type.upper()} autocast, but the target dtype is not supported. "
                f"Disabling autocast.\n {device_type.upper()} Autocast only supports dtypes of "
                "torch.bfloat16, torch.float16 currently.",
                stacklevel=2,
            )
            self._enabled = False
        self._outer: list = []

    def __enter__(self):
        wanted = modes.Autocast(self.device, self.fast_dtype) if self._enabled else None
        context = modes.autocast_set(wanted)
        context.__enter__()
        self._outer.append(context)
        return self

    def __exit__(self, *exc):
        self._outer.pop().__exit__(*exc)
        return False

    def __call__(self, function):
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            with self:
                return function(*args, **kwargs)

        return wrapped


def _converted(value, target: Dtype, device_type: str):
    if isinstance(value, Tensor):
        fits = value.dtype.is_floating_point and value.device.type == device_type
        return value.to(target) if fits and value.dtype is not dtypes.float64 else value
    if isinstance(value, dict):
        return {k: _converted(v, target, device_type) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_converted(v, target, device_type) for v in value)
    return value


def custom_fwd(fwd=None, *, device_type: str, cast_inputs: Dtype | None = None):
    """Decorate a Function's forward: autocast off, inputs cast to cast_inputs if given."""
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def decorated(ctx, *args, **kwargs):
        ctx._autocast = modes.autocast()
        if cast_inputs is None or ctx._autocast is None:
            return fwd(ctx, *args, **kwargs)
        ctx._autocast = None
        args = _converted(args, cast_inputs, device_type)
        kwargs = _converted(kwargs, cast_inputs, device_type)
        with modes.autocast_set(None):
            return fwd(ctx, *args, **kwargs)

    return decorated


def custom_bwd(bwd=None, *, device_type: str):
    """Decorate a Function's backward: autocast as it was in forward."""
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def decorated(ctx, *args):
        with modes.autocast_set(ctx._autocast):
            return bwd(ctx, *args)

    return decorated
