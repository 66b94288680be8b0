"""torch.nn.utils and modules' backward hooks: each program gives what it gives in torch."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

import torchmlx

from .parity import same

LENGTHS = [3, 5, 1, 5]


def fill(t, module):
    """The same weights in both libraries."""
    with t.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(t.linspace(-1, 1, p.numel()).cos().reshape(p.shape) * (0.3 + 0.1 * i))
    return module


def rows(t, *shape):
    return t.linspace(-2, 3, torch.Size(shape).numel()).sin().reshape(shape)


def gradients(module):
    return [p.grad for p in module.parameters()]


def packing(t):
    rnn = t.nn.utils.rnn
    sequences = [rows(t, n, 2) + n for n in LENGTHS]
    ordered = sorted(sequences, key=len, reverse=True)
    packed = rnn.pack_sequence(sequences, enforce_sorted=False)
    padded = rnn.pad_sequence(sequences, batch_first=True, padding_value=-1.0)
    left = rnn.pad_sequence(sequences, padding_side="left")
    back = rnn.pad_packed_sequence(packed, batch_first=True, padding_value=9.0, total_length=7)
    first = rnn.pack_padded_sequence(rnn.pad_sequence(ordered), [5, 5, 3, 1])
    bare = rnn.PackedSequence(packed.data, packed.batch_sizes)
    return [
        tuple(packed), padded, left, back, tuple(first), rnn.unpack_sequence(packed),
        rnn.unpad_sequence(padded, t.tensor(LENGTHS), batch_first=True), tuple(bare),
        packed.double().data, rnn.invert_permutation(t.tensor([2, 0, 1])),
    ]  # fmt: skip


def recurrent(t, kind, **settings):
    net = fill(t, getattr(t.nn, kind)(2, 3, num_layers=2, **settings))
    packed = t.nn.utils.rnn.pack_sequence([rows(t, n, 2) for n in LENGTHS], enforce_sorted=False)
    out, state = net(packed)
    state = state if isinstance(state, tuple) else (state,)
    (out.data.sum() + sum((s**2).sum() for s in state)).backward()
    given = net(packed, tuple(state) if kind == "LSTM" else state[0])
    return [out.data, out.batch_sizes, out.unsorted_indices, state, gradients(net), given[0].data]


def old_weight_norm(t, dim=0):
    net = t.nn.utils.weight_norm(fill(t, t.nn.Conv1d(2, 3, 2)), dim=dim)
    net(rows(t, 1, 2, 5)).sum().backward()
    names, found = [n for n, _ in net.named_parameters()], gradients(net)
    state = net.state_dict()
    t.nn.utils.remove_weight_norm(net)
    return [names, found, list(state), [n for n, _ in net.named_parameters()], net.weight]


def old_spectral_norm(t):
    net = fill(t, t.nn.Linear(3, 4))
    t.manual_seed(0)
    t.nn.utils.spectral_norm(net, n_power_iterations=2)
    outputs = [net(rows(t, 2, 3)) for _ in range(3)]
    sum(o.sum() for o in outputs).backward()
    learnt = [net.weight_u.clone(), net.weight_v.clone(), net.weight_orig.grad]
    net.eval()
    return [*outputs, *learnt, net(rows(t, 2, 3)), list(net.state_dict())]


def new_weight_norm(t):
    net = t.nn.utils.parametrizations.weight_norm(fill(t, t.nn.Linear(3, 2)))
    net(rows(t, 2, 3)).sum().backward()
    found = gradients(net)
    names = [n for n, _ in net.named_parameters()]
    old = {"bias": t.ones(2), "weight_g": t.ones(2, 1), "weight_v": rows(t, 2, 3)}
    net.load_state_dict(old)
    twin = copy.deepcopy(net)
    net.weight = t.eye(2, 3)
    return [names, found, net.weight, twin.weight, type(net).__name__]


def new_spectral_norm(t):
    net = fill(t, t.nn.ConvTranspose2d(2, 3, 2))
    t.manual_seed(1)
    t.nn.utils.parametrizations.spectral_norm(net)
    outputs = [net(rows(t, 1, 2, 3, 3)) for _ in range(2)]
    sum(o.sum() for o in outputs).backward()
    return [*outputs, gradients(net), list(net.state_dict()), net.eval()(rows(t, 1, 2, 3, 3))]


def parametrisation(t):
    P = t.nn.utils.parametrize

    class Symmetric(t.nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).T

    class Exponential(t.nn.Module):
        def forward(self, x):
            return x.exp()

        def right_inverse(self, x):
            return x.log()

    net = fill(t, t.nn.Linear(3, 3))
    before = net.weight
    P.register_parametrization(net, "weight", Symmetric())
    P.register_parametrization(net, "weight", Exponential())
    calls = []
    net.parametrizations.weight[0].register_forward_hook(lambda *_: calls.append(1))
    with P.cached():
        both = net.weight is net.weight
    net(rows(t, 2, 3)).sum().backward()
    kept = net.parametrizations.weight.original is before
    found = [
        both,
        len(calls),
        kept,
        before.grad,
        P.type_before_parametrizations(net) is t.nn.Linear,
    ]
    text = repr(net)
    P.remove_parametrizations(net, "weight")
    plain = fill(t, t.nn.Linear(3, 3))
    P.register_parametrization(plain, "bias", Exponential(), unsafe=True)
    P.remove_parametrizations(plain, "bias", leave_parametrized=False)
    again = type(net) is t.nn.Linear, isinstance(net.weight, t.nn.Parameter)
    return [*found, text, net.weight, *again, plain.bias]


def fusion(t):
    conv, norm = fill(t, t.nn.Conv2d(2, 3, 2)), fill(t, t.nn.BatchNorm2d(3))
    norm(rows(t, 2, 3, 4, 4))
    fused = t.nn.utils.fuse_conv_bn_eval(conv.eval(), norm.eval())
    linear, one = fill(t, t.nn.Linear(2, 3, bias=False)), t.nn.BatchNorm1d(3)
    one(rows(t, 4, 3))
    both = t.nn.utils.fuse_linear_bn_eval(linear.eval(), one.eval())
    return [fused.weight, fused.bias, fused(rows(t, 1, 2, 4, 4)), both.weight, both.bias]


def hooks(t):
    """Hooks of the backward pass: what they see, what they change, in which order they run."""
    seen = []

    def watch(name, factor=None):
        def hook(module, inner, outer):
            seen.append((name, [type(g).__name__ for g in inner], [g.sum() for g in outer]))
            return None if factor is None else tuple(g and g * factor for g in inner)

        return hook

    def before(module, outer):
        seen.append(("before", [g.sum() for g in outer]))
        return (outer[0] * 3,)

    net = fill(t, t.nn.Sequential(t.nn.Linear(3, 2), t.nn.Tanh(), t.nn.Linear(2, 1)))
    net[0].register_full_backward_hook(watch("first"))
    net[1].register_full_backward_hook(lambda m, i, o: (i[0] * 2,))
    net[2].register_full_backward_pre_hook(before)
    handle = net[2].register_full_backward_hook(watch("last"))
    net.register_full_backward_hook(watch("all"))
    x = rows(t, 4, 3).requires_grad_()
    net(x).sum().backward()
    first = [x.grad, gradients(net), list(seen)]
    handle.remove()
    seen.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net(rows(t, 4, 3)).sum().backward()
    return [*first, list(seen), str(caught[0].message)[:60]]


def several(t):
    """Modules of several tensors, of which some want no gradient."""

    class Two(t.nn.Module):
        def forward(self, a, n, b):
            return a * b, n + 1, b.exp()

    seen = []
    two = Two()
    two.register_full_backward_hook(lambda m, i, o: seen.append((i, o)))
    a, b = rows(t, 3).requires_grad_(), rows(t, 3) + 1
    x, _, y = two(a, t.tensor(2), b)
    (x.sum() + y.sum()).backward()
    legacy = t.nn.Linear(3, 2)
    fill(t, legacy).register_backward_hook(lambda m, i, o: seen.append([g.shape for g in o]))
    legacy(a).sum().backward()
    return [a.grad, [[None if g is None else g.shape for g in seen[0][0]], seen[0][1]], seen[1]]


PROGRAMS = {
    "packing": packing,
    "rnn": lambda t: recurrent(t, "RNN"),
    "lstm": lambda t: recurrent(t, "LSTM", bidirectional=True),
    "lstm projected": lambda t: recurrent(t, "LSTM", proj_size=2),
    "gru": lambda t: recurrent(t, "GRU", bidirectional=True, bias=False),
    "old weight norm": old_weight_norm,
    "old weight norm, other dimension": lambda t: old_weight_norm(t, 2),
    "old weight norm, one length": lambda t: old_weight_norm(t, None),
    "old spectral norm": old_spectral_norm,
    "weight norm": new_weight_norm,
    "spectral norm": new_spectral_norm,
    "parametrisation": parametrisation,
    "fusion": fusion,
    "hooks": hooks,
    "hooks of several": several,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_torch_does_the_same(name):
    # float32 in the recurrent layers: torch itself is up to 4e-6 off its float64, we 1e-5.
    bound = 2e-5 if name.startswith("lstm") else 3e-6
    same(plain(PROGRAMS[name](torchmlx)), plain(PROGRAMS[name](torch)), bound)


def plain(value):
    """Nested sequences of tensors, numbers and words."""
    if isinstance(value, (torch.Size, torchmlx.Size)):
        return list(value)
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


WRONG = {
    "empty": lambda t: t.nn.utils.rnn.pad_sequence([]),
    "lengths": lambda t: t.nn.utils.rnn.pack_padded_sequence(t.ones(3, 2, 1), [2, 3]),
    "length zero": lambda t: t.nn.utils.rnn.pack_padded_sequence(t.ones(3, 2, 1), [3, 0]),
    "number": lambda t: t.nn.utils.rnn.pack_padded_sequence(t.ones(3, 2, 1), [3]),
    "side": lambda t: t.nn.utils.rnn.pad_sequence([t.ones(1)], padding_side="up"),
    "total": lambda t: t.nn.utils.rnn.pad_packed_sequence(
        t.nn.utils.rnn.pack_sequence([t.ones(3)]), total_length=2
    ),
    "unknown parameter": lambda t: t.nn.utils.parametrize.register_parametrization(
        t.nn.Linear(2, 2), "wight", t.nn.Identity()
    ),
    "other shape": lambda t: t.nn.utils.parametrize.register_parametrization(
        t.nn.Linear(2, 2), "weight", t.nn.Flatten(0)
    ),
    "not parametrised": lambda t: t.nn.utils.parametrize.remove_parametrizations(
        t.nn.Linear(2, 2), "weight"
    ),
    "several originals": lambda t: t.nn.utils.parametrize.remove_parametrizations(
        t.nn.utils.parametrizations.weight_norm(t.nn.Linear(2, 2)), "weight", False
    ),
    "pickle": lambda t: copy.copy(t.nn.utils.parametrizations.weight_norm(t.nn.Linear(2, 2))),
    "no weight norm": lambda t: t.nn.utils.remove_weight_norm(t.nn.Linear(2, 2)),
    "iterations": lambda t: t.nn.utils.spectral_norm(t.nn.Linear(2, 2), n_power_iterations=0),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_use_is_refused_in_torchs_words(wrong):
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        WRONG[wrong](torch)
    with pytest.raises(theirs.type) as mine:
        WRONG[wrong](torchmlx)
    assert str(mine.value)[:50] == str(theirs.value)[:50]
