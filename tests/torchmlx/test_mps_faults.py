"""Faults reported of torch on Apple GPUs, which must not exist here: values, shapes, dtypes and
gradients against torch's CPU. A test's id names the fault: the number of its issue in
github.com/pytorch/pytorch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import torchmlx

from .opdb import flat
from .parity import data, to_numpy

LONG = 65_539  # just over 2^16, no multiple of anything


def whole(*shape: int, seed: int = 0) -> np.ndarray:
    """Small whole numbers: long sums of their products are exact in float32."""
    return data(*shape, seed=seed).round()


def pad(widths, mode="constant"):
    return lambda lib, x: lib.nn.functional.pad(x, widths, mode)


def linear(lib, x, w, *bias):
    return lib.nn.functional.linear(x, w, *bias)


def matmul(lib, a, b):
    return a @ b


def convolve(name: str, **options):
    return lambda lib, *tensors: getattr(lib.nn.functional, name)(*tensors, **options)


def on_a_channel_slice(lib, x, w):
    return lib.nn.functional.conv2d(x[:, 1:4], w, padding=1)


def in_channels_last(lib, x, w):
    x = x.contiguous(memory_format=lib.channels_last)
    return lib.nn.functional.conv2d(x, w.contiguous(memory_format=lib.channels_last), padding=1)


def addcdiv_in_place(lib, x, a, b):
    transposed = x.t().clone().t()
    transposed.addcdiv_(a.t(), b.t() + 5)
    return transposed


def masked_attention(lib, q, k, v, masked, quiet=False, dropout=0.0):
    """A mask that leaves row 1 of the first batch no key; `masked` is 1 where there is one."""
    attend = lib.nn.functional.scaled_dot_product_attention
    with lib.set_grad_enabled(not quiet):
        return attend(q, k, v, attn_mask=masked.bool(), dropout_p=dropout)


def dropped_attention(lib, x):
    """MultiheadAttention with a mask, dropout in training: no NaN, in the result or a gradient."""
    lib.manual_seed(0)
    attention = lib.nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    mask = lib.triu(lib.ones(6, 6), 1).bool()
    out, weights = attention(x, x, x, attn_mask=mask, need_weights=True)
    assert not (lib.isnan(out).any() or lib.isnan(weights).any())
    return lib.isnan(out).float(), (attention(x, x, x, attn_mask=mask)[0] * 0).sum()


def float8_there_and_back(name: str):
    def cast(lib, x):
        coded = x.detach().to(getattr(lib, name))
        return coded.view(lib.uint8), coded.float(), coded.bfloat16(), coded[3].float()

    return cast


def specials(*shape: int) -> np.ndarray:
    x = data(*shape)
    x.flat[::3], x.flat[1::7], x.flat[2::11] = np.inf, np.nan, -np.inf
    return x


ROWS = np.ones((2, 1, 4, 5), np.float32)
ROWS[0, 0, 1] = 0  # nothing to attend to
ROWS[1, 0, 2, 3:] = 0
QKV = data(2, 3, 4, 8), data(2, 3, 5, 8, seed=1), data(2, 3, 5, 8, seed=2)
CODES = np.concatenate([data(500, low=-500, high=500), np.geomspace(1e-5, 1e9, 99), specials(40)])

FAULTS: dict[str, tuple[Callable, tuple[np.ndarray, ...]]] = {
    "194922-constant-pad-of-5-dimensions": (pad((0, 0, 0, 0, 2, 0)), (whole(1, 2, 3, 256, 257),)),
    "194922-reflection-pad-of-5-dimensions": (
        pad((0, 0, 0, 0, 2, 1), "reflect"), (whole(1, 2, 3, 256, 257),),
    ),
    "194922-replication-pad-of-5-dimensions": (
        pad((1, 0, 0, 2, 2, 1), "replicate"), (whole(1, 1, 3, 256, 257),),
    ),
    "196949-reflection-pad-of-a-long-signal": (pad((5, 7), "reflect"), (whole(2, LONG),)),
    "196949-reflection-pad-of-a-large-batch": (pad((2, 3), "reflect"), (whole(LONG, 2, 4),)),
    "196949-reflection-pad-of-many-channels": (pad((2, 3), "reflect"), (whole(2, LONG, 4),)),
    "135447-replication-pad-of-a-large-batch": (pad((3, 4), "replicate"), (whole(LONG, 2, 4),)),
    "135447-replication-pad-of-many-channels": (pad((3, 4), "replicate"), (whole(2, LONG, 4),)),
    "135447-replication-pad-of-many-planes": (
        pad((1, 1, 1, 1), "replicate"), (whole(2, LONG, 2, 3),),
    ),
    "161066-pad-by-nothing": (pad(()), (data(2, 3),)),
    "161066-pad-by-an-empty-list": (pad([]), (data(2, 3),)),
    "189495-linear-with-bias-and-a-large-batch": (
        linear, (whole(LONG, 2, 3), whole(5, 3, seed=1), whole(5, seed=2)),
    ),
    "195163-batches-of-long-products": (matmul, (whole(2, 3, 32_768), whole(2, 32_768, 4, seed=1))),
    "111634-batches-of-outer-products": (
        matmul, (np.zeros((9, 9, 1), np.float32), np.ones((1, 32_769), np.float32)),
    ),
    "116769-linear-with-32769-outputs": (linear, (whole(25, 1), whole(32_769, 1, seed=1))),
    "122045-linear-with-50304-outputs": (linear, (whole(3, 7, 1), whole(50_304, 1, seed=1))),
    "189847-linear-of-single-rows": (
        linear, (data(7, 1, 33), data(20, 33, seed=1), data(20, seed=2)),
    ),
    "162730-linear-with-a-transposed-weight": (
        lambda lib, x, w, b: linear(lib, x, w.t(), b), (data(4, 6), data(6, 5, seed=1), data(5)),
    ),
    "162730-linear-with-a-stepped-weight": (
        lambda lib, x, w: linear(lib, x, w[::2, 1::2]), (data(4, 6), data(10, 12, seed=1)),
    ),
    "183419-isfinite-of-a-slice": (
        lambda lib, x: (lib.isfinite(x[:, 1:3]), lib.isfinite(x[::2].t())), (specials(7, 5),),
    ),
    "118115-addcdiv-of-a-transposed-tensor": (
        addcdiv_in_place, (data(4, 6), data(6, 4, seed=1), data(6, 4, seed=2)),
    ),
    "131736-softplus-after-moveaxis": (
        lambda lib, x: lib.nn.functional.softplus(lib.moveaxis(x, 0, -1)), (data(3, 4, 5),),
    ),
    "124834-elu-of-a-transposed-tensor": (
        lambda lib, x: lib.nn.functional.elu(x.transpose(0, 1)), (data(6, 5),),
    ),
    "124834-elu-of-a-slice": (lambda lib, x: lib.nn.functional.elu(x[1:, ::2]), (data(6, 5),)),
    "197114-conv3d": (
        convolve("conv3d", padding=1, stride=(1, 2, 1)),
        (data(2, 5, 4, 7, 6), data(6, 5, 3, 3, 3, seed=1), data(6, seed=2)),
    ),
    "193349-conv2d-in-channels-last": (in_channels_last, (data(2, 5, 6, 7), data(4, 5, 3, 3))),
    "180984-conv2d-of-a-slice-of-channels": (
        on_a_channel_slice, (data(2, 5, 6, 7), data(4, 3, 3, 3, seed=1)),
    ),
    "129207-conv1d-with-65539-channels-out": (
        convolve("conv1d", padding=1), (whole(1, 1, 3), whole(LONG, 1, 3, seed=1), whole(LONG)),
    ),
    "142836-conv2d-with-65539-channels-out": (
        convolve("conv2d"), (whole(1, 2, 3, 3), whole(LONG, 2, 2, 2, seed=1)),
    ),
    "142836-conv2d-transposed-with-65539-channels-out": (
        convolve("conv_transpose2d"), (whole(1, 2, 2, 2), whole(2, LONG, 1, 2, seed=1)),
    ),
    "152278-conv1d-over-66000-samples": (
        convolve("conv1d"), (whole(1, 4, 66_000), whole(1, 4, 10, seed=1)),
    ),
    "156707-attention-with-nothing-to-attend-to": (masked_attention, (*QKV, ROWS)),
    "167515-attention-without-gradients-and-a-4-D-mask": (
        lambda lib, *qkvm: masked_attention(lib, *qkvm, quiet=True), (*QKV, ROWS),
    ),
    "151667-attention-with-mask-and-dropout": (dropped_attention, (data(3, 6, 8),)),
    "148420-float8_e4m3fn": (float8_there_and_back("float8_e4m3fn"), (CODES,)),
    "132624-float8_e5m2": (float8_there_and_back("float8_e5m2"), (CODES,)),
    "148420-float8_e8m0fnu": (float8_there_and_back("float8_e8m0fnu"), (CODES,)),
}  # fmt: skip


# Windows that tile the image, and a dilated kernel of one row.
for kernel, options in ((2, {"stride": 2}), ((1, 3), {}), (3, {"padding": 1, "dilation": 2})):
    FAULTS[f"185663-col2im-by-{kernel}"] = (
        lambda lib, x, kernel=kernel, options=options: lib.nn.functional.fold(
            lib.nn.functional.unfold(x, kernel, **options), (6, 8), kernel, **options
        ),
        (data(2, 3, 6, 8),),
    )


def outcome(lib, function, arrays) -> tuple[list, list]:
    """The results and the gradients of all inputs, with fixed cotangents."""
    tensors = [lib.tensor(a.astype(np.float32)).requires_grad_() for a in arrays]
    results = flat(function(lib, *tensors))
    differentiable = [r for r in results if r.requires_grad]
    if not differentiable:
        return results, []
    cotangents = [lib.tensor(whole(*r.shape, seed=i)) for i, r in enumerate(differentiable)]
    return results, lib.autograd.grad(differentiable, tensors, cotangents, allow_unused=True)


def close(got, want, what: str) -> None:
    assert (got is None) == (want is None), what
    if want is None:
        return
    assert tuple(got.shape) == tuple(want.shape), what
    assert str(got.dtype) == str(want.dtype), what
    mine, theirs = to_numpy(got), to_numpy(want)
    finite = np.abs(theirs[np.isfinite(theirs)]).max(initial=1.0)  # the scale of what is summed
    np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=2e-6 * finite, err_msg=what)


@pytest.mark.parametrize("name", FAULTS)
def test_fault(name):
    function, arrays = FAULTS[name]
    theirs, their_slopes = outcome(torch, function, arrays)
    ours, slopes = outcome(torchmlx, function, arrays)
    assert len(ours) == len(theirs)
    for i, (got, want) in enumerate(zip(ours, theirs, strict=True)):
        close(got, want, f"result {i}")
    for i, (got, want) in enumerate(zip(slopes, their_slopes, strict=True)):
        close(got, want, f"gradient {i}")


def numbered(rows: int, width: int):
    """bfloat16 [rows, width], every element its row's number modulo 251."""
    return (torchmlx.arange(rows) % 251).bfloat16()[:, None].expand(rows, width).contiguous()


