"""Gradients of torchmlx.ops on the tape, against torch 2.13's autograd of the same sums."""

import numpy as np
import pytest
import torch

import torchmlx
from torchmlx import ops

from .parity import data, to_numpy

F = torch.nn.functional


def torch_swiglu(x, gate_up):
    gate, up = F.linear(x, gate_up).chunk(2, -1)
    return F.silu(gate) * up


def torch_norm(x, w, residual):
    h = x + residual
    return F.rms_norm(h, (12,), 1 + w, 1e-5), h


def torch_rope(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def torch_attention(q, k, v, gate):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) * gate.sigmoid()


def torch_conv3d(x, w, bias, cache):
    whole = torch.cat((cache, x), 1).permute(0, 4, 1, 2, 3)
    out = F.conv3d(whole, w.permute(0, 4, 1, 2, 3), bias, padding=(0, 1, 1))
    return out.permute(0, 2, 3, 4, 1)


def torch_conv1d(x, w, state, bias):
    whole = torch.cat((state, x), 1)
    out = F.conv1d(whole.transpose(1, 2), w[:, None], bias, groups=w.shape[0]).transpose(1, 2)
    return F.silu(out), whole[:, x.shape[1] :]


def torch_gated_delta(q, k, v, g, beta, state):
    """Step by step."""
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q, k = (x.repeat_interleave(2, 2) for x in (q * q.shape[-1] ** -0.5, k))
    outs = []
    for t in range(q.shape[1]):
        state = state * (-g[:, t].square()).exp()[..., None, None]
        known = torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        delta = beta[:, t, :, None] * (v[:, t] - known)
        state = state + k[:, t, ..., None] * delta[:, :, None]
        outs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(outs, 1), state


def torch_router(logits):
    top = logits.softmax(-1).topk(3)[0]
    return top / top.sum(-1, keepdim=True)


ENDS, EXPERTS = [2, 2, 5], [[2, 0], [1, 2]]


def torch_grouped(a, b):
    return torch.cat([a[:2] @ b[0], a[2:5] @ b[2], 0 * a[5:] @ b[0]])


def torch_moe(x, gate_up, down, weights):
    rows = []
    for t, chosen in enumerate(EXPERTS):
        parts = (weights[t, s] * down[e] @ torch_swiglu(x[t], gate_up[e])
                 for s, e in enumerate(chosen))  # fmt: skip
        rows.append(sum(parts))
    return torch.stack(rows)


def int32(values):
    return torchmlx.tensor(values).int()


# Name -> our call, torch's, the shapes of what both differentiate.
SUMS = {
    "swiglu": (ops.swiglu, torch_swiglu, [(3, 10), (8, 10)]),
    "rms_norm": (
        lambda x, w, r: ops.rms_norm(x, w, r, eps=1e-5, offset=1.0),
        torch_norm,
        [(2, 3, 12), (12,), (2, 3, 12)],
    ),
    "rope": (ops.rope, torch_rope, [(2, 3, 5, 8), (5, 8), (5, 8)]),
    "attention": (
        lambda q, k, v, gate: ops.attention(q, k, v, causal=True, gate=gate),
        torch_attention,
        [(2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8), (2, 4, 5, 8)],
    ),
    "conv3d": (
        lambda x, w, b, c: ops.conv3d(x, w, b, padding=((2, 0), 1, 1), cache=c),
        torch_conv3d,
        [(1, 2, 4, 5, 3), (4, 3, 3, 3, 3), (4,), (1, 2, 4, 5, 3)],
    ),
    "causal_conv1d": (
        lambda x, w, state, bias: ops.causal_conv1d(x, w, state, bias, silu=True),
        torch_conv1d,
        [(2, 6, 5), (5, 4), (2, 3, 5), (5,)],
    ),
    "gated_delta": (
        lambda q, k, v, g, beta, state: ops.gated_delta(q, k, v, -g.square(), beta, state),
        torch_gated_delta,
        [(1, 37, 2, 6)] * 2 + [(1, 37, 4, 5)] + [(1, 37, 4)] * 2 + [(1, 4, 6, 5)],
    ),
    "router": (lambda x: ops.router(x, 3)[0], torch_router, [(5, 9)]),
    "grouped_matmul": (
        lambda a, b: ops.grouped_matmul(a, b, int32(ENDS)),
        torch_grouped,
        [(6, 4), (3, 4, 8)],
    ),
    "moe_decode": (
        lambda x, up, down, weights: ops.moe_decode(x, up, down, int32(EXPERTS), weights),
        torch_moe,
        [(2, 6), (3, 8, 6), (3, 6, 4), (2, 2)],
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_gradients(name):
    call, their_call, shapes = SUMS[name]
    arrays = [data(*shape, seed=i, low=-1.0, high=1.0) for i, shape in enumerate(shapes)]
    ours = [torchmlx.tensor(a).requires_grad_() for a in arrays]
    theirs = [torch.tensor(a, dtype=torch.float64).requires_grad_() for a in arrays]
    for function, lib, tensors in ((call, torchmlx, ours), (their_call, torch, theirs)):
        results = function(*tensors)
        results = results if isinstance(results, tuple) else (results,)
        weighted = (
            (r * lib.tensor(data(*r.shape, seed=9 + i))).sum() for i, r in enumerate(results)
        )
        sum(weighted).backward()
    for i, (own, want) in enumerate(zip(ours, theirs, strict=True)):
        scale = float(want.grad.abs().max())
        got = to_numpy(own.grad)
        np.testing.assert_allclose(
            got, want.grad, rtol=0, atol=2e-5 * scale, err_msg=f"argument {i}"
        )


def test_float8_weights_pass_gradients_by():
    """x, the scales and the bias have gradients, codes have none."""
    arrays = data(3, 150), data(2, 2, low=0.01, high=0.02), data(200, seed=2)
    coded = ops.to_fp8(torchmlx.tensor(data(200, 150, seed=1)))
    x, scale, bias = (torchmlx.tensor(a).requires_grad_() for a in arrays)
    ops.fp8_linear(x, coded, scale, bias=bias).square().sum().backward()
    theirs = [torch.tensor(a).requires_grad_() for a in arrays]
    wide = theirs[1].repeat_interleave(128, 0).repeat_interleave(128, 1)[:200, :150]
    weights = torch.tensor(to_numpy(coded)) * wide
    F.linear(theirs[0], weights, theirs[2]).square().sum().backward()
    for own, want in zip((x, scale, bias), theirs, strict=True):
        peak = float(want.grad.abs().max())
        np.testing.assert_allclose(to_numpy(own.grad), want.grad, rtol=0, atol=1e-5 * peak)
