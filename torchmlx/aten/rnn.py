"""Recurrent steps and scans: plain RNN, LSTM (gates i f g o) and GRU (gates r z n), in torch's
order.
"""

from __future__ import annotations

import mlx.core as mx

from ..core.op import op
from ._calling import wide


def _affine(x, w, b):
    y = x @ w.T
    return y if b is None else y + b


def _step(mode: str, gates, h, c, w_hh, b_hh, w_hr):
    """(h, c) after one step; `gates` is what the input contributes."""
    if mode == "GRU":
        r, z, n = mx.split(gates, 3, axis=-1)
        hr, hz, hn = mx.split(_affine(h, w_hh, b_hh), 3, axis=-1)
        z = mx.sigmoid(z + hz)
        n = mx.tanh(n + mx.sigmoid(r + hr) * hn)
        return (1 - z) * n + z * h, c
    total = gates + _affine(h, w_hh, b_hh)
    if mode == "LSTM":
        i, f, g, o = mx.split(total, 4, axis=-1)
        c = mx.sigmoid(f) * c + mx.sigmoid(i) * mx.tanh(g)
        h = mx.sigmoid(o) * mx.tanh(c)
        return (h if w_hr is None else h @ w_hr.T), c
    return (mx.tanh(total) if mode == "RNN_TANH" else mx.maximum(total, 0)), c


def _wide_all(*arrays):
    return [None if a is None else wide(a) for a in arrays]


@op("_rnn_layer", at=())
def layer(mode, input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, reverse):
    """One direction of one layer. input [T, B, I], h [B, H or P], c [B, H] (LSTM, else None).

    Returns (outputs [T, B, H or P], last h, last c or last h).
    """
    kind = input.dtype
    x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr = _wide_all(input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr)
    gates = _affine(x, w_ih, b_ih)  # every step's at once
    steps, outputs = range(x.shape[0]), []
    for t in reversed(steps) if reverse else steps:
        h, c = _step(mode, gates[t], h, c, w_hh, b_hh, w_hr)
        outputs.append(h)
    if reverse:
        outputs.reverse()
    last_c = h if c is None else c
    return mx.stack(outputs).astype(kind), h.astype(kind), last_c.astype(kind)


@op("_rnn_cell", at=())
def cell(mode, input, h, c, w_ih, w_hh, b_ih, b_hh):
    """One step: (h, c), c being h again where the mode has no cell state."""
    kind = input.dtype
    x, h, c, w_ih, w_hh, b_ih, b_hh = _wide_all(input, h, c, w_ih, w_hh, b_ih, b_hh)
    h, c = _step(mode, _affine(x, w_ih, b_ih), h, c, w_hh, b_hh, None)
    return h.astype(kind), (h if c is None else c).astype(kind)
