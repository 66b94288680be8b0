"""Rotary position embedding."""

from __future__ import annotations

import mlx.core as mx

from ..core.op import op


@op(at=("ops",))
def rope(x, cos, sin):
    """Rotate x by position: the half-split form, dim i paired with i + d/2 (arXiv:2104.09864).

    x [B, H, L, D]; cos and sin [L, d] or [B, 1, L, d] with d <= D: only the first d dims turn. In
    x's dtype; cos and sin are rounded to it first, as transformers does.
    """
    d = cos.shape[-1]
    half = d // 2
    cos, sin = cos.astype(x.dtype), sin.astype(x.dtype)
    turned, rest = (x, None) if d == x.shape[-1] else (x[..., :d], x[..., d:])
    opposite = mx.concatenate([-turned[..., half:], turned[..., :half]], axis=-1)
    turned = turned * cos + opposite * sin
    return turned if rest is None else mx.concatenate([turned, rest], axis=-1)
