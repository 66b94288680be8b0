"""torch.func: derivatives, maps over slices and modules as functions, each as torch has them."""

from __future__ import annotations

import pytest
import torch

import torchmlx

from .parity import same


def cube(x):
    return (x**3).sum()


def grad(t, f, x):
    both = f.grad_and_value(cube)(x)
    aux = f.grad(lambda x: (cube(x), {"twice": x * 2}), has_aux=True)(x)
    two = f.grad(lambda a, b: (a * b.sin()).sum(), argnums=(1, 0))(x, x + 1)
    tree = f.grad(lambda p: (p["a"] * p["b"][0]).sum())({"a": x, "b": [x.exp()]})
    return [both, aux[0], aux[1]["twice"], two, tree["a"], tree["b"][0]]


def nested(t, f, x):
    def by_x(y):
        return f.grad(lambda x: (x**2 * y).sum())(x).sum()

    return [f.grad(f.grad(lambda a: a.sin() * a))(x[0]), f.grad(by_x)(x[1])]


def history(t, f, x):
    weight = t.tensor([1.0, 2.0, 3.0], requires_grad=True)
    found = f.grad(lambda x: (x**2 * weight).sum())(x)
    found.sum().backward()
    plain = f.grad(cube)(x)
    return [found.requires_grad, weight.grad, plain.requires_grad, plain.grad_fn is None]


def without_grad(t, f, x):
    with t.no_grad():
        return [f.grad(cube)(x), f.jacrev(t.sin)(x)]


def products(t, f, x):
    y, pull = f.vjp(lambda a, b: (a * b, a.sum()), x, x + 1)
    value, tangent = f.jvp(lambda a, b: a.sin() * b, (x, x + 1), (x * 2, x * 3))
    out, push = f.linearize(lambda a: a.exp(), x)
    one, back = f.vjp(t.cos, x)
    aux = f.jvp(lambda a: (a**2, a + 1), (x,), (x,), has_aux=True)
    return [y, pull((x, x.sum())), value, tangent, out, push(x), push(x + 1), one, back(x), aux]


def jacobians(t, f, x):
    matrix = t.arange(6.0).reshape(2, 3)
    linear = f.jacrev(lambda x: matrix @ x)(x)
    several = f.jacrev(lambda a, b: {"m": a.outer(b)}, argnums=(0, 1))(x, x[:2])
    forward, aux = f.jacfwd(lambda a: (a.tanh(), a), has_aux=True)(x)
    return [linear, several["m"], forward, aux, f.hessian(lambda x: (x**3).sum() * x[0])(x)]


def maps(t, f, x):
    rows = t.arange(12.0).reshape(4, 3)
    return [
        f.vmap(t.dot, in_dims=(0, None))(rows, x),
        f.vmap(t.dot, in_dims=(-1, None))(rows, x[:2].repeat(2)),
        f.vmap(lambda a: (a, a.sum()), out_dims=(1, 0))(rows),
        f.vmap(lambda d: d["v"] * d["w"], in_dims=({"v": 0, "w": None},))({"v": rows, "w": x}),
        f.vmap(f.vmap(lambda a: a * 2), out_dims=1)(rows),
        f.vmap(lambda a, k: a * k, in_dims=(0, None))(rows, 3.0),
        f.vmap(lambda a: (a * 2, 5), out_dims=(0, None))(rows),
        f.vmap(lambda a: a.sum(), chunk_size=2)(rows),
        f.vmap(lambda a: a * 2)(t.ones(0, 2)),
        t.vmap(f.grad(lambda w, r: (w * r).sum() ** 2), in_dims=(None, 0))(x, rows),
        f.jacrev(f.vmap(lambda a: a.sin().sum()))(rows),
    ]


def modules(t, f, x):
    torch_weights = [[[0.5, -0.2, 0.1]], [0.3]], [[[0.1, 0.4, -0.6]], [-0.1]]
    nets = [t.nn.Sequential(t.nn.Linear(3, 1), t.nn.Tanh()) for _ in range(2)]
    for net, (weight, bias) in zip(nets, torch_weights, strict=True):
        net.load_state_dict({"0.weight": t.tensor(weight), "0.bias": t.tensor(bias)})
    parameters, buffers = f.stack_module_state(nets)

    def call(p, b, x):
        return f.functional_call(nets[0], (p, b), (x,))

    def loss(p, x):
        return f.functional_call(nets[0], p, x).sum()

    one = {name: p.detach() for name, p in nets[1].named_parameters()}
    per_sample = f.vmap(f.grad(loss), in_dims=(None, 0))(one, t.stack([x, x + 1]))
    return [
        f.vmap(call, in_dims=(0, 0, None))(parameters, buffers, x),
        f.functional_call(nets[0], one, (x,)),
        nets[0](x),
        per_sample["0.weight"],
        per_sample["0.bias"],
        [parameters["0.weight"].requires_grad, sorted(parameters)],
    ]


