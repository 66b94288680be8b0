"""Modules against torch's: repr, names of the state, numbers after copying it, initial values."""

from __future__ import annotations

import numpy as np
import pytest

import torchmlx

from .parity import data, torch

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def flat(value) -> list:
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in flat(item)]
    return [] if value is None else [value]


def given(lib, value):
    if isinstance(value, tuple):
        return tuple(given(lib, v) for v in value)
    return lib.tensor(value) if isinstance(value, np.ndarray) else value


def same(name: str, args: tuple, *inputs, call: dict | None = None, **settings) -> None:
    """Build both modules, copy torch's state, and compare what they say and compute."""
    theirs = getattr(torch.nn, name)(*args, **settings).eval()
    ours = getattr(torchmlx.nn, name)(*args, **settings).eval()
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    state = {k: torchmlx.tensor(v.numpy()) for k, v in theirs.state_dict().items()}
    ours.load_state_dict(state)
    results = []
    for lib, module in ((torch, theirs), (torchmlx, ours)):
        kwargs = {k: given(lib, v) for k, v in (call or {}).items()}
        results.append(flat(module(*given(lib, inputs), **kwargs)))
    assert len(results[0]) == len(results[1])
    for want, got in zip(*results, strict=True):
        np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), 1e-5, 1e-5)


PLAIN = (
    "ReLU", "ReLU6", "SiLU", "GELU", "Mish", "ELU", "CELU", "SELU", "LeakyReLU", "GLU",
    "Hardtanh", "Hardswish", "Hardsigmoid", "Hardshrink", "Softshrink", "Softplus", "Softsign",
    "Tanhshrink", "LogSigmoid", "Sigmoid", "Tanh", "PReLU", "Softmax2d", "RReLU", "Identity",
    "Dropout", "Dropout2d", "AlphaDropout", "Flatten",
)  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_plain(name):
    same(name, (), data(2, 4, 6, 6))


WITH_ARGUMENTS = {
    "Softmax": (1,), "LogSoftmax": (1,), "Softmin": (1,), "Threshold": (0.1, 2.0),
    "PixelShuffle": (2,), "PixelUnshuffle": (2,), "ChannelShuffle": (2,),
    "Unflatten": (1, (2, 2)), "Upsample": (None, 2), "UpsamplingBilinear2d": (None, 2),
    "GroupNorm": (2, 4), "LayerNorm": (6,), "RMSNorm": (6,), "LocalResponseNorm": (2,),
    "Unfold": (2,), "LeakyReLU": (0.2, True), "Linear": (6, 5), "Conv2d": (4, 6, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_ARGUMENTS)
def test_with_arguments(name):
    same(name, WITH_ARGUMENTS[name], data(2, 4, 6, 6))


@pytest.mark.parametrize("n, spatial", ((1, (9,)), (2, (9, 7)), (3, (5, 6, 7))))
def test_spatial(n, spatial):
    x = data(2, 4, *spatial)
    same(f"Conv{n}d", (4, 6, 3), x, padding=1, padding_mode="reflect", bias=False)
    same(f"Conv{n}d", (4, 6, 3), x, padding="same", dilation=2, groups=2)
    same(f"ConvTranspose{n}d", (4, 6, 3), x, stride=2, output_padding=1)
    same(f"BatchNorm{n}d", (4,), x)
    same(f"InstanceNorm{n}d", (4,), x, affine=True)
    same(f"InstanceNorm{n}d", (4,), x[0], affine=True)
    for name in ("MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "CircularPad",
                 "ReflectionPad", "ReplicationPad", "ZeroPad"):  # fmt: skip
        same(f"{name}{n}d", (2,), x)
    same(f"ConstantPad{n}d", (2, 1.5), x)


def test_batch_norm_trains():
    x = data(3, 4, 5)
    pair = [lib.nn.BatchNorm1d(4, momentum=m) for m in (0.1, None) for lib in (torch, torchmlx)]
    for theirs, ours in (pair[:2], pair[2:]):
        for _ in range(2):
            want, got = theirs(torch.tensor(x)), ours(torchmlx.tensor(x))
        np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), 1e-5, 1e-5)
        for key, value in theirs.state_dict().items():
            np.testing.assert_allclose(ours.state_dict()[key].numpy(), value.numpy(), 1e-6, 1e-6)


@pytest.mark.parametrize("name", ("RNN", "LSTM", "GRU"))
def test_recurrent(name):
    x = data(4, 2, 3)
    same(name, (3, 5), x)
    same(name, (3, 5), x, num_layers=2, bidirectional=True)
    same(name, (3, 5), x, batch_first=True, bias=False, num_layers=2)
    same(name, (3, 5), x[:, 0])
    state = data(1, 2, 5)
    same(name, (3, 5), x, (state, state) if name == "LSTM" else state)
    same(name + "Cell", (3, 5), x[0])
    same(name + "Cell", (3, 5), x[0, 0])


def test_projected_lstm():
    same("LSTM", (3, 5), data(4, 2, 3), proj_size=2, bidirectional=True)


MASK = np.triu(np.ones((4, 4), bool), 1)
PADDING = np.array([[False, False, True, True], [False] * 4])


