"""Recurrent steps and scans: plain RNN, LSTM (gates i f g o) and GRU (gates r z n), in torch's
order.
"""

from __future__ import annotations

import mlx.core as mx

from ..core.op import op
from ._calling import wide
from .elementary import sigmoid


def _affine(x, w, b):
    y = x @ w.T
    return y if b is None else y + b


def _step(mode: str, gates, h, c, w_hh, b_hh, w_hr):
    """(h, c) after one step; `gates` is what the input contributes."""
    if mode == "GRU":
        r, z, n = mx.split(gates, 3, axis=-1)
        hr, hz, hn = mx.split(_affine(h, w_hh, b_hh), 3, axis=-1)
        z = sigmoid(z + hz)
        n = mx.tanh(n + sigmoid(r + hr) * hn)
        return (1 - z) * n + z * h, c
    total = gates + _affine(h, w_hh, b_hh)
    if mode == "LSTM":
        i, f, g, o = mx.split(total, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * mx.tanh(g)
        h = sigmoid(o) * mx.tanh(c)
        return (h if w_hr is None else h @ w_hr.T), c
    return (mx.tanh(total) if mode == "RNN_TANH" else mx.maximum(total, 0)), c


def _wide_all(*arrays):
    return [None if a is None else wide(a) for a in arrays]


@op("_rnn_layer", at=())
def layer(mode, input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, reverse, sizes=None):
    """One direction of one layer. input [T, B, I], h [B, H or P], c [B, H] (LSTM, else None).

    Packed sequences have input [sum of sizes, I] and `sizes`, how many of them (of B, descending)
    reach each step. Returns (outputs [T, B, H or P], last h, last c or last h).
    """
    kind = input.dtype
    x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr = _wide_all(input, h, c, w_ih, w_hh, b_ih, b_hh, w_hr)
    gates = _affine(x, w_ih, b_ih)  # every step's at once
    if sizes is not None:
        run = _packed_backward if reverse else _packed_forward
        outputs, h, c = run(mode, gates, sizes, h, c, w_hh, b_hh, w_hr)
        last_c = h if c is None else c
        return outputs.astype(kind), h.astype(kind), last_c.astype(kind)
    steps, outputs = range(x.shape[0]), []
    for t in reversed(steps) if reverse else steps:
        h, c = _step(mode, gates[t], h, c, w_hh, b_hh, w_hr)
        outputs.append(h)
    if reverse:
        outputs.reverse()
    last_c = h if c is None else c
    return mx.stack(outputs).astype(kind), h.astype(kind), last_c.astype(kind)


def _packed_forward(mode, gates, sizes, h, c, *weights):
    """Sequences that end leave with their last state."""
    outputs, ended_h, ended_c, start = [], [], [], 0
    for size in sizes:
        if size < h.shape[0]:
            ended_h.insert(0, h[size:])
            h = h[:size]
            if c is not None:
                ended_c.insert(0, c[size:])
                c = c[:size]
        h, c = _step(mode, gates[start : start + size], h, c, *weights)
        outputs.append(h)
        start += size
    h = mx.concatenate([h, *ended_h])
    return mx.concatenate(outputs), h, None if c is None else mx.concatenate([c, *ended_c])


def _packed_backward(mode, gates, sizes, first_h, first_c, *weights):
    """From the last step on: each sequence joins with its first state where it ends."""
    outputs, end, known = [], gates.shape[0], 0
    h, c = first_h[:0], None if first_c is None else first_c[:0]
    for size in reversed(sizes):
        if size > known:
            h = mx.concatenate([h, first_h[known:size]])
            if c is not None:
                c = mx.concatenate([c, first_c[known:size]])
            known = size
        h, c = _step(mode, gates[end - size : end], h, c, *weights)
        outputs.append(h)
        end -= size
    outputs.reverse()
    return mx.concatenate(outputs), h, c


@op("_rnn_cell", at=())
def cell(mode, input, h, c, w_ih, w_hh, b_ih, b_hh):
    """One step: (h, c), c being h again where the mode has no cell state."""
    kind = input.dtype
    x, h, c, w_ih, w_hh, b_ih, b_hh = _wide_all(input, h, c, w_ih, w_hh, b_ih, b_hh)
    h, c = _step(mode, _affine(x, w_ih, b_ih), h, c, w_hh, b_hh, None)
    return h.astype(kind), (h if c is None else c).astype(kind)
