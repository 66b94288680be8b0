"""Multi-head attention."""

from __future__ import annotations

from .. import init
from ..heads import multi_head_attention_forward
from .linear import NonDynamicallyQuantizableLinear, empty
from .module import Module


class MultiheadAttention(Module):
    """Attention of several heads over [L, N, E] (or [N, L, E] with batch_first).

    torch.nn.MultiheadAttention.
    """

    __constants__ = ["batch_first"]

    def __init__(
        self, embed_dim, num_heads, dropout=0.0, bias=True, add_bias_kv=False, add_zero_attn=False,
        kdim=None, vdim=None, batch_first=False, device=None, dtype=None,
    ):  # fmt: skip
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                "embed_dim and num_heads must be greater than 0, got "
                f"embed_dim={embed_dim} and num_heads={num_heads} instead"
            )
        super().__init__()
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        self.batch_first, self.head_dim = batch_first, embed_dim // num_heads
        if self.head_dim * num_heads != embed_dim:
            raise AssertionError("embed_dim must be divisible by num_heads")
        place = {"device": device, "dtype": dtype}
        e, same = embed_dim, self._qkv_same_embed_dim
        shapes = {
            "q_proj_weight": None if same else (e, e),
            "k_proj_weight": None if same else (e, self.kdim),
            "v_proj_weight": None if same else (e, self.vdim),
            "in_proj_weight": (3 * e, e) if same else None,
            "in_proj_bias": (3 * e,) if bias else None,
        }
        if same:  # torch registers the one in use first
            shapes = {"in_proj_weight": shapes.pop("in_proj_weight"), **shapes}
        self._register(shapes, place)
        self.out_proj = NonDynamicallyQuantizableLinear(e, e, bias=bias, **place)
        if add_bias_kv:
            self.bias_k, self.bias_v = (empty(1, 1, e, **place) for _ in range(2))
        else:
            self.bias_k = self.bias_v = None
        self.add_zero_attn = add_zero_attn
        self._reset_parameters()

    def _register(self, shapes, place) -> None:
        for name, shape in shapes.items():
            self.register_parameter(name, None if shape is None else empty(*shape, **place))

    def _reset_parameters(self) -> None:
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            if getattr(self, name) is not None:
                init.xavier_uniform_(getattr(self, name))
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def forward(
        self, query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None,
        average_attn_weights=True, is_causal=False,
    ):  # fmt: skip
        turned = self.batch_first and query.ndim == 3
        if turned:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        separate = (
            {}
            if self._qkv_same_embed_dim
            else {
                name: getattr(self, name)
                for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight")
            }
        )
        output, weights = multi_head_attention_forward(
            query, key, value, self.embed_dim, self.num_heads, self.in_proj_weight,
            self.in_proj_bias, self.bias_k, self.bias_v, self.add_zero_attn, self.dropout,
            self.out_proj.weight, self.out_proj.bias, self.training, key_padding_mask,
            need_weights, attn_mask, not self._qkv_same_embed_dim,
            average_attn_weights=average_attn_weights, is_causal=is_causal, **separate,
        )  # fmt: skip
        return output.transpose(0, 1) if turned else output, weights
