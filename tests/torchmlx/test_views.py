"""Writes through views, and views of views, reach the base; strides and offsets are torch's."""

from __future__ import annotations

import pytest
import torch as real

import torchmlx


def test_a_write_through_flatten_reaches_a_weight(torch):
    w = torch.zeros(2, 2, 2)
    w.flatten(1).copy_(torch.arange(8.0).view(2, 4))
    assert w.tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_a_prefix_of_a_buffer_is_filled(torch):
    buffer = torch.zeros(5)
    buffer[:3].copy_(torch.tensor([1.0, 2.0, 3.0]))
    buffer.narrow(0, 3, 1).fill_(9)
    assert buffer.tolist() == [1, 2, 3, 9, 0]


def test_setitem_of_a_view_by_an_index_tensor(torch):
    freqs = torch.zeros(2, 2, 4)
    freqs[0][..., torch.tensor([1, 3])] = torch.tensor([5.0, 6.0])
    assert freqs[0].tolist() == [[0, 5, 0, 6], [0, 5, 0, 6]]
    assert freqs[1].tolist() == [[0] * 4] * 2


def test_a_view_of_a_view_writes_and_reads_the_base(torch):
    x = torch.arange(12).view(3, 4)
    y = x.t()[1:3].transpose(0, 1)
    y[2, 0] = -1
    assert x[2].tolist() == [8, -1, 10, 11]
    x[0, 2] = -2
    assert y.tolist() == [[1, -2], [5, 6], [-1, 10]]


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("view", (4,), [7, 7, 7, 7]),
        ("reshape", (4,), [7, 7, 7, 7]),
        ("transpose", (0, 1), [7, 7, 7, 7]),
        ("permute", (1, 0), [7, 7, 7, 7]),
        ("select", (0, 1), [0, 1, 7, 7]),
        ("narrow", (1, 1, 1), [0, 7, 2, 7]),
        ("unsqueeze", (0,), [7, 7, 7, 7]),
        ("diagonal", (), [7, 1, 2, 7]),
        ("unfold", (0, 1, 1), [7, 7, 7, 7]),
        ("as_strided", ((2,), (1,), 1), [0, 7, 7, 3]),
        ("movedim", (0, 1), [7, 7, 7, 7]),
        ("t", (), [7, 7, 7, 7]),
        ("detach", (), [7, 7, 7, 7]),
        ("squeeze", (), [7, 7, 7, 7]),
        ("expand", (2, 2), [7, 7, 7, 7]),
        ("ravel", (), [7, 7, 7, 7]),
        ("unflatten", (0, (1, 2)), [7, 7, 7, 7]),
    ],
)
def test_every_view_operation_writes_through(torch, name, arguments, expected):
    x = torch.arange(4).view(2, 2)
    getattr(x, name)(*arguments).fill_(7)
    assert x.flatten().tolist() == expected


@pytest.mark.parametrize("name", ["split", "chunk", "unbind"])
def test_pieces_are_views(torch, name):
    x = torch.arange(4).view(2, 2)
    arguments = {"split": (1, 0), "chunk": (2, 0), "unbind": (0,)}[name]
    getattr(x, name)(*arguments)[1].zero_()
    assert x.tolist() == [[0, 1], [0, 0]]


def test_reshape_of_a_transposed_tensor_is_a_copy(torch):
    x = torch.arange(6).view(2, 3)
    x.t().reshape(6).zero_()
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.t().view(6)


def test_steps_of_slices(torch):
    x = torch.arange(10)
    x[1::3] = torch.tensor([-1, -2, -3])
    assert x.tolist() == [0, -1, 2, 3, -2, 5, 6, -3, 8, 9]
    assert x[1::3][::2].stride() == (6,)
    assert x[1::3][::2].tolist() == [-1, -3]


def test_an_expanded_tensor_cannot_be_written_but_can_be_filled(torch):
    x = torch.tensor([1.0, 2.0])
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        x.expand(3, 2).add_(1)
    x.expand(3, 2).fill_(5)
    assert x.tolist() == [5, 5]


def test_a_view_below_an_expansion_writes_the_element_it_picks(torch):
    x = torch.zeros(2)
    x.expand(3, 2)[2].copy_(torch.tensor([4.0, 5.0]))
    assert x.tolist() == [4, 5]


def test_a_window_of_windows_writes_only_what_it_shows(torch):
    x = torch.arange(5.0)
    x.unfold(0, 3, 1)[2].mul_(10)
    assert x.tolist() == [0, 1, 20, 30, 40]


def test_in_place_operations_of_all_kinds_reach_the_base(torch):
    x = torch.arange(6.0).view(2, 3)
    row = x[1]
    row.mul_(2).add_(1).clamp_(max=10)
    assert x[1].tolist() == [7, 9, 10]
    row.masked_fill_(torch.tensor([True, False, False]), 0)
    row.index_add_(0, torch.tensor([2, 2]), torch.tensor([1.0, 1.0]))
    assert x.tolist() == [[0, 1, 2], [0, 9, 12]]


def test_complex_views(torch):
    z = torch.tensor([1 + 2j, 3 - 4j])
    pairs = torch.view_as_real(z)
    assert pairs.tolist() == [[1, 2], [3, -4]]
    pairs[0, 1] = 9
    z.real[1] = 7
    z.imag.mul_(2)
    assert z.tolist() == [1 + 18j, 7 - 8j]
    assert (z.imag.stride(), z.imag.storage_offset()) == ((2,), 1)
    w = torch.zeros(2, 2)
    torch.view_as_complex(w)[1] = 3 + 4j
    assert w.tolist() == [[0, 0], [3, 4]]
    assert torch.ones(2).real.tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="imag is not implemented"):
        _ = torch.ones(2).imag


