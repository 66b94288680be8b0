"""Autocast and GradScaler against torch 2.13 on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import torchmlx

torch = pytest.importorskip("torch", reason="torch 2.13 CPU is the oracle of parity tests")


def _model(lib):
    lib.manual_seed(0)
    return lib.nn.Sequential(
        lib.nn.Conv2d(1, 4, 3), lib.nn.ReLU(), lib.nn.Flatten(), lib.nn.Linear(64, 16),
        lib.nn.LayerNorm(16), lib.nn.Linear(16, 3),
    )  # fmt: skip


@pytest.mark.parametrize("loss", ["cross_entropy", "mse_loss", "l1_loss"])
def test_a_step_under_autocast(loss):
    found = []
    for lib in (torchmlx, torch):
        model = _model(lib)
        x = lib.randn(5, 1, 6, 6)
        target = lib.arange(5) % 3 if loss == "cross_entropy" else lib.ones(5, 3)
        with lib.autocast("cpu", dtype=lib.bfloat16):
            y = model(x)
            value = getattr(lib.nn.functional, loss)(y, target)
        value.backward()
        assert y.dtype is lib.bfloat16 and value.dtype is lib.float32
        assert all(p.grad.dtype is lib.float32 for p in model.parameters())
        found.append([value.item(), *(p.grad.numpy() for p in model.parameters())])
    mine, theirs = found
    assert mine[0] == pytest.approx(theirs[0], rel=0.02)
    for a, b in zip(mine[1:], theirs[1:], strict=True):
        np.testing.assert_allclose(a, b, atol=0.03 * np.abs(b).max() + 1e-6)


def test_which_dtype_each_operation_gets():
    calls = {
        "linear": lambda lib, x: lib.nn.functional.linear(x, x),
        "matmul": lambda lib, x: x @ x,
        "bmm": lambda lib, x: lib.bmm(x[None], x[None]),
        "attention": lambda lib, x: lib.nn.functional.scaled_dot_product_attention(
            x[None, None], x[None, None], x[None, None]
        ),
        "softmax": lambda lib, x: x.softmax(-1),
        "layer_norm": lambda lib, x: lib.nn.functional.layer_norm(x, (4,)),
        "exp": lambda lib, x: x.exp(),
        "sum": lambda lib, x: x.sum(),
        "prod": lambda lib, x: x.prod(),
        "add": lambda lib, x: x + x,
        "cat": lambda lib, x: lib.cat([x, x]),
        "float64": lambda lib, x: x.double() @ x.double(),
    }
    for name, call in calls.items():
        for kind in ("float32", "bfloat16"):
            found = []
            for lib in (torchmlx, torch):
                x = lib.ones(4, 4, dtype=getattr(lib, kind))
                with lib.autocast("cpu"):
                    found.append(str(call(lib, x).dtype))
            assert found[0] == found[1], f"{name} of {kind}"


@pytest.mark.parametrize("torch", [torchmlx, torch])
def test_autocast_as_decorator_nested_and_off(torch):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def f(x):
        assert torch.is_autocast_enabled("cpu")
        with torch.autocast("cpu", enabled=False):
            inner = (x @ x).dtype
        return (x @ x).dtype, inner

    x = torch.ones(2, 2)
    assert f(x) == (torch.bfloat16, torch.float32)
    assert not torch.is_autocast_enabled("cpu") and (x @ x).dtype is torch.float32
    with pytest.raises(RuntimeError, match="device type"):
        torch.autocast("toaster")


@pytest.mark.skipif(torchmlx.cuda.is_available(), reason="platform: there is CUDA here")
def test_autocast_without_the_gpu_is_off():
    with pytest.warns(UserWarning, match="not available. Disabling"):
        context = torchmlx.autocast("cuda", dtype=torchmlx.float16)
    with context:
        assert (torchmlx.ones(2, 2) @ torchmlx.ones(2, 2)).dtype is torchmlx.float32


def test_grad_scaler():
    """Scales grow after steps without overflow, and halve where a step was skipped."""
    found = []
    for lib in (torchmlx, torch):
        p = lib.nn.Parameter(lib.ones(3))
        optimizer = lib.optim.SGD([p], lr=0.1)
        scaler = lib.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        rows = []
        for step in range(6):
            optimizer.zero_grad()
            factor = float("inf") if step == 3 else 1.0 + step
            scaler.scale((p * factor).sum()).backward()
            if step % 2:
                scaler.unscale_(optimizer)
                lib.nn.utils.clip_grad_norm_([p], 1.0)
                with pytest.raises(RuntimeError, match="already been called"):
                    scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            rows.append([scaler.get_scale(), *p.detach().tolist()])
        state = scaler.state_dict()
        other = lib.amp.GradScaler("cpu")
        other.load_state_dict(state)
        assert other.get_scale() == scaler.get_scale()
        found.append(rows)
    np.testing.assert_allclose(*found, rtol=1e-6)


@pytest.mark.parametrize("torch", [torchmlx, torch])
def test_a_disabled_scaler_does_nothing(torch):
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    x = torch.ones(1, requires_grad=True)
    assert scaler.scale(x) is x and scaler.get_scale() == 1.0 and scaler.state_dict() == {}
    optimizer = torch.optim.SGD([x], lr=1.0)
    (x * 2).sum().backward()
    scaler.step(optimizer)
    scaler.update()
    assert x.item() == -1.0