@pytest.mark.parametrize("weights", (True, False))
def test_multihead_attention(weights):
    q, k, v = data(4, 2, 8), data(4, 2, 8, seed=1), data(4, 2, 8, seed=2)
    call = {"need_weights": weights}
    masks = call | {"attn_mask": MASK, "key_padding_mask": PADDING}
    for settings in ({}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}):
        same("MultiheadAttention", (8, 2), q, k, v, call=call, **settings)
        same("MultiheadAttention", (8, 2), q, k, v, call=masks, **settings)
    same("MultiheadAttention", (8, 2), q, k, v, call=call, batch_first=True)
    other = data(4, 2, 6), data(4, 2, 7)
    same("MultiheadAttention", (8, 2), q, *other, call=call, kdim=6, vdim=7)
    same("MultiheadAttention", (8, 2), q[:, 0], k[:, 0], v[:, 0], call=call)


@pytest.mark.parametrize("norm_first", (True, False))
def test_transformer(norm_first):
    q, memory = data(4, 2, 8), data(5, 2, 8, seed=1)
    same("TransformerEncoderLayer", (8, 2, 16), q, norm_first=norm_first)
    same("TransformerDecoderLayer", (8, 2, 16), q, memory, norm_first=norm_first)
    same("Transformer", (8, 2, 1, 1, 16), memory, q, norm_first=norm_first)


def test_other():
    same("Bilinear", (3, 4, 5), data(2, 3), data(2, 4))
    same("Embedding", (5, 3), np.array([[1, 2], [0, 1]]), padding_idx=1)
    same("EmbeddingBag", (5, 3), np.array([[1, 2], [0, 1]]), padding_idx=1)
    same("CosineSimilarity", (), data(3, 4), data(3, 4, seed=1))
    same("PairwiseDistance", (), data(3, 4), data(3, 4, seed=1))
    same("Fold", ((3, 3), 2), data(2, 8, 4))


@pytest.mark.parametrize("name", ("L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss", "KLDivLoss"))
def test_loss(name):
    same(name, (), data(3, 4), data(3, 4, low=0.1))


def test_loss_of_classes():
    target = np.array([1, 2, 0])
    for name in ("CrossEntropyLoss", "NLLLoss", "MultiMarginLoss"):
        same(name, (), data(3, 4), target)
    same("BCEWithLogitsLoss", (), data(3, 4), data(3, 4, low=0, high=1))
    same("TripletMarginLoss", (), data(3, 4), data(3, 4, seed=1), data(3, 4, seed=2))


INITIAL = {
    "Linear": (5, 7), "Conv2d": (3, 4, 3), "ConvTranspose1d": (2, 3, 4), "Embedding": (6, 3),
    "Bilinear": (2, 3, 4), "LSTM": (3, 4), "MultiheadAttention": (8, 2), "GRUCell": (3, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", INITIAL)
def test_initial_values_are_torchs(name):
    states = []
    for lib in (torch, torchmlx):
        lib.manual_seed(1)
        states.append(getattr(lib.nn, name)(*INITIAL[name]).state_dict())
    for key, value in states[0].items():
        np.testing.assert_allclose(states[1][key].numpy(), value.numpy(), 3e-7, 3e-7)


INITIALISERS = {
    "uniform_": {}, "normal_": {}, "xavier_uniform_": {}, "xavier_normal_": {"gain": 2.0},
    "kaiming_uniform_": {"a": 0.1}, "kaiming_normal_": {"mode": "fan_out", "nonlinearity": "relu"},
    "trunc_normal_": {"std": 0.02}, "orthogonal_": {}, "sparse_": {"sparsity": 0.3}, "eye_": {},
    "constant_": {"val": 3}, "ones_": {}, "zeros_": {},
}  # fmt: skip


@pytest.mark.parametrize("name", INITIALISERS)
def test_initialiser(name):
    for shape in ((6, 4), (4, 6)):
        results = []
        for lib in (torch, torchmlx):
            lib.manual_seed(1)
            results.append(getattr(lib.nn.init, name)(lib.empty(shape), **INITIALISERS[name]))
        np.testing.assert_allclose(results[1].numpy(), results[0].numpy(), 2e-6, 2e-6)


def test_truncated_tail_and_dirac():
    results = []
    for lib in (torch, torchmlx):
        lib.manual_seed(1)
        tail = lib.nn.init.trunc_normal_(lib.empty(50), a=2.0, b=3.0)
        results.append((tail.numpy(), lib.nn.init.dirac_(lib.empty(4, 2, 3), groups=2).numpy()))
    np.testing.assert_allclose(results[1][0], results[0][0], 1e-6)
    np.testing.assert_array_equal(results[1][1], results[0][1])


def test_initialiser_writes_through_a_view():
    w = torchmlx.zeros(2, 3, 4)
    torchmlx.nn.init.ones_(w.flatten(1)[:, :2])
    assert w[:, 0, :2].tolist() == [[1, 1], [1, 1]] and w.sum().item() == 4


RANDOM = {
    "dropout": ((2, 4, 6), (0.3,)), "dropout1d": ((2, 4, 6), (0.5,)),
    "dropout2d": ((2, 4, 6, 6), (0.5,)), "dropout3d": ((2, 4, 2, 3, 3), (0.5,)),
    "alpha_dropout": ((2, 4, 6), (0.3, True)), "rrelu": ((2, 4, 6), (0.1, 0.3, True)),
    "feature_alpha_dropout": ((2, 4, 6), (0.3, True)), "gumbel_softmax": ((2, 4), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", RANDOM)
def test_random_function_draws_torchs_numbers(name):
    shape, args = RANDOM[name]
    results = []
    for lib in (torch, torchmlx):
        lib.manual_seed(1)
        function = getattr(lib.nn.functional, name)
        results.append(function(lib.tensor(data(*shape)), *args).numpy())
    np.testing.assert_allclose(results[1], results[0], 2e-6, 2e-6)
