"""Causal self-attention, as the decoder families share it."""

from collections.abc import Callable

import torchmlx as torch
from torchmlx import Tensor, nn, ops
from torchmlx.nn import functional as F

from ..core.tensor import from_array
from .cache import KVState
from .plain import plain
from .step import FULL, Step


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; x [B, L, hidden] -> [B, L, hidden].

    kind: which of the step's rotations turns queries and keys; None turns none.
    norm: makes the norm over each query and key head before the rotation, from the head's size.
    window: how many keys a query sees, its own included; None for all.
    scale: of the scores; head_dim ** -0.5 by default.
    gated: q_proj gives each head its query and then a gate, whose sigmoid multiplies the result.
    sinks: each head has one more score, which takes its share of the softmax and gives nothing.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        qkv_bias: bool = False,
        out_bias: bool = False,
        kind: str | None = FULL,
        norm: Callable[[int], nn.Module] | None = None,
        window: int | None = None,
        scale: float | None = None,
        gated: bool = False,
        sinks: bool = False,
    ):
        super().__init__()
        self.head_dim, self.kind, self.window = head_dim, kind, window
        self.scale, self.gated = scale, gated
        width = head_dim * (2 if gated else 1)
        self.q_proj = nn.Linear(hidden, heads * width, bias=qkv_bias)
        self.k_proj = nn.Linear(hidden, kv_heads * head_dim, bias=qkv_bias)
        self.v_proj = nn.Linear(hidden, kv_heads * head_dim, bias=qkv_bias)
        self.o_proj = nn.Linear(heads * head_dim, hidden, bias=out_bias)
        self.q_norm = norm(head_dim) if norm else nn.Identity()
        self.k_norm = norm(head_dim) if norm else nn.Identity()
        self.sinks = nn.Parameter(torch.zeros(heads)) if sinks else None

    def make_state(self, bits: int | None = None) -> KVState:
        """What a cache holds for this layer; `bits` quantises keys and values."""
        return KVState(self.window, bits)

    def forward(self, x: Tensor, step: Step, state: KVState | None) -> Tensor:
        single = x.shape[1] == 1
        if state is not None and single and step.rows is not None and self._joined(state):
            return self.o_proj(self._join(x, step, step.rows, state))
        # Of a single token heads are rows as they come: nothing is to be transposed.
        axis = 1 if single else 2
        q, k, v = (self._heads(t, single) for t in self._project(x))
        gate = None
        if self.gated:
            q, gate = q.unflatten(axis, (-1, 2)).unbind(axis + 1)
            gate = gate if single else gate.transpose(1, 2)
        q, k = self.q_norm(q), self.k_norm(k)
        if not single:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # [B, H, L, D]
        if self.kind is not None:
            turn = step.turn(self.kind)
            q, k = ops.rope(q, *turn), ops.rope(k, *turn)
        if state is not None:
            rows = None if step.rows is None else step.rows.mx
            seen = state.append(k.mx, v.mx, step.past, rows)
            k, v = (from_array(array, x.device) for array in seen)
        if self.sinks is None:
            out = self._attend(q, k, v, gate, step)
        else:
            out = self._attend_with_sinks(q, k, v, self.sinks, step)
        out = out.reshape(x.shape[0], 1, -1) if single else out.transpose(1, 2).flatten(2)
        return self.o_proj(out)

    def _joined(self, state: KVState) -> bool:
        """Whether one operation does all between the projections of a token."""
        extended = self.window is not None or self.gated or self.sinks is not None
        return state.plain and self.kind is not None and not extended

    def _join(self, x: Tensor, step: Step, rows: Tensor, state: KVState) -> Tensor:
        """[B, 1, H * D] of a token each, which joins the state."""
        q, k, v = self._project(x)
        if not isinstance(self.q_norm, nn.Identity):
            q = self.q_norm(self._heads(q, True)).reshape(q.shape)
            k = self.k_norm(self._heads(k, True)).reshape(k.shape)
        turn = step.turn(self.kind or FULL)
        seen = state.tensors(x.device)
        out, *seen = ops.cached_attention(q, k, v, *turn, *seen, rows, scale=self.scale)
        state.store(*seen)
        return out

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        maps = self.q_proj, self.k_proj, self.v_proj
        if plain(x, *maps):
            return ops.projections(x, *(m.weight for m in maps), *(m.bias for m in maps))
        return tuple(m(x) for m in maps)

    def _heads(self, x: Tensor, single: bool) -> Tensor:
        """[B, L, H, D], or [B, H, 1, D] of a single token."""
        if single:
            return x.reshape(x.shape[0], -1, 1, self.head_dim)
        return x.unflatten(-1, (-1, self.head_dim))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None, step: Step) -> Tensor:
        sight = step.sight(k.shape[2], self.window)
        return ops.attention(q, k, v, scale=self.scale, gate=gate, **sight)

    def _attend_with_sinks(self, q, k, v, sinks: Tensor, step: Step) -> Tensor:
        """The sink is the score of one more key, 0, by way of the mask; its value is 0."""
        seen = step.visible(k.shape[2], self.window)
        mask = torch.zeros(seen.shape, dtype=q.dtype, device=q.device)
        mask = mask.masked_fill(seen.logical_not(), float("-inf")).expand(-1, q.shape[1], -1, -1)
        sink = sinks.to(q.dtype)[None, :, None, None].expand(*mask.shape[:3], 1)
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        mask = torch.cat((mask, sink), dim=-1)
        return ops.attention(q, k, v, mask=mask, scale=self.scale)
