"""torch's API on Apple's MLX: `import torchmlx as torch`."""

from __future__ import annotations

import math as _math
import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from ._backend import require_mlx as _require_mlx

_require_mlx()  # before anything imports mlx: without a backend, say what to install

from . import aten as _aten
from .aten.convert import (
    channels_last,
    channels_last_3d,
    contiguous_format,
    memory_format,
    preserve_format,
)
from .core import device as _device
from .core import dtype as _dtype
from .core import op as _op
from .core.device import device, get_default_device, set_default_device
from .core.dtype import (
    can_cast,
    dtype,
    finfo,
    get_default_dtype,
    iinfo,
    promote_types,
    set_default_dtype,
)
from .core.layout import Size
from .core.legacy import TYPES as _TYPES
from .core.legacy import set_default_tensor_type
from .core.modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from .core.op import result_type
from .core.printing import set_printoptions
from .core.storage import UntypedStorage
from .core.tensor import Tensor, from_mx
from .random import (
    Generator,
    default_generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    seed,
    set_rng_state,
)
from .version import __version__

if _TYPE_CHECKING:  # what the op table adds

    def __getattr__(name: str) -> _Any: ...


for _d in _dtype.ALL:
    globals()[_d.name] = _d
globals().update(_dtype.ALIASES)
globals().update(_TYPES)
inf, nan, pi, e = _math.inf, _math.nan, _math.pi, _math.e

_aten.load()
from . import (  # built from the filled table
    _C,
    _dynamo,
    _inductor,
    accelerator,
    amp,
    ao,
    autograd,
    backends,
    compiler,
    cpu,
    cuda,
    distributed,
    distributions,
    fft,
    func,
    functional,
    fx,
    hub,
    jit,
    library,
    linalg,
    masked,
    mps,
    multiprocessing,
    nn,
    onnx,
    ops,
    optim,
    overrides,
    profiler,
    random,
    return_types,
    serialization,
    signal,
    special,
    storage,
    testing,
    torch_version,
    types,
    utils,
    version,
)
from .amp.autocast_mode import (
    autocast,
    get_autocast_dtype,
    is_autocast_enabled,
    set_autocast_dtype,
)
from .func import vmap
from .runtime import (
    OutOfMemoryError,
    are_deterministic_algorithms_enabled,
    compile,
    get_float32_matmul_precision,
    is_deterministic_algorithms_warn_only_enabled,
    layout,
    set_float32_matmul_precision,
    strided,
    typename,
    use_deterministic_algorithms,
)
from .serialization import load, save
from .streams import Event, Stream
from .threads import (
    get_num_interop_threads,
    get_num_threads,
    set_num_interop_threads,
    set_num_threads,
)

_op.install(
    {
        "torch": _sys.modules[__name__],
        "Tensor": Tensor,
        "F": nn.functional,
        "linalg": linalg,
        "special": special,
        "fft": fft,
        "ops": ops,
    }
)
