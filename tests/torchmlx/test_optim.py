"""Optimisers and schedules, step by step against torch 2.13."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest

import torchmlx

torch = pytest.importorskip("torch", reason="torch 2.13 CPU is the oracle of parity tests")

START = [np.random.default_rng(0).normal(size=s).astype(np.float32) for s in ((5, 3), (7,), ())]

OPTIMISERS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "dampening": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True, "foreach": True}),
    ("Adam", {"lr": 0.01, "fused": True}),
    ("Adam", {"lr": 0.01, "betas": (0.8, 0.99), "weight_decay": 0.1, "amsgrad": True}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "capturable": False}),
    ("AdamW", {"lr": 0.01, "amsgrad": True, "maximize": True}),
    ("RMSprop", {"lr": 0.01}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True, "weight_decay": 0.01}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    ("Adagrad", {"lr": 0.1, "weight_decay": 0.1}),
    ("Adadelta", {"lr": 1.0, "weight_decay": 0.01}),
    ("NAdam", {"lr": 0.01, "weight_decay": 0.1}),
    ("NAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.01}),
    ("RAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Adamax", {"lr": 0.01, "weight_decay": 0.1}),
    ("ASGD", {"lr": 0.01, "t0": 3.0, "weight_decay": 0.1}),
    ("Rprop", {"lr": 0.01}),
]


def _parameters(lib, dtype="float32", shapes=START):
    return [lib.nn.Parameter(lib.tensor(x).to(getattr(lib, dtype))) for x in shapes]


def _loss(lib, parameters, step: int):
    total = 0.0
    for p in parameters:
        target = lib.ones(p.shape, dtype=p.dtype) * (0.1 * step - 0.5)
        total = total + ((p - target) ** 2 * p.cos()).sum()
    return total


def _train(lib, optimizer, parameters, steps=range(10)):
    values = []
    for step in steps:
        optimizer.zero_grad()
        loss = _loss(lib, parameters, step)
        loss.backward()
        optimizer.step()
        values.append([np.array(p.detach().float().tolist(), np.float32) for p in parameters])
    return values


def _same(mine, theirs, bound=3e-6):
    for step, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x, y, rtol=bound, atol=bound, err_msg=f"step {step}")


@pytest.mark.parametrize("name, settings", OPTIMISERS)
def test_ten_steps_are_torchs(name, settings):
    runs = []
    for lib in (torchmlx, torch):
        parameters = _parameters(lib)
        optimizer = getattr(lib.optim, name)(parameters, **settings)
        runs.append((_train(lib, optimizer, parameters), optimizer))
    (mine, ours), (theirs, oracle) = runs
    _same(mine, theirs)
    assert _plain(ours.state_dict()["param_groups"]) == _plain(oracle.state_dict()["param_groups"])
    for i, state in oracle.state_dict()["state"].items():
        for key, value in state.items():
            own = ours.state_dict()["state"][i][key]
            if isinstance(value, torch.Tensor):
                assert tuple(own.shape) == tuple(value.shape)
                np.testing.assert_allclose(own.tolist(), value.tolist(), rtol=1e-5, atol=1e-6)
            else:
                assert own == value


def _plain(groups):
    return [{k: v for k, v in g.items() if k != "decoupled_weight_decay"} for g in groups]


@pytest.mark.parametrize("settings", [{}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}])
def test_muon_is_torchs_up_to_bfloat16(settings):
    runs = []
    shapes = [np.random.default_rng(1).normal(size=s).astype(np.float32) for s in ((6, 4), (3, 8))]
    for lib in (torchmlx, torch):
        parameters = _parameters(lib, shapes=shapes)
        optimizer = lib.optim.Muon(parameters, lr=0.02, **settings)
        runs.append(_train(lib, optimizer, parameters, range(4)))
    mine, theirs = runs
    _same(mine, theirs, bound=4e-3)
    with pytest.raises(ValueError, match="only supports 2D"):
        torchmlx.optim.Muon(_parameters(torchmlx))


@pytest.mark.parametrize(
    "name, dtype, bound",
    [
        ("SGD", "bfloat16", 0.05), ("SGD", "float16", 5e-3), ("SGD", "float64", 1e-6),
        ("AdamW", "float16", 5e-3), ("AdamW", "float64", 1e-6),
    ],
)  # fmt: skip
def test_other_dtypes(name, dtype, bound):
    runs = []
    for lib in (torchmlx, torch):
        parameters = _parameters(lib, dtype)
        optimizer = getattr(lib.optim, name)(parameters, lr=0.05)
        runs.append(_train(lib, optimizer, parameters))
        assert all(str(p.dtype) == f"torch.{dtype}" for p in parameters)
    mine, theirs = runs
    _same(mine, theirs, bound)


def test_groups_and_resuming():
    """Two groups; a copy that loads the state of another optimiser goes on as that one does."""
    runs = []
    for lib in (torchmlx, torch):
        parameters = _parameters(lib)
        groups = [{"params": parameters[:1], "lr": 0.1}, {"params": parameters[1:]}]
        optimizer = lib.optim.AdamW(groups, lr=0.01)
        first = _train(lib, optimizer, parameters, range(3))
        again = _parameters(lib)
        for p, q in zip(again, parameters, strict=True):
            p.data.copy_(q.data)
        groups = [{"params": again[:1]}, {"params": again[1:]}]
        resumed = lib.optim.AdamW(groups, lr=1.0)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert [g["lr"] for g in resumed.param_groups] == [0.1, 0.01]
        runs.append(first + _train(lib, resumed, again, range(3, 6)))
        assert all(id(p) not in {id(q) for q in again} for p in parameters)
    _same(*runs)


@pytest.mark.parametrize(
    "make, error",
    [
        (lambda o, p: o.SGD([]), ValueError),
        (lambda o, p: o.SGD(p[0]), TypeError),
        (lambda o, p: o.SGD(p, lr=-1.0), ValueError),
        (lambda o, p: o.SGD(p, nesterov=True), ValueError),
        (lambda o, p: o.Adam(p, betas=(1.0, 0.9)), ValueError),
        (lambda o, p: o.SGD([p[0] * 2]), ValueError),
        (lambda o, p: o.SGD([{"params": p}, {"params": p[:1]}]), ValueError),
        (lambda o, p: o.SGD([{"params": set(p)}]), TypeError),
        (lambda o, p: o.SGD([3.0]), TypeError),
        (lambda o, p: o.SGD(p).load_state_dict({"state": {}, "param_groups": []}), ValueError),
    ],
)
def test_errors_are_torchs(make, error):
    for lib in (torch, torchmlx):
        with pytest.raises(error):
            make(lib.optim, _parameters(lib))


def test_a_closure_hooks_and_zero_grad():
    parameters = _parameters(torchmlx)
    optimizer = torchmlx.optim.SGD(parameters, lr=0.1)
    called = []
    optimizer.register_step_pre_hook(lambda *a: called.append("before"))
    optimizer.register_step_post_hook(lambda *a: called.append("after"))

    def closure():
        optimizer.zero_grad()
        loss = _loss(torchmlx, parameters, 0)
        loss.backward()
        return loss

    before = float(_loss(torchmlx, parameters, 0))
    assert float(optimizer.step(closure)) == before
    assert float(_loss(torchmlx, parameters, 0)) < before
    assert called == ["before", "after"]
    optimizer.zero_grad(set_to_none=False)
    assert all(p.grad.abs().sum() == 0 for p in parameters)
    optimizer.zero_grad()
    assert all(p.grad is None for p in parameters)


def test_steps_do_not_pile_up_a_lazy_graph():
    """A loop that never reads its loss must not overflow the stack when something is read."""
    p = torchmlx.nn.Parameter(torchmlx.ones(4))
    optimizer = torchmlx.optim.SGD([p], lr=1e-4)
    for _ in range(3000):
        optimizer.zero_grad()
        (p * p).sum().backward()
        optimizer.step()
    np.testing.assert_allclose(p.tolist(), [(1 - 2e-4) ** 3000] * 4, rtol=1e-3)


SCHEDULES = {
    "LambdaLR": lambda s, o: s.LambdaLR(o, lambda e: 0.9**e),
    "MultiplicativeLR": lambda s, o: s.MultiplicativeLR(o, lambda e: 0.9),
    "StepLR": lambda s, o: s.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda s, o: s.MultiStepLR(o, [2, 5, 5, 9], 0.5),
    "ConstantLR": lambda s, o: s.ConstantLR(o, 0.25, 4),
    "LinearLR": lambda s, o: s.LinearLR(o, 0.25, 0.75, 6),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda s, o: s.PolynomialLR(o, 8, 2.0),
    "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, 5, 0.01),
    "CosineAnnealingWarmRestarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 3, 2, 0.01),
    "CyclicLR": lambda s, o: s.CyclicLR(o, 0.01, 0.1, 3, 5, mode="triangular2"),
    "CyclicLR exp": lambda s, o: s.CyclicLR(o, 0.01, 0.1, 3, mode="exp_range", gamma=0.9),
    "OneCycleLR": lambda s, o: s.OneCycleLR(o, 0.2, total_steps=15),
    "OneCycleLR three": lambda s, o: s.OneCycleLR(
        o, 0.2, epochs=3, steps_per_epoch=5, three_phase=True, anneal_strategy="linear"
    ),
    "SequentialLR": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, 1.0, 4), s.CosineAnnealingLR(o, 8)], milestones=[4]
    ),
    "ChainedScheduler": lambda s, o: s.ChainedScheduler(
        [s.ConstantLR(o, 0.1, 3), s.ExponentialLR(o, 0.9)]
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_torchs(name):
    found = []
    for lib in (torchmlx, torch):
        groups = [{"params": [p], "lr": 0.1 * (i + 1)} for i, p in enumerate(_parameters(lib))]
        optimizer = lib.optim.SGD(groups, lr=0.5, momentum=0.9)
        scheduler = SCHEDULES[name](lib.optim.lr_scheduler, optimizer)
        rows = []
        for step in range(14):
            rows.append([(g["lr"], g["momentum"]) for g in optimizer.param_groups])
            assert scheduler.get_last_lr() == [g["lr"] for g in optimizer.param_groups]
            if step == 7:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    other = SCHEDULES[name](lib.optim.lr_scheduler, optimizer)
                    for g, (lr, momentum) in zip(optimizer.param_groups, rows[-1], strict=True):
                        g["lr"], g["momentum"] = lr, momentum
                    other.load_state_dict(scheduler.state_dict())
                scheduler = other
            optimizer.step()
            scheduler.step()
        found.append(rows)
    np.testing.assert_allclose(*found, rtol=1e-12)


@pytest.mark.parametrize("mode, threshold_mode", [("min", "rel"), ("max", "abs")])
def test_reduce_on_plateau_is_torchs(mode, threshold_mode):
    found = []
    for lib in (torchmlx, torch):
        optimizer = lib.optim.SGD(_parameters(lib), lr=1.0)
        scheduler = lib.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, mode, 0.5, 1, 1e-2, threshold_mode, cooldown=1, min_lr=0.2
        )
        rates = []
        for metric in [1.0, 0.9, 0.899, 0.9, 0.9, 0.8, 0.8, 0.8, 0.8, 1.1, 1.2, 1.2, 1.2]:
            scheduler.step(lib.tensor(metric))
            rates.append(optimizer.param_groups[0]["lr"])
        found.append(rates)
    assert found[0] == found[1]


def test_a_schedule_before_the_first_step_warns():
    optimizer = torchmlx.optim.SGD(_parameters(torchmlx), lr=1.0)
    scheduler = torchmlx.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        scheduler.step()


def test_clipping_is_torchs():
    for norm_type in (2.0, 1.0, float("inf")):
        found = []
        for lib in (torchmlx, torch):
            parameters = _parameters(lib)
            _loss(lib, parameters, 0).backward()
            norm = lib.nn.utils.clip_grad_norm_(parameters, 0.5, norm_type)
            lib.nn.utils.clip_grad_value_(parameters, 0.1)
            vector = lib.nn.utils.parameters_to_vector([p.grad for p in parameters])
            found.append([float(norm), *vector.tolist()])
        np.testing.assert_allclose(*found, rtol=1e-5)