@pytest.mark.huge
def test_fault_189960_cat_beyond_2_31():
    """Of elements: MLX counts a single dimension in 32 bits, and says so."""
    width = 2**29 + 77
    given = np.resize(np.arange(97, dtype=np.int8), (2, width))
    parts = [torchmlx.from_numpy(given)] * 2
    wide = torchmlx.cat(parts, 1).numpy()
    assert wide.shape == (2, 2 * width)
    assert np.array_equal(wide[:, :width], given)
    assert np.array_equal(wide[:, width:], given)
    del wide
    tall = torchmlx.cat(parts).numpy()
    assert np.array_equal(tall[:2], given)
    assert np.array_equal(tall[2:], given)


@pytest.mark.huge
def test_fault_188756_embedding_beyond_2_31():
    """First a table of more elements, then a result."""
    rows = 2**21 + 3
    indices = torchmlx.tensor([0, 1, 2**20, rows - 2, rows - 1])
    found = torchmlx.nn.functional.embedding(indices, numbered(rows, 1024))
    assert found.float().mean(1).tolist() == [i % 251 for i in indices.tolist()]
    assert bool((found == found[:, :1]).all())
    indices = torchmlx.arange(rows) % 7
    found = torchmlx.nn.functional.embedding(indices, numbered(7, 1024))
    for column in (0, 1023):
        assert bool((found[:, column] == indices).all())


