"""torch.nn.functional against torch 2.13: values, dtypes and errors, one line a case."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import torchmlx

from .parity import data, parity, torch

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
# Sums of a few dozen products in another order.
SUMS = 1e-5
HALF_SUMS = {"dtypes": ("bfloat16",), "tolerance": 2e-2}
labels = np.array([1, 0, 3])


def F(name: str, *args, **kwargs) -> None:
    parity(f"nn.functional.{name}", *args, **kwargs)


ACTIVATIONS = (
    "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus",
    "softsign", "hardtanh", "hardswish", "hardsigmoid", "glu", "tanhshrink", "logsigmoid",
    "hardshrink", "softshrink", "sigmoid", "tanh",
)  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name):
    F(name, data(3, 6, low=-8, high=8))
    F(name, data(0, 4))
    F(name, np.arange(6) - 3)


def test_activation_settings():
    F("gelu", data(50), approximate="tanh")
    F("gelu", data(5), approximate="other")
    F("leaky_relu", data(3, 4), 0.2, True)
    F("threshold", data(3, 4), 0.1, 2.0)
    F("softplus", data(3, 4, low=-30, high=30), beta=2, threshold=5)
    F("prelu", data(2, 3, 4), data(3))
    F("prelu", data(2, 3, 4), data(1))
    F("prelu", data(2, 3, 4), data(2))
    F("glu", data(3, 5))


def test_softmax():
    F("softmax", data(3, 5), 1)
    F("softmax", data(3, 5), -3)
    F("log_softmax", data(3, 5, 2), 1)
    F("softmin", data(3, 5), 0)
    F("softmax", data(2, 3, 4))
    F("softmax", np.arange(4), 0)


def test_linear():
    F("linear", data(2, 7, 5), data(3, 5), data(3), tolerance=1e-2, dtypes=("float16", "bfloat16"))
    F("linear", data(2, 7, 5), data(3, 5), data(3), dtypes=("float32",))
    F("linear", data(5), data(5), tolerance=1e-2)
    F("linear", data(0, 5), data(3, 5), data(3))
    F("linear", data(2, 5), data(3, 4))
    F("linear", np.arange(6).reshape(2, 3), np.arange(3).reshape(1, 3))
    F("bilinear", data(3, 4), data(3, 5), data(2, 4, 5), data(2), dtypes=("float32",))


def test_embedding():
    F("embedding", np.array([[1, 2], [0, 2]]), data(3, 4))
    F("embedding", np.array([3]), data(3, 4))
    F("embedding", np.array([-1]), data(3, 4))
    F("embedding", np.zeros((0, 2), np.int64), data(3, 4))
    F("embedding", np.array([1, 2]), data(3, 4), max_norm=1.0, dtypes=("float32",))
    F("one_hot", np.array([[0, 2], [1, 1]]))
    F("one_hot", np.array([0, 2]), 2)


@pytest.mark.parametrize("mode", ("sum", "mean", "max"))
def test_embedding_bag(mode):
    F("embedding_bag", np.array([1, 2, 4, 0]), data(5, 3), np.array([0, 0, 3]), mode=mode)
    F("embedding_bag", np.array([[1, 2], [4, 1]]), data(5, 3), mode=mode, padding_idx=1)


def test_norms():
    F("layer_norm", data(3, 4, 5), (4, 5), data(4, 5), data(4, 5))
    F("layer_norm", data(3, 4, 5), (4,))
    F("rms_norm", data(3, 4, 5), (5,), data(5))
    F("rms_norm", data(3, 4, 5, low=-1e-4, high=1e-4), (5,))
    F("group_norm", data(3, 4, 5), 2, data(4), data(4))
    F("group_norm", data(3, 4, 5), 3)
    F("instance_norm", data(3, 4, 5), weight=data(4), bias=data(4), tolerance=2e-2)
    F("batch_norm", data(3, 4, 5), data(4), data(4, low=0.1), data(4), data(4))
    F("batch_norm", data(3, 4, 5), None, None, training=True)
    F("local_response_norm", data(2, 5, 4), 3)
    for p in (1, 2, 3.5, float("inf")):
        F("normalize", data(3, 4, 5), p=p, dim=-1)


SPATIAL = {1: (9,), 2: (9, 7), 3: (5, 6, 7)}
CONVOLUTIONS = [(1, 0, 1, 1), (2, 1, 1, 2), (1, 2, 2, 1), (3, 1, 2, 4)]


@pytest.mark.parametrize("n", SPATIAL)
@pytest.mark.parametrize("stride, padding, dilation, groups", CONVOLUTIONS)
def test_convolution(n, stride, padding, dilation, groups):
    x, w = data(2, 4, *SPATIAL[n]), data(8, 4 // groups, *(3,) * n, seed=1)
    for settings in ({"dtypes": ("float32",), "tolerance": SUMS}, HALF_SUMS):
        F(f"conv{n}d", x, w, data(8), stride, padding, dilation, groups, **settings)
    back = data(4, 8 // groups, *(3,) * n, seed=2)
    extra = stride - 1
    args = (x, back, data(8), stride, padding, extra, groups, dilation)
    F(f"conv_transpose{n}d", *args, dtypes=("float32",), tolerance=SUMS)


@pytest.mark.parametrize("n", SPATIAL)
def test_convolution_edges(n):
    x, w = data(2, 4, *SPATIAL[n]), data(3, 4, *(3,) * n, seed=1)
    one = {"dtypes": ("float32",), "tolerance": SUMS}
    F(f"conv{n}d", x, w, padding="same", dilation=2, **one)
    F(f"conv{n}d", x, w, padding="valid", **one)
    F(f"conv{n}d", x, w, padding="same", stride=2, **one)
    F(f"conv{n}d", data(4, *SPATIAL[n]), w, **one)
    F(f"conv{n}d", data(0, 4, *SPATIAL[n]), w, **one)
    F(f"conv{n}d", data(2, 5, *SPATIAL[n]), w, **one)
    F(f"conv{n}d", x, data(3, 4, *(30,) * n), **one)
    many = data(2, 40, *(3,) * n), data(2, 40, *(2,) * n, seed=1)
    F(f"conv{n}d", *many, dtypes=("float32",), tolerance=1e-4)


@pytest.mark.parametrize("n", SPATIAL)
def test_pool(n):
    x = data(2, 3, *SPATIAL[n])
    floats = ("float32",) if n == 3 else ("float32", "bfloat16")
    for kernel, stride, padding, dilation, ceil in ((2, None, 0, 1, False), (3, 2, 1, 2, True)):
        F(f"max_pool{n}d", x, kernel, stride, padding, dilation, ceil)
        F(f"max_pool{n}d", x, kernel, stride, padding, dilation, ceil, return_indices=True)
        for include in (True, False):
            F(f"avg_pool{n}d", x, kernel, stride, padding, ceil, include, dtypes=floats)
    for size in (1, 3, 4):
        F(f"adaptive_avg_pool{n}d", x, size)
        F(f"adaptive_max_pool{n}d", x, size, return_indices=True)
    F(f"max_pool{n}d", x, 20)
    F(f"avg_pool{n}d", data(0, 3, *SPATIAL[n]), 2, dtypes=floats)


def test_pool_finds_rows_apart():
    # mx.max over strided windows that overlap with a dilation answers with the next row's values.
    F("max_pool1d", data(1, 3, 9), 3, 1, 1, 2)


def test_pool_nan_and_norms():
    x = data(1, 1, 6, 6)
    x[0, 0, 2, 2:4] = np.nan
    F("max_pool2d", x, 3, 2, 1, return_indices=True)
    F("lp_pool2d", data(2, 3, 6, 6), 2, 2, dtypes=("float32",))


MODES = {1: ("linear",), 2: ("bilinear", "bicubic"), 3: ("trilinear",)}
RESIZES = (
    {"size": 5},
    {"scale_factor": 2},
    {"scale_factor": 1.7},
    {"scale_factor": 0.6},
    {"scale_factor": 1.7, "recompute_scale_factor": True},
    {"size": 1},
)


@pytest.mark.parametrize("n", SPATIAL)
@pytest.mark.parametrize("settings", RESIZES)
def test_interpolate(n, settings):
    x = data(2, 3, *SPATIAL[n])
    for mode in ("nearest", "nearest-exact"):
        F("interpolate", x, mode=mode, tolerance=0, **settings)
    F("interpolate", x, mode="area", **settings)
    for mode in MODES[n]:
        for align in (None, True):
            F("interpolate", x, mode=mode, align_corners=align, tolerance=2e-2, **settings)
            one = {"dtypes": ("float32",), "tolerance": SUMS}
            F("interpolate", x, mode=mode, align_corners=align, **one, **settings)


def test_interpolate_errors():
    F("interpolate", data(2, 3), scale_factor=2)
    F("interpolate", data(2, 3, 4), scale_factor=2, mode="bilinear")
    F("interpolate", data(2, 3, 4), scale_factor=2, align_corners=True)
    F("interpolate", data(2, 3, 4))
    F("interpolate", data(2, 3, 4), size=2, scale_factor=2)


@pytest.mark.parametrize("mode", ("constant", "reflect", "replicate", "circular"))
@pytest.mark.parametrize("pads", ((1, 1), (2, 0), (0, -1), (3, 3), (-1, 2), (9, 9)))
def test_pad(mode, pads):
    for n, spatial in SPATIAL.items():
        F("pad", data(2, 3, *spatial), pads * n, mode=mode, tolerance=0)
        F("pad", data(3, *spatial), pads * n, mode=mode, tolerance=0)


def test_pad_edges():
    F("pad", data(2, 3), ())
    F("pad", data(2, 3), (1, 2), value=3.0)
    F("pad", np.arange(6).reshape(2, 3), (1, 2, 0, -1))
    F("pad", np.arange(6).reshape(2, 3) > 2, (1, 2))
    F("pad", data(2, 3), (1, 2, 3))
    F("pad", data(2, 3), (-2, -2))
    F("pad", data(2, 3, 4), (1, 1), mode="other")


def test_attention():
    one = {"dtypes": ("float32",), "tolerance": 5e-6}
    q, k = data(2, 4, 5, 8), data(2, 4, 7, 8, seed=1)
    sdpa = "scaled_dot_product_attention"
    for settings in (one, HALF_SUMS):
        F(sdpa, q, k, k, **settings)
        F(sdpa, q, k, k, is_causal=True, **settings)
        F(sdpa, q, data(2, 2, 7, 8), data(2, 2, 7, 6), enable_gqa=True, scale=0.5, **settings)
        F(sdpa, q, k, k, data(5, 7), **settings)
    mask = data(2, 1, 5, 7) > 0
    mask[0, 0, 2] = False
    F(sdpa, q, k, k, mask, **one)  # a row that sees nothing gives 0
    F(sdpa, data(5, 8), data(7, 8), data(7, 8), **one)
    F(sdpa, data(3, 5, 8), data(3, 7, 8), data(3, 7, 8), is_causal=True, **one)
    F(sdpa, data(2, 3, 4, 5, 8), data(2, 3, 4, 7, 8), data(2, 3, 4, 7, 8), data(5, 7), **one)
    F(sdpa, data(2, 0, 5, 8), data(2, 0, 7, 8), data(2, 0, 7, 8), **one)
    F(sdpa, data(5, 8), data(5, 8), data(5, 8), data(5, 5), is_causal=True, **one)


def test_attention_with_mask_and_causal():
    # torch takes both for [B, H, L, E] whose last dimension is dense, and refuses otherwise.
    results = []
    for lib in (torch, torchmlx):
        q, k = lib.tensor(data(2, 4, 5, 8)), lib.tensor(data(2, 4, 7, 8, seed=1))
        mask = lib.tensor(data(2, 1, 5, 7) > 0)
        attend = lib.nn.functional.scaled_dot_product_attention
        results.append(attend(q, k, k, mask, is_causal=True).numpy())
    np.testing.assert_allclose(results[1], results[0], 5e-6, 5e-6)


@pytest.mark.parametrize("reduction", ("none", "mean", "sum"))
def test_losses(reduction):
    def loss(name, *args, **kwargs):
        half = kwargs.pop("half", 2e-2)  # None: torch has no half-precision kernel
        if half:
            F(name, *args, reduction=reduction, dtypes=("bfloat16",), tolerance=half, **kwargs)
        F(name, *args, reduction=reduction, dtypes=("float32",), tolerance=SUMS, **kwargs)

    x, y, u = data(3, 5), data(3, 5, seed=1), data(3, 5, low=0.05, high=0.95)
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
        loss(name, x, y)
    loss("cross_entropy", x, labels, data(5, low=0.1), ignore_index=0, label_smoothing=0.2)
    loss("cross_entropy", x, u)
    loss("cross_entropy", data(5), np.array(2))
    loss("nll_loss", data(3, 5, 2), np.array([[1, 2], [0, 4], [3, 3]]))
    loss("binary_cross_entropy", u, u[::-1].copy(), u)
    loss("binary_cross_entropy_with_logits", x, u, u, pos_weight=data(5, low=0.1))
    loss("kl_div", x, u)
    loss("poisson_nll_loss", x, u, full=True)
    loss("gaussian_nll_loss", x, y, u)
    loss("multi_margin_loss", x, labels, half=None)
    loss("multilabel_margin_loss", x, np.array([[0, 3, -1, 1, 1]] * 3), half=None)
    sign = np.array([1, -1, 1])
    loss("cosine_embedding_loss", x, y, sign, 0.3)
    loss("triplet_margin_loss", x, y, u, swap=True, half=5e-2)
    loss("margin_ranking_loss", data(3), data(3, seed=1), sign, 0.1)
    loss("hinge_embedding_loss", data(3), sign)
    loss("soft_margin_loss", data(3), sign)


def test_loss_errors():
    F("cross_entropy", data(3, 5), np.array([1, 2, 7]))
    F("cross_entropy", data(3, 5), np.array([1, 2]))
    F("cross_entropy", data(3, 5), np.array([-100] * 3))
    F("cross_entropy", data(0, 5), np.zeros(0, np.int64))
    F("binary_cross_entropy", data(3), data(3))
    F("mse_loss", data(3), data(3), reduction="other")


@pytest.mark.parametrize("reduction", ("none", "mean", "sum"))
def test_ctc(reduction):
    scores = data(7, 3, 5)
    logp = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    targets = np.array([[1, 1, 2], [3, 4, 0], [1, 0, 0]])
    lengths = (np.array([7, 6, 5]), np.array([3, 2, 1]))
    one = {"dtypes": ("float32",), "tolerance": SUMS}
    F("ctc_loss", logp, targets, *lengths, reduction=reduction, **one)
    F("ctc_loss", logp, np.array([1, 1, 2, 3, 4, 1]), *lengths, reduction=reduction, **one)


def test_rearrange():
    F("pixel_shuffle", data(2, 8, 3, 4), 2)
    F("pixel_unshuffle", data(2, 2, 4, 6), 2)
    F("channel_shuffle", data(2, 6, 3, 2), 3)
    F("pixel_shuffle", data(2, 7, 3, 4), 2)
    F("unfold", data(2, 3, 8, 7), (2, 3), 2, 1, 1)
    F("fold", data(2, 12, 20), (7, 8), 2, 1, 1, 2, tolerance=2e-2)
    F("cosine_similarity", data(3, 4), data(4), dim=-1)
    for p in (1, 2, float("inf")):
        F("pairwise_distance", data(3, 4), data(3, 4, seed=1), p)


@pytest.mark.parametrize("padding", ("zeros", "border", "reflection"))
@pytest.mark.parametrize("align", (False, True))
def test_grid_sample(padding, align):
    settings = {"padding_mode": padding, "align_corners": align, "tolerance": SUMS}
    settings["dtypes"] = ("float32",)
    for mode in ("bilinear", "nearest", "bicubic"):
        F("grid_sample", data(2, 3, 4, 5), data(2, 6, 7, 2, seed=1), mode, **settings)
    F("grid_sample", data(2, 3, 4, 5, 3), data(2, 6, 7, 2, 3, seed=1), **settings)
    theta = data(2, 2, 3)
    F("affine_grid", theta, (2, 3, 4, 5), align, dtypes=("float32",), tolerance=SUMS)


def test_max_unpool():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        F("max_unpool2d", data(1, 1, 2, 2), np.array([[[[0, 3], [12, 15]]]]), 2)
        F("max_unpool1d", data(1, 1, 2), np.array([[[1, 30]]]), 2)