def buffers(t, f, x):
    """A call on other buffers writes those and leaves the module's."""
    norm = t.nn.BatchNorm1d(3)
    own = dict(norm.named_buffers())
    other = {"running_mean": t.ones(3), "num_batches_tracked": t.tensor(5)}
    f.functional_call(norm, other, (t.stack([x, x * 2]),))
    return [*other.values(), norm.running_mean is own["running_mean"], norm.running_mean]


def ties(t, f, x):
    net = t.nn.Sequential(t.nn.Linear(3, 3, bias=False), t.nn.Linear(3, 3, bias=False))
    net[1].weight = net[0].weight
    doubled = {"0.weight": t.eye(3) * 2}
    tied = f.functional_call(net, doubled, (x,))
    net[0].weight.data = t.eye(3)
    return [tied, f.functional_call(net, doubled, (x,), tie_weights=False)]


def randomness(t, f, x):
    t.manual_seed(3)
    same_each = f.vmap(lambda a: a + t.rand(2).sum(), randomness="same")(x)
    different = f.vmap(lambda a: a * 0 + t.rand(()), randomness="different")(x)
    return [same_each - x == (same_each - x)[0], len(set(different.tolist()))]


PROGRAMS = [
    grad, nested, history, without_grad, products, jacobians, maps, modules, buffers, ties,
    randomness,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_torch_has_the_same(program):
    start = [0.3, -1.2, 0.8]
    mine = program(torchmlx, torchmlx.func, torchmlx.tensor(start))
    theirs = program(torch, torch.func, torch.tensor(start))
    same(mine, theirs, 2e-6)


WRONG = {
    "no dimension": lambda t, f: f.vmap(lambda x: x, in_dims=None)(t.ones(2)),
    "nothing mapped": lambda t, f: f.vmap(lambda x: x, in_dims=(None,))(t.ones(2)),
    "no inputs": lambda t, f: f.vmap(lambda: t.ones(1))(),
    "not a tensor": lambda t, f: f.vmap(lambda x, k: x * k)(t.ones(2), 3.0),
    "dimension": lambda t, f: f.vmap(lambda x: x, in_dims=1)(t.ones(2)),
    "sizes": lambda t, f: f.vmap(lambda x, y: x)(t.ones(2), t.ones(3)),
    "output": lambda t, f: f.vmap(lambda x: 1)(t.ones(2)),
    "randomness": lambda t, f: f.vmap(lambda x: x, randomness="some")(t.ones(2)),
    "random": lambda t, f: f.vmap(lambda x: x + t.rand(()))(t.ones(2)),
    "not scalar": lambda t, f: f.grad(lambda x: x)(t.ones(2)),
    "not tensor": lambda t, f: f.grad(lambda x: 1.0)(t.ones(2)),
    "no such argument": lambda t, f: f.grad(lambda x: x.sum(), argnums=3)(t.ones(2)),
    "aux": lambda t, f: f.grad(lambda x: x.sum(), has_aux=True)(t.ones(2)),
    "dictionaries": lambda t, f: f.functional_call(t.nn.Linear(2, 2), [{"a": 1}, {"a": 2}], ()),
    "strict": lambda t, f: f.functional_call(t.nn.Linear(2, 2), {"a": t.ones(1)}, (), strict=True),
    "no models": lambda t, f: f.stack_module_state([]),
    "modes": lambda t, f: f.stack_module_state([t.nn.Linear(2, 2), t.nn.Linear(2, 2).eval()]),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_use_is_refused_in_torchs_words(wrong):
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        WRONG[wrong](torch, torch.func)
    with pytest.raises(theirs.type) as mine:
        WRONG[wrong](torchmlx, torchmlx.func)
    assert str(mine.value)[:50] == str(theirs.value)[:50]
