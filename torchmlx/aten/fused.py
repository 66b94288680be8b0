"""Operations that torch lacks and models need: our kernels, each as it is, on Tensors.

What a kernel says of its arrays (shapes, dtypes, errors) holds for the tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..core.op import op
from ..kernels.attention import attention
from ..kernels.cached_attention import cached_attention
from ..kernels.causal_conv1d import causal_conv1d
from ..kernels.conv2d import conv2d
from ..kernels.conv3d import conv3d
from ..kernels.gated_delta import gated_delta
from ..kernels.grouped_matmul import grouped_matmul
from ..kernels.projections import projections
from ..kernels.rms_norm import rms_norm
from ..kernels.rope import rope as turn
from ..kernels.router import router
from ..kernels.swiglu import swiglu


def speaking_torch(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel` with errors that name torch's dtypes."""

    @functools.wraps(kernel)
    def call(*args, **kwargs):
        try:
            return kernel(*args, **kwargs)
        except (TypeError, ValueError) as error:
            text = str(error).replace("mlx.core.", "torch.")
            raise type(error)(text) from None

    return call


KERNELS = (
    *(attention, cached_attention, causal_conv1d, conv2d, conv3d, gated_delta, grouped_matmul),
    *(projections, rms_norm, router, swiglu),
)
for _kernel in KERNELS:
    # "ops.conv2d": the table has torch.conv2d under the bare name.
    op(f"ops.{_kernel.__name__}", at=("ops",))(speaking_torch(_kernel))


@op("ops.rope", at=("ops",))
@speaking_torch
def rope(x, cos=None, sin=None, positions=None, frequencies=None, **form):
    """Turn the first d dimensions of each head of x by its position (arXiv:2104.09864).

    x [.., H, L, D] or [.., L, D], floating. Give one of
    - cos and sin [L, d] or [B, 1, L, d]: a value for each element;
    - positions [L] or [B, L], integer, and tables cos and sin [N, d], which hold every position;
    - positions and inverse frequencies [d/2], float32: the angles are their float32 products.
    Keywords: scale (of cosines and sines of frequencies), interleaved (dimension 2i is paired with
    2i + 1, else i with i + d/2), sections and sections_interleaved (positions [3, L] or [3, B, L]
    of time, height and width), heads_last (x is [.., L, H, D]), rounded (cosines and sines to x's
    dtype first, as transformers does; default), inverse (turn back).
    Computed in float32, rounded once to x's dtype. Raises ValueError for shapes that do not fit,
    TypeError for dtypes.
    """
    return turn(x, positions, frequencies, cos, sin, **form)
