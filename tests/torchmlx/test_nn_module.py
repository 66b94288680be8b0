"""Module: attributes, state, hooks, containers. Each test runs on torch and on torchmlx alike."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict

import pytest

import torchmlx

from .parity import torch


def on_both(scenario):
    """Run a scenario with either library; what it returns must be equal."""

    def test():
        assert scenario(torchmlx) == scenario(torch)

    test.__name__ = scenario.__name__
    return test


def message(call) -> str:
    """Type and text of what a call raises, with library names made equal."""
    with pytest.raises(Exception) as caught:
        call()
    text = str(caught.value).replace("torchmlx", "torch").replace(".modules.", ".")
    return f"{type(caught.value).__name__}: {text}"


def net(lib):
    class Block(lib.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = lib.nn.Linear(3, 3)
            self.tied = self.linear
            self.register_buffer("scale", lib.ones(2))
            self.register_buffer("scratch", lib.zeros(1), persistent=False)
            self.register_buffer("nothing", None)
            self.extra = lib.nn.Buffer(lib.zeros(2), persistent=False)

        def forward(self, x):
            return self.linear(x)

    class Net(lib.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()
            self.layers = lib.nn.ModuleList([lib.nn.Linear(3, 3) for _ in range(3)])
            self.named = lib.nn.ModuleDict(
                {"a": lib.nn.SiLU(), "b": lib.nn.Linear(3, 2, bias=False)}
            )
            self.weight = lib.nn.Parameter(lib.zeros(2))
            self.missing = None

        def forward(self, x):
            return self.named.b(self.named.a(self.block(x)))

    return Net()


@on_both
def test_names(lib):
    n = net(lib)
    return [
        [k for k, _ in n.named_parameters()],
        [k for k, _ in n.named_parameters(remove_duplicate=False)],
        [k for k, _ in n.named_parameters("p", recurse=False)],
        [k for k, _ in n.named_buffers()],
        [k for k, _ in n.named_modules()],
        [k for k, _ in n.named_children()],
        list(n.state_dict()),
        list(n.state_dict(prefix="x.")),
        dict(n.state_dict()._metadata),
        "scale" in dir(n.block),
        repr(n),
    ]


@on_both
def test_attribute_rules(lib):
    nn, m = lib.nn, lib.nn.Linear(2, 2)

    class Early(nn.Module):
        def __init__(self):
            self.p = nn.Parameter(lib.zeros(1))

    m.register_buffer("b", None)
    return [
        message(lambda: setattr(m, "weight", 5)),
        message(lambda: setattr(m, "b", 5)),
        message(lambda: m.register_buffer("weight", lib.zeros(1))),
        message(lambda: m.register_buffer("a.b", lib.zeros(1))),
        message(lambda: m.register_parameter("", None)),
        message(lambda: m.register_parameter("p", 3)),
        message(lambda: m.add_module("x", 3)),
        message(lambda: m.add_module("weight", nn.Identity())),
        message(lambda: m.absent),
        message(Early),
        message(lambda: nn.Module(3)),
        message(lambda: nn.Module()(1)),
        message(lambda: m.get_submodule("weight")),
        message(lambda: m.to(lib.int64)),
    ]


@on_both
def test_attributes_move_between_tables(lib):
    m = lib.nn.Module()
    m.x = 1
    m.x = lib.nn.Parameter(lib.zeros(1))
    seen = [list(m._parameters), "x" in m.__dict__]
    m.x = None
    seen.append(m._parameters)
    del m.x
    m.x = lib.nn.Identity()
    seen += [list(m._modules), hasattr(m, "x")]
    del m.x
    return [*seen, hasattr(m, "x")]


@on_both
def test_load_errors(lib):
    n = net(lib)
    state = n.state_dict()
    state["block.linear.weight"] = lib.zeros(2, 3)
    state["layers.0.bias"] = [1]
    del state["weight"]
    state["other.thing"] = lib.zeros(1)
    loose = net(lib).load_state_dict({"weight": lib.ones(2), "z": lib.ones(1)}, strict=False)
    return [
        message(lambda: n.load_state_dict(state)),
        message(lambda: n.load_state_dict(3)),
        repr(net(lib).load_state_dict(net(lib).state_dict())),
        loose.missing_keys,
        loose.unexpected_keys,
    ]


@on_both
def test_state_shares_storage(lib):
    m = lib.nn.Linear(2, 1)
    m.state_dict()["weight"].copy_(lib.tensor([[3.0, 4.0]]))
    before = m.weight.tolist()
    with lib.no_grad():
        m.weight.data.add_(1)
    given = lib.full((1, 2), 7.0)
    m.load_state_dict({"weight": given, "bias": lib.zeros(1)}, assign=True)
    given.fill_(8.0)
    kept = m.state_dict(keep_vars=True)["weight"] is m.weight
    return [before, m.weight.tolist(), type(m.weight).__name__, kept, m.weight.requires_grad]


@on_both
def test_state_hooks(lib):
    log = []

    class Versioned(lib.nn.Module):
        _version = 3

        def get_extra_state(self):
            return {"n": 1}

        def set_extra_state(self, state):
            log.append(state)

    m = Versioned()
    m.p = lib.nn.Parameter(lib.zeros(1))
    m.register_state_dict_pre_hook(lambda mod, prefix, keep: log.append(("pre", prefix, keep)))
    m._register_state_dict_hook(lambda mod, state, prefix, meta: state.update(added=1))
    m._register_load_state_dict_pre_hook(
        lambda state, prefix, meta, strict, *rest: log.append((sorted(state), meta, strict))
    )
    m.register_load_state_dict_pre_hook(lambda mod, state, *rest: state.pop("added"))
    m.register_load_state_dict_post_hook(lambda mod, keys: keys.missing_keys.clear())
    state = m.state_dict()
    del state["p"]
    return [list(state), log, m.load_state_dict(state, strict=False).missing_keys, log]


@on_both
def test_forward_hooks(lib):
    log = []
    m = lib.nn.Identity()
    m.register_forward_pre_hook(lambda mod, args: log.append("pre"))
    first = m.register_forward_pre_hook(lambda mod, args: (args[0] + 1,), prepend=True)
    m.register_forward_pre_hook(lambda mod, args, kw: ((args[0] * 10,), kw), with_kwargs=True)
    m.register_forward_hook(lambda mod, args, out: log.append(("out", out.item())))
    m.register_forward_hook(lambda mod, args, kw, out: out + 5, with_kwargs=True)
    results = [m(lib.tensor(1.0)).item()]
    first.remove()
    results.append(m(lib.tensor(1.0)).item())
    with m.register_forward_hook(lambda mod, args, out: out * 100):
        results.append(m(lib.tensor(1.0)).item())
    return [results, m(lib.tensor(2.0)).item(), log]


@on_both
def test_always_called_hook(lib):
    log = []

    class Failing(lib.nn.Module):
        def forward(self, x):
            raise ValueError("inside")

    m = Failing()
    m.register_forward_hook(lambda *a: log.append("plain"))
    m.register_forward_hook(lambda *a: log.append(len(a)), always_call=True)
    return [message(lambda: m(1)), log]


@on_both
def test_conversions(lib):
    n = net(lib)
    tied = n.block.tied.weight
    n.half()
    out = [str(n.block.linear.weight.dtype), n.block.linear.weight is tied, str(n.weight.dtype)]
    n.to(lib.bfloat16).to("cpu").float()
    n.block.register_buffer("count", lib.zeros(1, dtype=lib.int64))
    n.double()
    out += [str(n.block.count.dtype), str(n.block.scale.dtype), n.block.nothing]
    n.eval().requires_grad_(False)
    out += [n.training, n.layers[0].training, n.weight.requires_grad]
    n.to("meta")
    out.append(str(n.weight.device))
    return [*out, str(n.to_empty(device="cpu").weight.device)]


@on_both
def test_apply_order_and_copies(lib):
    n = net(lib)
    log = []
    n.apply(lambda m: log.append(type(m).__name__))
    twin = copy.deepcopy(n)
    with lib.no_grad():
        twin.weight.add_(1)
    m = pickle.loads(pickle.dumps(lib.nn.Linear(2, 2)))
    return [log, n.weight.tolist(), twin.weight.tolist(), type(twin.weight).__name__,
            twin.block.tied is twin.block.linear, m.weight.requires_grad]  # fmt: skip


@on_both
def test_zero_grad(lib):
    m = lib.nn.Linear(2, 1)
    m.weight.grad = lib.ones(1, 2)
    m.zero_grad(set_to_none=False)
    zeroed = m.weight.grad.tolist()
    m.zero_grad()
    return [zeroed, m.weight.grad]


@on_both
def test_paths(lib):
    n = net(lib)
    n.set_submodule("block.linear", lib.nn.Identity())
    return [
        type(n.get_submodule("layers.1")).__name__,
        type(n.get_submodule("block.linear")).__name__,
        tuple(n.get_parameter("layers.0.weight").shape),
        tuple(n.get_buffer("block.scale").shape),
        message(lambda: n.get_parameter("block.scale")),
        message(lambda: n.get_submodule("block.absent")),
    ]


@on_both
def test_sequential(lib):
    nn = lib.nn
    s = nn.Sequential(OrderedDict(a=nn.ReLU(), b=nn.SiLU()))
    out = [list(s._modules), type(s.a).__name__, repr(s[1:]), len(s)]
    s = nn.Sequential(nn.ReLU(), nn.SiLU()).append(nn.GELU()).extend([nn.Tanh()])
    s.insert(1, nn.Mish())
    del s[0]
    s[-1] = nn.Sigmoid()
    out += [repr(s), repr(s + nn.Sequential(nn.ReLU())), repr(s * 2), type(s.pop(0)).__name__]
    return [*out, [type(m).__name__ for m in s], message(lambda: s[9])]


@on_both
def test_module_list(lib):
    nn = lib.nn
    items = nn.ModuleList([nn.ReLU()])
    items.append(nn.SiLU()).extend([nn.GELU(), nn.GELU()])
    items.insert(0, nn.Mish())
    items += [nn.Tanh()]
    del items[1]
    out = [repr(items), repr(items[1:3]), type(items[-1]).__name__, len(items)]
    return [
        *out,
        list(items._modules),
        repr(items + nn.ModuleList([nn.ReLU()])),
        repr(nn.ModuleList()),
    ]


@on_both
def test_module_dict(lib):
    nn = lib.nn
    d = nn.ModuleDict([("a", nn.ReLU()), ("b", nn.SiLU())])
    d.update({"c": nn.GELU()})
    d["a"] = nn.Tanh()
    out = ["a" in d, list(d), list(d.keys()), type(d.c).__name__, len(d)]
    return [*out, type(d.pop("a")).__name__, repr(d), message(lambda: nn.ModuleDict(3))]


@on_both
def test_parameter_containers(lib):
    nn = lib.nn
    items = nn.ParameterList([nn.Parameter(lib.zeros(2, 3)), lib.ones(1)])
    items.append(lib.zeros(2))
    named = nn.ParameterDict({"x": lib.zeros(2), "w": lib.ones(1, 2)})
    named["v"] = lib.zeros(1)
    return [repr(items), repr(named), list(items.state_dict()), list(named.state_dict()),
            type(items[1]).__name__, len(items[:2]), list(named), "x" in named]  # fmt: skip


@on_both
def test_parameter(lib):
    base = lib.zeros(2)
    p = lib.nn.Parameter(base)
    base.fill_(3.0)
    fixed = lib.nn.Parameter(lib.zeros(1), requires_grad=False)
    p.data = lib.ones(3)
    whole = message(lambda: lib.nn.Parameter(lib.zeros(1, dtype=lib.int64)))
    return [
        p.tolist(), base.tolist(), p.requires_grad, fixed.requires_grad, repr(p), whole,
        isinstance(p, lib.Tensor), isinstance(lib.nn.Buffer(base), lib.nn.Buffer),
        isinstance(base, lib.nn.Parameter), lib.nn.Parameter().shape == (0,),
    ]  # fmt: skip


def test_paths_that_scripts_import():
    nn = torchmlx.nn
    assert nn.modules.activation.MultiheadAttention is nn.MultiheadAttention
    assert nn.modules.linear.NonDynamicallyQuantizableLinear.__mro__[1] is nn.Linear
    assert nn.modules.sparse.Embedding is nn.Embedding
    assert nn.modules.container.ModuleList is nn.ModuleList
    assert nn.modules.utils._pair(3) == (3, 3)


@on_both
def test_clipping(lib):
    p = lib.nn.Parameter(lib.zeros(2))
    p.grad = lib.tensor([3.0, 4.0])
    total = lib.nn.utils.clip_grad_norm_([p], 1.0).item()
    clipped = [round(g, 5) for g in p.grad.tolist()]
    lib.nn.utils.clip_grad_value_(p, 0.7)
    vector = lib.nn.utils.parameters_to_vector([p, lib.ones(2, 1)])
    lib.nn.utils.vector_to_parameters(lib.tensor([5.0, 6.0]), [p])
    return [total, clipped, [round(g, 5) for g in p.grad.tolist()], tuple(vector.shape), p.tolist()]
