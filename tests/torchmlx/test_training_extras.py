"""optim.swa_utils, Adafactor, SyncBatchNorm and nn.attention: as in torch, step by step."""

from __future__ import annotations

import numpy as np
import pytest

import torchmlx
import torchmlx.nn.attention.flex_attention as F

from .parity import same
from .test_nn_utils import fill, plain, rows


def averages(t, use_buffers=False, **settings):
    net = t.nn.Sequential(fill(t, t.nn.Linear(3, 4)), t.nn.BatchNorm1d(4), t.nn.ReLU())
    U = t.optim.swa_utils
    made = {name: getattr(U, f"get_{f}")(*args) for name, (f, *args) in settings.items()}
    average = U.AveragedModel(net, use_buffers=use_buffers, **made)
    optimizer = t.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        net(rows(t, 5, 3) + step).square().sum().backward()
        optimizer.step()
        average.update_parameters(net)
    before = [x.clone() for x in average.buffers()]
    U.update_bn([rows(t, 4, 3), [rows(t, 6, 3) * 2, None]], average)
    after = list(average.buffers()), average.module[1].momentum, average(rows(t, 2, 3))
    return [list(average.parameters()), before, *after]


def annealing(t, **settings):
    parameters = [rows(t, 2).requires_grad_(), rows(t, 3).requires_grad_()]
    optimizer = t.optim.SGD(
        [{"params": [p], "lr": 0.1 * (i + 1)} for i, p in enumerate(parameters)]
    )
    usual = t.optim.lr_scheduler.StepLR(optimizer, 2)
    swa = t.optim.swa_utils.SWALR(optimizer, swa_lr=[0.05, 0.5], **settings)
    rates = []
    for step in range(9):
        optimizer.step()
        (usual if step < 3 else swa).step()
        rates.append([g["lr"] for g in optimizer.param_groups])
    return rates


def adafactor(t, **settings):
    shapes = (4, 3), (5,), (2, 3, 2), ()
    parameters = [rows(t, *s).requires_grad_() for s in shapes]
    optimizer = t.optim.Adafactor(parameters, **settings)
    for _ in range(4):
        optimizer.zero_grad()
        sum((p**4 + p).sum() for p in parameters).backward()
        optimizer.step()
    state = optimizer.state_dict()["state"]
    factors = state[0]["row_var"], state[0]["col_var"], state[1]["variance"], state[0]["step"]
    return [parameters, *factors]


def synchronised(t):
    net = t.nn.Sequential(t.nn.Conv2d(2, 3, 1), t.nn.Sequential(t.nn.BatchNorm2d(3, affine=False)))
    net = fill(t, t.nn.SyncBatchNorm.convert_sync_batchnorm(net))
    return [repr(net[1][0]), list(net.state_dict()), net[1][0].running_mean]


def flexible(t, given=("query", "key"), **settings):
    F = t.nn.attention.flex_attention
    q, k, v = (rows(t, 2, 4, 6, 8), rows(t, 2, 2, 7, 8).cos(), rows(t, 2, 2, 7, 5))
    slopes, document = t.tensor([0.5, 0.25, 1.0, 2.0]), t.tensor([0, 0, 1, 1, 1, 2, 2])

    def alibi(score, b, h, i, j):
        return score + slopes[h] * (j - i) + b

    def causal(b, h, i, j):
        return i >= j

    def document_of(b, h, i, j):
        return document[i] == document[j]

    def last_sees_nothing(b, h, i, j):
        return i < 5

    found = []
    for score, mask in [
        (alibi, None), (None, causal), (alibi, F.and_masks(causal, document_of)),
        (None, F.or_masks(causal, document_of)), (None, last_sees_nothing),
    ]:  # fmt: skip
        block = mask and F.create_block_mask(mask, None, None, 6, 7, device="cpu")
        out = F.flex_attention(
            q, k, v, score_mod=score, block_mask=block, enable_gqa=True, return_lse=True
        )
        found.append(out)
        found.append(F.flex_attention(q, k, v, score, block, enable_gqa=True, scale=0.3))
    dense = F.create_mask(causal, 2, 3, 4, 5)
    wide = F.create_block_mask(causal, 1, 1, 300, 500, device="cpu")
    return [found, dense, wide.sparsity(), wide.shape, wide.to_dense()]


def kernel_choice(t):
    A = t.nn.attention
    with A.sdpa_kernel([A.SDPBackend.MATH]):
        inside = t.backends.cuda.math_sdp_enabled(), t.backends.cuda.flash_sdp_enabled()
        out = t.nn.functional.scaled_dot_product_attention(*(rows(t, 1, 2, 3, 4) for _ in range(3)))
    return [*inside, t.backends.cuda.flash_sdp_enabled(), out, int(A.SDPBackend.FLASH_ATTENTION)]


PROGRAMS = {
    "equal mean": averages,
    "equal mean, function": lambda t: averages(t, avg_fn=("swa_avg_fn",)),
    "moving": lambda t: averages(t, multi_avg_fn=("ema_multi_avg_fn", 0.9)),
    "moving, buffers": lambda t: averages(t, True, multi_avg_fn=("ema_multi_avg_fn", 0.9)),
    "moving, function": lambda t: averages(t, avg_fn=("ema_avg_fn", 0.5)),
    "annealing": annealing,
    "annealing linear": lambda t: annealing(t, anneal_epochs=3, anneal_strategy="linear"),
    "annealing at once": lambda t: annealing(t, anneal_epochs=0),
    "adafactor": lambda t: adafactor(t),
    "adafactor, settings": lambda t: adafactor(
        t, lr=0.3, beta2_decay=-0.5, eps=(1e-4, 0.1), d=1.5, weight_decay=0.1, maximize=True
    ),
    "synchronised": synchronised,
    "flexible attention": flexible,
    "kernel choice": kernel_choice,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_torch_does_the_same(name):
    import torch.nn.attention.flex_attention  # noqa: F401  (takes seconds)

    same(plain(PROGRAMS[name](torchmlx)), plain(PROGRAMS[name](torch)), 3e-6)


def test_flexible_attention_gives_what_it_is_asked_for_besides():
    """torch's CPU refuses max_scores: these are its return_lse and the definition."""
    q, k, v = (rows(torchmlx, 1, 2, n, 4).cos() for n in (3, 5, 5))
    out, lse = F.flex_attention(q, k, v, return_lse=True)
    again, aux = F.flex_attention(q, k, v, return_aux=F.AuxRequest(lse=True, max_scores=True))
    scores = q.numpy().astype("float64") @ k.numpy().astype("float64").swapaxes(-1, -2) / 2
    np.testing.assert_allclose(again.numpy(), out.numpy(), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(aux.lse.numpy(), lse.numpy(), rtol=1e-6)
    np.testing.assert_allclose(aux.max_scores.numpy(), scores.max(-1), rtol=1e-6)
    assert F.flex_attention(q, k, v, return_aux=F.AuxRequest(lse=True))[1].max_scores is None