@pytest.mark.huge
def test_fault_185663_col2im_beyond_2_31():
    """First columns of more elements, which overlap, then an image."""
    fold = torchmlx.nn.functional.fold
    side = 4096
    columns = torchmlx.ones(1, 16 * 8, side * side + 1, dtype=torchmlx.bfloat16)
    image = fold(columns[..., :-1], (side + 3, side + 3), 4)
    counts = np.minimum(np.minimum(np.arange(side + 3) + 1, 4), np.arange(side + 3)[::-1] + 1)
    want = torchmlx.tensor(np.outer(counts, counts)).bfloat16()
    assert bool((image[0] == want).all())
    del columns, image
    height, width = 2**14, 2**13 + 2
    columns = numbered(16 * 4, height * width // 4)[None]
    image = fold(columns, (height, width), 2, stride=2)
    assert image.shape == (1, 16, height, width)
    for row, column in ((0, 0), (1, 0), (0, 1), (1, 1)):
        tap = image[0, :, row::2, column::2]
        want = torchmlx.arange(16) * 4 + 2 * row + column
        assert bool((tap == want[:, None, None]).all())


@pytest.mark.slow
def test_fault_111634_in_full():
    """The reported sizes: 268 million zeros, of which some were ones."""
    product = torchmlx.zeros(911, 9, 1) @ torchmlx.ones(1, 32_769)
    assert product.shape == (911, 9, 32_769)
    assert not bool(product.any())
