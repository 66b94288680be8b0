"""ATen's own forms: reductions and modes as numbers, copies of views, old names."""

from __future__ import annotations

import numpy as np
import pytest

import torchmlx

from .parity import data, parity, same

torch = pytest.importorskip("torch", reason="torch 2.13 CPU is the oracle of parity tests")

ONE = ("float32",)
X, Y, SIGN = data(4, 3), data(4, 3, seed=1), np.array([1, -1, 1, -1])


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_losses(reduction):
    shares = np.abs(Y)
    parity("kl_div", X, shares, reduction, dtypes=ONE)
    parity("kl_div", X, Y, reduction, log_target=True, dtypes=ONE)
    parity("binary_cross_entropy_with_logits", X, shares, None, None, reduction, dtypes=ONE)
    parity("cosine_embedding_loss", X, Y, SIGN, 0.1, reduction, dtypes=ONE)
    parity("hinge_embedding_loss", X[:, 0], SIGN, 0.5, reduction, dtypes=ONE)
    parity("margin_ranking_loss", X[:, 0], Y[:, 0], SIGN, 0.5, reduction, dtypes=ONE)
    parity("triplet_margin_loss", X, Y, data(4, 3, seed=2), 1.0, 2.0, 1e-6, True, reduction,
           dtypes=ONE)  # fmt: skip
    parity("poisson_nll_loss", X, shares, True, False, 1e-8, reduction, dtypes=ONE)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_embedding_bag(mode):
    weight, indices, offsets = data(6, 3), np.array([1, 2, 4, 5, 4, 3]), np.array([0, 2, 2])
    results = [
        lib.embedding_bag(lib.tensor(weight), lib.tensor(indices), lib.tensor(offsets), mode=mode)
        for lib in (torch, torchmlx)
    ]
    same(results[1][0], results[0][0])
    if mode:  # of a sum torch's CPU kernel leaves the others empty
        same(results[1][1:3], results[0][1:3])
    if mode == 2:
        same(results[1][3], results[0][3])


def test_convolutions():
    x, w, b = data(2, 4, 9), data(6, 2, 3, seed=1), data(6, seed=2)
    parity("convolution", x, w, b, [2], [1], [1], False, [0], 2, dtypes=ONE, tolerance=1e-5)
    w = data(4, 3, 3, seed=1)
    parity("convolution", x, w, data(6), [2], [1], [1], True, [1], 2, dtypes=ONE, tolerance=1e-5)
    arguments = data(7, 2, 4), data(3, 4, 5), data(5)  # torch refuses other orders in memory
    theirs, ours = (lib.conv_tbc(*map(lib.tensor, arguments), 1) for lib in (torch, torchmlx))
    same(ours, theirs, 1e-5)


def test_norms():
    for name in ("frobenius_norm", "nuclear_norm"):
        parity(name, data(3, 4), (0, 1), True, dtypes=ONE, tolerance=1e-5)
    x, w, b = data(2, 4, 3), data(4), data(4, seed=1)
    parity("native_batch_norm", x, w, b, None, None, True, 0.1, 1e-5, dtypes=ONE, tolerance=1e-5)
    mean, spread = data(4, seed=2), np.abs(data(4, seed=3))
    parity("native_batch_norm", x, w, b, mean, spread, False, 0.1, 1e-5, dtypes=ONE, tolerance=1e-5)


@pytest.mark.parametrize("name", ["dropout", "alpha_dropout", "feature_dropout", "native_dropout",
                                  "feature_alpha_dropout", "rrelu"])  # fmt: skip
def test_dropout_draws_torchs_masks(name):
    arguments = (0.1, 0.3, True) if name == "rrelu" else (0.4, True)
    results = []
    for lib in (torch, torchmlx):
        lib.manual_seed(3)
        results.append(getattr(lib, name)(lib.tensor(data(5, 6)), *arguments))
        if name != "native_dropout":
            x = lib.tensor(data(5, 6))
            getattr(lib, name + "_")(x, *arguments)
            results[-1] = (results[-1], x)
    same(results[1], results[0])


def test_range():
    for arguments in ((0, 5), (1, 2, 0.25), (3, -3, -1.5), (2, 2)):
        parity("range", *arguments)
    parity("range", 0, -1)
    parity("range", 0, 5, dtype=torch.int64)


def test_methods_as_functions():
    for name, *rest in (("fill_", 2.5), ("zero_",), ("as_strided_", (2, 2), (1, 2))):
        parity(name, data(3, 4), *rest, dtypes=ONE)
    x = torchmlx.ones(2, requires_grad=True)
    assert not torchmlx.detach_(x * 2).requires_grad


def test_a_layout_in_memory():
    theirs, ours = (lib.empty_permuted((2, 3, 4), (1, 0, 2)) for lib in (torch, torchmlx))
    assert ours.stride() == theirs.stride()
    assert tuple(ours.shape) == (2, 3, 4)


def test_a_copy_shares_nothing():
    x = torchmlx.arange(6.0)
    torchmlx.view_copy(x, (2, 3)).zero_()
    torchmlx.alias_copy(x).zero_()
    torchmlx.slice_copy(x, 0, 1, 5, 2).zero_()
    for part in torchmlx.split_copy(x, 3):
        part.zero_()
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    parity("slice_copy", data(3, 5), 1, 0, 5, 2, dtypes=ONE)


def test_to_takes_flags_by_position():
    x = torchmlx.ones(2)
    assert x.to(torchmlx.float32, False, True).data_ptr() != x.data_ptr()
    assert x.to("cpu", torchmlx.float32, True) is x
    parsed = torchmlx._C._nn._parse_to("cpu", torchmlx.float16, True)
    assert parsed == (torchmlx.device("cpu"), torchmlx.float16, True, None)


def test_a_scattered_windows_gradient():
    """Nothing flows to what was overwritten. torch 2.13 has it the other way round."""
    x, src = torchmlx.ones(3, requires_grad=True), torchmlx.ones(1, requires_grad=True)
    torchmlx.as_strided_scatter(x, src, (1,), (1,), 1).sum().backward()
    assert x.grad.tolist() == [1.0, 0.0, 1.0]
    assert src.grad.tolist() == [1.0]
