"""The tape: what requires grad, where gradients go, and torch's errors. Literals are torch's."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest

import torchmlx


def leaf(torch, *values):
    return torch.tensor(list(values), requires_grad=True)


# ---- what requires grad


def test_flags(torch):
    x = leaf(torch, 1.0, 2.0)
    y = x * 2
    assert x.is_leaf and x.requires_grad and x.grad_fn is None
    assert not y.is_leaf and y.requires_grad and type(y.grad_fn).__name__ == "MulBackward0"
    assert y.grad_fn.next_functions[0][0].variable is x
    assert (torch.ones(2) + x).grad_fn.next_functions == ((None, 0), y.grad_fn.next_functions[0])
    assert not y.detach().requires_grad and y.detach().is_leaf
    assert not (x > 1).requires_grad and not x.argmax().requires_grad
    assert repr(y) == "tensor([2., 4.], grad_fn=<MulBackward0>)"
    assert repr(x) == "tensor([1., 2.], requires_grad=True)"
    z = torch.ones(2)
    z.requires_grad = True
    assert (z + 1).requires_grad
    z.requires_grad_(False)
    assert not (z + 1).requires_grad


def test_integers_cannot_require_grad(torch):
    with pytest.raises(RuntimeError, match="floating point"):
        torch.ones(2, dtype=torch.int64).requires_grad_()
    with pytest.raises(RuntimeError, match="floating point"):
        torch.ones(2, dtype=torch.int64).requires_grad = True


def test_only_leaves_change_their_flag(torch):
    y = leaf(torch, 1.0) * 2
    with pytest.raises(RuntimeError, match="leaf variables"):
        y.requires_grad = False


def test_grad_modes(torch):
    x = leaf(torch, 1.0)
    with torch.no_grad():
        assert not (x * 2).requires_grad
        with torch.enable_grad():
            assert (x * 2).requires_grad
    with torch.inference_mode():
        assert not (x * 2).requires_grad
    with torch.set_grad_enabled(False):
        assert not (x * 2).requires_grad

    @torch.no_grad()
    def f(x):
        return x * 2

    assert not f(x).requires_grad and (x * 2).requires_grad


# ---- backward


def test_gradients_accumulate(torch):
    x = leaf(torch, 1.0, 2.0)
    (x * x).sum().backward()
    first = x.grad
    (x * 3).sum().backward()
    assert x.grad.tolist() == [5.0, 7.0] and x.grad is first
    x.grad = None
    x.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


def test_one_tensor_used_several_times(torch):
    x = leaf(torch, 2.0, 3.0)
    y = x * x
    z = y * x + y
    z.backward(torch.tensor([1.0, 10.0]))
    assert x.grad.tolist() == [16.0, 330.0]


def test_broadcasts_are_summed(torch):
    a, b = torch.ones(2, 3, requires_grad=True), torch.ones(3, 1, 1, requires_grad=True)
    c = torch.tensor(2.0, requires_grad=True)
    (a * b + c).sum().backward()
    assert a.grad.tolist() == [[3.0] * 3] * 2
    assert b.grad.tolist() == [[[6.0]]] * 3
    assert c.grad.item() == 18.0


def test_dtypes_of_gradients(torch):
    a = torch.ones(2, dtype=torch.float16, requires_grad=True)
    b = torch.ones(2, dtype=torch.float64, requires_grad=True)
    (a * b).sum().backward()
    assert a.grad.dtype is torch.float16 and b.grad.dtype is torch.float64
    x = leaf(torch, 1.0)
    (x.to(torch.float64) * 2).to(torch.float16).sum().backward()
    assert x.grad.dtype is torch.float32 and x.grad.item() == 2.0


def test_only_scalars_start_by_themselves(torch):
    y = leaf(torch, 1.0, 2.0) * 2
    with pytest.raises(RuntimeError, match="implicitly created only for scalar"):
        y.backward()
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        y.backward(torch.ones(3))
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(()).backward()


def test_a_graph_is_freed(torch):
    x = leaf(torch, 1.0)
    y = x.exp().sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()
    assert x.grad.item() == pytest.approx(2 * 2.718281828, rel=1e-6)


def test_a_deep_graph(torch):
    x = leaf(torch, 1.0)
    y = x
    for _ in range(5000):
        y = y + 1
    y.backward()
    assert x.grad.item() == 1.0


def test_autograd_grad(torch):
    x, y = leaf(torch, 3.0), leaf(torch, 4.0)
    z = (x * y + x).sum()
    gx, gy = torch.autograd.grad(z, [x, y])
    assert (gx.item(), gy.item()) == (5.0, 3.0) and x.grad is None
    with pytest.raises(RuntimeError, match="allow_unused"):
        torch.autograd.grad((x * 2).sum(), [x, y])
    assert torch.autograd.grad((x * 2).sum(), [x, y], allow_unused=True)[1] is None
    zero = torch.autograd.grad((x * 2).sum(), [x, y], materialize_grads=True)[1]
    assert zero.tolist() == [0.0]
    middle = x * 2
    (gm,) = torch.autograd.grad((middle**2).sum(), middle)
    assert gm.item() == 12.0


def test_gradients_of_gradients(torch):
    x = leaf(torch, 2.0)
    (g,) = torch.autograd.grad(x**4, x, create_graph=True)
    (h,) = torch.autograd.grad(g, x, create_graph=True)
    (k,) = torch.autograd.grad(h, x)
    assert (g.item(), h.item(), k.item()) == (32.0, 48.0, 48.0)
    penalty = ((torch.autograd.grad((x**2).sum(), x, create_graph=True)[0].norm() - 1) ** 2).sum()
    penalty.backward()
    assert x.grad.item() == pytest.approx(12.0)


def test_backward_with_inputs_leaves_the_rest(torch):
    x, y = leaf(torch, 1.0), leaf(torch, 2.0)
    (x * y).sum().backward(inputs=[y])
    assert x.grad is None and y.grad.item() == 1.0


def test_slopes_at_the_edges(torch):
    x = leaf(torch, 0.0, 0.0)
    for y in (x.norm(), x.norm(1), x.norm(float("inf")), x.abs().sum(), x.relu().sum()):
        assert torch.autograd.grad(y, x)[0].tolist() == [0.0, 0.0]
    x = leaf(torch, 1.0, 1.0, 0.0)
    assert torch.autograd.grad(x.max(), x)[0].tolist() == [0.5, 0.5, 0.0]
    assert torch.autograd.grad(x.max(0).values, x)[0].tolist() == [1.0, 0.0, 0.0]
    assert torch.autograd.grad(x.clamp(0, 1).sum(), x)[0].tolist() == [1.0, 1.0, 1.0]
    assert torch.autograd.grad(x.clamp_min(0).sum(), x)[0].tolist() == [1.0, 1.0, 1.0]
    tied = torch.maximum(x, torch.ones(3)).sum()
    assert torch.autograd.grad(tied, x)[0].tolist() == [0.5, 0.5, 0.0]
    flat = torch.nn.functional.relu6(x * 6).sum()
    assert torch.autograd.grad(flat, x)[0].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_empty_tensors(torch, shape):
    x = torch.zeros(shape, requires_grad=True)
    w = torch.ones(1, requires_grad=True)
    (x * w).sum().backward()
    assert x.grad.shape == x.shape and w.grad.tolist() == [0.0]


# ---- views and writes


def test_gradients_through_views(torch):
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    y = x.t()[1:, ::2].unsqueeze(0).expand(2, 2, 1).flatten()
    (y * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert x.grad.tolist() == [[0.0, 4.0, 6.0], [0.0, 0.0, 0.0]]


def test_a_write_through_a_view_reaches_the_base(torch):
    x = leaf(torch, 1.0, 2.0, 3.0)
    y = x * 2
    row = y[1:]
    row.mul_(10)
    assert y.requires_grad and y.tolist() == [2.0, 40.0, 60.0]
    (y.sum() + row[0]).backward()
    assert x.grad.tolist() == [2.0, 40.0, 20.0]


def test_a_buffer_filled_with_parts(torch):
    x = leaf(torch, 1.0, 2.0)
    buffer = torch.zeros(2, 3)
    early = buffer[0]
    buffer[:, 1] = x * 3
    buffer[1].add_(1)
    assert buffer.requires_grad and early.requires_grad
    (buffer * torch.arange(6.0).view(2, 3)).sum().backward()
    assert x.grad.tolist() == [3.0, 12.0]


def test_masks_and_indices_in_writes(torch):
    x = leaf(torch, 1.0, 2.0, 3.0)
    y = x * 1
    y[y > 1.5] = 0
    y[torch.tensor([0, 0])] += x[:2]
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 1.0, 0.0]


def test_copy_and_fill(torch):
    x, s = leaf(torch, 1.0, 2.0), torch.tensor(5.0, requires_grad=True)
    y = torch.zeros(3, 2)
    y.copy_(x)
    y[0].fill_(s)
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0] and s.grad.item() == 2.0
    z = (x * 2).zero_()
    assert z.requires_grad
    (z + x).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_in_place_activations(torch):
    x = leaf(torch, -1.0, 2.0)
    y = x * 1
    torch.nn.functional.relu(y, inplace=True)
    y = y * 3
    y.sub_(x)
    y.sum().backward()
    assert x.grad.tolist() == [-1.0, 2.0]


def test_leaves_are_not_written(torch):
    x = leaf(torch, 1.0, 2.0)
    for write in (
        lambda: x.add_(1),
        lambda: x.zero_(),
        lambda: x.copy_(torch.ones(2)),
        lambda: x.__setitem__(0, 1.0),
        lambda: x.uniform_(),
    ):
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            write()
    with pytest.raises(RuntimeError, match="view of a leaf Variable"):
        x[0].add_(1)
    with torch.no_grad():
        x.add_(1)
        x[0] = 5
    assert x.tolist() == [5.0, 3.0] and x.is_leaf and x.requires_grad


@pytest.mark.parametrize("read", ["square", "sin", "log", "matmul"])
def test_what_is_saved_must_not_be_written(torch, read):
    x = leaf(torch, 1.0, 2.0)
    y = x * 2
    z = y @ y if read == "matmul" else getattr(y, read)()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_a_result_that_is_saved_must_not_be_written(torch):
    x = leaf(torch, 1.0, 2.0)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_what_is_not_saved_may_be_written(torch):
    x = leaf(torch, 1.0, 2.0)
    y = x * 2
    z = y + 1
    y.add_(100)
    z.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_shapes_changed_in_place(torch):
    x = torch.arange(6.0).view(2, 3).requires_grad_()
    y = x * 2
    y.t_().unsqueeze_(0).squeeze_(0).transpose_(0, 1)
    (y * torch.arange(6.0).view(2, 3)).sum().backward()
    assert x.grad.tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        x.t_()
    with pytest.raises(RuntimeError, match="cannot resize"):
        x.resize_(3)


@pytest.mark.parametrize(
    "settings, counts",
    [({}, [1, 2, 0, 1]), ({"padding_idx": 1}, [1, 0, 0, 1]),
     ({"scale_grad_by_freq": True}, [1, 1, 0, 1])],
)  # fmt: skip
def test_embedding(torch, settings, counts):
    weight = torch.ones(4, 2, requires_grad=True)
    rows = torch.nn.functional.embedding(torch.tensor([[0, 1], [1, 3]]), weight, **settings)
    rows.sum().backward()
    assert weight.grad.tolist() == [[float(n)] * 2 for n in counts]


def test_data_and_detach_share_memory_but_no_history(torch):
    x = leaf(torch, 1.0, 2.0)
    x.data.mul_(3)
    x.detach()[0] = 7
    assert x.tolist() == [7.0, 6.0] and x.grad_fn is None
    y = (x * 2).detach_()
    assert y.is_leaf and not y.requires_grad


def test_numpy_and_deepcopy_refuse_history(torch):
    x = leaf(torch, 1.0)
    with pytest.raises(RuntimeError, match="requires grad"):
        x.numpy()
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(x * 2)
    twin = copy.deepcopy(x)
    assert twin.requires_grad and twin.is_leaf and twin is not x


def test_out_takes_no_part(torch):
    x = leaf(torch, 1.0)
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        torch.add(x, 1, out=torch.empty(1))


# ---- hooks


def test_hooks_on_tensors(torch):
    x = leaf(torch, 1.0, 2.0)
    y = x * 2
    seen = []
    handle = y.register_hook(lambda g: seen.append(g.tolist()))
    x.register_hook(lambda g: g * 10)
    y.retain_grad()
    y.sum().backward()
    assert seen == [[1.0, 1.0]] and x.grad.tolist() == [20.0, 20.0] and y.grad.tolist() == [1, 1]
    handle.remove()
    (x * 2).sum().backward()
    assert len(seen) == 1
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        torch.ones(1).register_hook(print)


def test_hooks_on_nodes(torch):
    x = leaf(torch, 1.0, 2.0)
    y = x * 3
    seen = []
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append((inputs[0].tolist(), len(outputs))))
    y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 2,))
    y.sum().backward()
    assert seen == [([6.0, 6.0], 1)] and x.grad.tolist() == [6.0, 6.0]


def test_a_hook_after_accumulation(torch):
    x = leaf(torch, 1.0)
    seen = []
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.item()))
    (x * 4).sum().backward()
    assert seen == [4.0]


# ---- functions of the user


def square_of(torch):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x)
            ctx.scale = scale
            return x * x * scale

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            assert ctx.needs_input_grad == (True, False)
            return 2 * x * g * ctx.scale, None

    return Square


def test_function(torch):
    square = square_of(torch)
    x = leaf(torch, 1.0, 3.0)
    y = square.apply(x, 2.0)
    assert type(y.grad_fn).__name__ == "SquareBackward"
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert g.tolist() == [4.0, 12.0]
    g.sum().backward()
    assert x.grad.tolist() == [4.0, 4.0]
    assert not square.apply(torch.ones(1), 2.0).requires_grad


def test_function_with_several_outputs(torch):
    class Split(torch.autograd.Function):
        @staticmethod
        def forward(x, k):
            return x * k, (x > 0), x + 1

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.k = inputs[1]
            ctx.mark_non_differentiable(output[1])

        @staticmethod
        def backward(ctx, g, _, h):
            return g * ctx.k + h, None

    x = leaf(torch, 1.0, -2.0)
    a, b, c = Split.apply(x, 5.0)
    assert not b.requires_grad
    a.sum().backward(retain_graph=True)
    assert x.grad.tolist() == [5.0, 5.0]
    (a + c).sum().backward()
    assert x.grad.tolist() == [11.0, 11.0]


def test_function_errors(torch):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g, g

    with pytest.raises(RuntimeError, match="incorrect number of gradients"):
        Wrong.apply(leaf(torch, 1.0)).backward()


def test_function_saved_tensors_are_checked(torch):
    x = leaf(torch, 1.0, 3.0) * 1
    y = square_of(torch).apply(x, 2.0)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# ---- checkpointing, saved tensors, anomaly, functional


def _block(torch, x, w):
    return torch.nn.functional.dropout((x @ w).tanh(), 0.5, training=True) * x


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(torch, reentrant):
    from importlib import import_module

    checkpoint = import_module(torch.__name__ + ".utils.checkpoint").checkpoint
    results = []
    for use in (False, True):
        torch.manual_seed(0)
        x = torch.randn(3, 3, requires_grad=True)
        w = torch.randn(3, 3, requires_grad=True)
        calls = []

        def run(x, w=w, calls=calls):
            calls.append(1)
            return _block(torch, x, w)

        y = checkpoint(run, x, use_reentrant=reentrant) if use else run(x)
        y.sum().backward()
        assert len(calls) == (2 if use else 1)
        results.append((y.tolist(), x.grad.tolist(), w.grad.tolist()))
    assert results[0] == results[1]


def test_saved_tensors_hooks(torch):
    x = leaf(torch, 1.0, 2.0)
    packed = []

    def pack(t):
        packed.append(t)
        return len(packed) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda i: packed[i] * 10):
        y = x * x
    y.sum().backward()
    assert len(packed) == 2 and x.grad.tolist() == [20.0, 40.0]


def test_anomaly_names_the_operation(torch):
    x = leaf(torch, 0.0)
    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.raises(RuntimeError, match="MulBackward0' returned nan values"),
    ):
        (x * float("nan")).sum().backward()


def test_functional(torch):
    f = torch.autograd.functional
    x, v = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    assert f.jacobian(lambda x: x**2, x).tolist() == [[2.0, 0.0], [0.0, 4.0]]
    assert f.hessian(lambda x: (x**3).sum(), x).tolist() == [[6.0, 0.0], [0.0, 12.0]]
    assert f.vjp(lambda x: x**2, x, v)[1].tolist() == [6.0, 16.0]
    assert f.jvp(lambda x: x**2, x, v)[1].tolist() == [6.0, 16.0]
    assert f.hvp(lambda x: (x**3).sum(), x, v)[1].tolist() == [18.0, 48.0]


def test_gradcheck(torch):
    x = torch.tensor([0.3, -0.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: x * x * x, (x,))


# ---- what only we promise


def test_a_graph_goes_away_without_the_collector():
    x = torchmlx.ones(3, requires_grad=True)
    gc.disable()
    try:
        y = (x * 2)[1:].exp().sum()
        node = weakref.ref(y.grad_fn)
        y.backward()
        del y
        assert node() is None
    finally:
        gc.enable()


def test_a_host_operation_without_gradient_names_itself():
    x = torchmlx.eye(3).requires_grad_()
    with pytest.raises(NotImplementedError, match="geqrf"):
        torchmlx.geqrf(x)[0].sum().backward()