def test_the_same_bytes_as_another_dtype(torch):
    x = torch.tensor([1.0, -2.0])
    bits = x.view(torch.int32)
    assert bits.tolist() == [0x3F800000, 0xC0000000 - 2**32]
    bits[0] = 0x40400000
    assert x.tolist() == [3, -2]
    halves = x.view(torch.int16)
    assert (halves.shape, halves.stride()) == ((4,), (1,))
    with pytest.raises(RuntimeError, match="divisible"):
        torch.zeros(3).view(torch.float64)


def test_layout_answers(torch):
    x = torch.zeros(2, 3, 4)
    y = x.transpose(0, 2)
    assert y.stride() == (1, 4, 12)
    assert not y.is_contiguous()
    assert y.contiguous().stride() == (6, 2, 1)
    assert y[1].storage_offset() == 1
    assert y[:, None].stride() == (1, 12, 4, 12)
    assert x[1, 2, 1:].storage_offset() == 21
    assert x.expand(5, 2, 3, 4).stride() == (0, 12, 4, 1)
    assert x.unfold(2, 2, 1).stride() == (12, 4, 1, 1)
    assert x.diagonal(0, 0, 1).stride() == (1, 16)
    assert torch.zeros(4)[None].stride() == (4, 1)


LAYOUTS = {
    "transposed": lambda x: x.transpose(0, 2),
    "permuted": lambda x: x.permute(1, 2, 0),
    "transposed and stepped": lambda x: x.transpose(0, 2)[::2],
    "expanded": lambda x: x[:1].expand(2, 3, 4),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_of_results_are_torchs(layout):
    """Of operations between elementwise ones, which keep the order of dimensions, and others."""

    def strides(torch):
        x = LAYOUTS[layout](torch.rand(2, 3, 4))
        index = torch.tensor([0])
        results = [
            x.cumsum(1), x.cumprod(0), x.tril(), x.triu(), x.flip(0), x.flip(0, 2), x.fliplr(),
            x.rot90(), x.masked_fill(x > 0.5, 0), *x.sort(1), x.index_fill(0, index, 1),
            x.renorm(2, 0, 1.0), x.bernoulli(), x.logcumsumexp(1), x.roll(1, 0), x.clamp(0),
            x.prelu(torch.tensor(0.5)), torch.nn.functional.glu(x.repeat(1, 1, 2), 2),
            torch.nn.functional.glu(x.transpose(0, 2)[: 2 * (x.shape[2] // 2)], 0),
            torch.nn.functional.softshrink(x), torch.nn.functional.hardshrink(x),
            torch.polygamma(1, x), torch.special.xlog1py(x, 2.0),
        ]  # fmt: skip
        return [r.stride() for r in results]

    assert strides(torchmlx) == strides(real)


@pytest.mark.parametrize("name", ["contiguous_format", "channels_last", "preserve_format"])
def test_memory_formats_are_kept(name):
    def strides(torch):
        x, form = torch.rand(2, 3, 4, 5).transpose(1, 3), getattr(torch, name)
        likes = torch.zeros_like, torch.empty_like, torch.rand_like, torch.ones_like
        results = [like(x, memory_format=form) for like in likes]
        results += [torch.full_like(x, 2.0, memory_format=form), x.clone(memory_format=form)]
        last = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
        for y in (x, last):
            results += [y.half(memory_format=form), y.cpu(memory_format=form)]
        return [r.stride() for r in results]

    assert strides(torchmlx) == strides(real)


def test_results_keep_the_order_of_dimensions(torch):
    x = torch.zeros(2, 3).t()
    assert (x + 1).stride() == (1, 3)
    assert x.clone().stride() == (1, 3)
    assert torch.zeros_like(x).stride() == (1, 3)
    assert x.double().stride() == (1, 3)
    assert (x + torch.zeros(3, 2)).stride() == (1, 3)
    assert torch.zeros(2, 3, 4).mT[torch.tensor([0, 1])].stride() == (12, 1, 4)


def test_channels_last(torch):
    x = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    assert x.stride() == (24, 1, 8, 2)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert not x.is_contiguous()
    assert x[0, 1, 0].tolist() == [12, 13, 14, 15]
    assert (x * 2).stride() == (24, 1, 8, 2)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda t: t.zeros(4).view(3), RuntimeError),
        (lambda t: t.zeros(4).view(-1, -1), RuntimeError),
        (lambda t: t.zeros(2).expand(3), RuntimeError),
        (lambda t: t.zeros(2).transpose(0, 1), IndexError),
        (lambda t: t.zeros(2, 2).permute(0, 0), RuntimeError),
        (lambda t: t.zeros(2).narrow(0, 1, 2), RuntimeError),
        (lambda t: t.zeros(2).select(0, 2), IndexError),
        (lambda t: t.zeros(2).unsqueeze(3), IndexError),
        (lambda t: t.zeros(3).split([1, 1]), RuntimeError),
        (lambda t: t.tensor(1).unbind(), IndexError),
        (lambda t: t.zeros(2).as_strided((3,), (1,)), RuntimeError),
        (lambda t: t.zeros(2).view(), TypeError),
        (lambda t: t.zeros(2).mT, RuntimeError),
        (lambda t: t.cat([]), ValueError),
    ],
)
def test_errors(torch, make, error):
    with pytest.raises(error):
        make(torch)
