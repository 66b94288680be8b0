"""torch's functions reach our kernels, by the registry's trace: the C++ ones where built."""

from __future__ import annotations

import pytest

import torchmlx as torch
from torchmlx.kernels import native
from torchmlx.kernels.discovery import get
from torchmlx.kernels.dispatch import trace, use

F = torch.nn.functional
FP8 = torch.float8_e4m3fn
TENSOR, ROW = F.ScalingType.TensorWise, F.ScalingType.RowWise


def linear(rows: int, dtype: str = "float32"):
    return lambda: F.linear(ones(rows, 64, dtype=dtype), ones(128, 64, dtype=dtype))


def ones(*shape: int, dtype: str = "float32"):
    return torch.ones(*shape).to(getattr(torch, dtype))


def scaled(scale_a, scale_b, recipe):
    a, b = torch.ones(16, 32).to(FP8), torch.ones(48, 32).to(FP8).t()
    return lambda: F.scaled_mm(a, b, scale_a, recipe, scale_b, recipe)


def ends(*rows: int):
    return torch.tensor(rows, dtype=torch.int32)


def attend(**options):
    return lambda: F.scaled_dot_product_attention(*[ones(1, 2, 4, 8)] * 3, **options)


CALLS = {
    **{f"gemv-linear-of-{m}": linear(m) for m in range(1, 9)},
    "gemv-linear-bfloat16": linear(3, "bfloat16"),
    "gemv-linear-float16": linear(8, "float16"),
    "gemv-nn.Linear": lambda: torch.nn.Linear(64, 128)(ones(2, 1, 64)),
    "softmax-torch": lambda: torch.softmax(ones(3, 5), -1),
    "softmax-another-dim": lambda: F.softmax(ones(3, 5), 0),
    "softmax-Tensor": lambda: ones(1, 2000, dtype="bfloat16").softmax(-1),
    "scaled_matmul-tensorwise": scaled(torch.tensor(1.0), torch.tensor(2.0), TENSOR),
    "scaled_matmul-rowwise": scaled(torch.ones(16, 1), torch.ones(1, 48), ROW),
    "grouped_matmul-rows": lambda: F.grouped_mm(ones(6, 8), ones(2, 8, 16), offs=ends(2, 6)),
    "grouped_matmul-columns": lambda: F.grouped_mm(ones(2, 8, 16), ones(16, 8), offs=ends(4, 8)),
    "grouped_matmul-inner": lambda: F.grouped_mm(ones(8, 8), ones(8, 16), offs=ends(4, 8)),
    "conv3d-F": lambda: F.conv3d(ones(1, 4, 3, 4, 5), ones(8, 4, 3, 3, 3)),
    "conv3d-nn": lambda: torch.nn.Conv3d(4, 8, 3)(ones(1, 4, 3, 4, 5)),
    "attention-plain": attend(),
    "attention-causal": attend(is_causal=True),
    "attention-mask": attend(attn_mask=torch.ones(4, 4).tril().bool()),
    "attention-module": lambda: torch.nn.MultiheadAttention(8, 2)(
        *[ones(4, 1, 8)] * 3, need_weights=False
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_kernel_serves(name):
    kernel = name.partition("-")[0]
    with trace() as calls:
        CALLS[name]()
    assert get(kernel).cpu is not None
    wanted = "fallback" if native.obstacle() else "cpu"
    assert (kernel, wanted) in {(c.kernel, c.backend) for c in calls}


@pytest.mark.parametrize("name", ["gemv-linear-of-1", "softmax-torch", "attention-plain"])
def test_the_trace_tells_where_it_went(name):
    """What the test above would see if the C++ kernels were passed by."""
    with use("fallback"), trace() as calls:
        CALLS[name]()
    assert {c.backend for c in calls} == {"fallback"}
