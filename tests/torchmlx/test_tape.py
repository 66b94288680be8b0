"""The tape against torch's: random programs, and the corners that they have found."""

import pytest
import torch as real

import torchmlx as ours

from .programs import EXCUSED, difference, run, written

PROGRAMS = 240
# Programs whose difference is known, with the reason.
KNOWN: dict[int, str] = {}


@pytest.mark.parametrize("start", range(0, PROGRAMS, 60))
def test_random_programs(start):
    for seed in range(start, start + 60):
        lines, names = written(seed)
        theirs, line, error = run(real, lines, names)
        if seed in KNOWN or any(part in str(error) for part in EXCUSED):
            continue
        mine, own_line, own_error = run(ours, lines, names)
        program = "\n".join(lines)
        assert own_line == line, f"{own_error!r} where torch has {error!r}\n{program}"
        assert difference(mine, theirs) is None, f"{difference(mine, theirs)}\n{program}"


def both(function):
    """The same lines under torch and torchmlx: what they return, or the error."""
    answers = []
    for torch in (real, ours):
        try:
            answers.append(function(torch))
        except RuntimeError as error:
            answers.append(str(error)[:90])  # names and versions follow
    assert answers[1] == answers[0]
    return answers[1]


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_views_taken_without_grad_say_that_they_require_it(mode):
    def flags(torch):
        x = torch.ones(3, 4, requires_grad=True)
        with getattr(torch, mode)():
            views = (x.view(-1), x[0], x.t(), x.split(1)[0], x.expand(2, 3, 4), x.detach(), x.data,
                     x * 1, x[[0, 1]], x.view(torch.int32), (x * 1)[0])  # fmt: skip
        return [(v.requires_grad, v.is_leaf) for v in views]

    assert True in (flag for flag, _ in both(flags))


def test_nothing_gathers_in_a_view_taken_without_grad():
    def gradients(torch):
        x = torch.ones(3, requires_grad=True)
        with torch.no_grad():
            view = x.view(-1)
        ((view * view).sum() + (x * 3).sum()).backward()
        view.exp().sum().backward()
        return x.grad.tolist(), view.grad

    assert both(gradients) == ([3.0] * 3, None)


def test_writes_through_data_are_not_missed():
    def gradient(torch):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        y = x * x
        view = x.data[1:]
        x.data.mul_(10)
        view.add_(1)
        y.sum().backward()
        return x.tolist(), x.grad.tolist(), x._version

    assert both(gradient) == ([10.0, 21.0], [20.0, 42.0], 0)


@pytest.mark.parametrize("change", ["unsqueeze_(0)", "t_()", "squeeze_()"])
def test_a_changed_shape_counts_as_a_write(change):
    def gradient(torch):
        x = torch.ones(2, 2, requires_grad=True) * 1
        y = x * x
        exec(f"x.{change}", {"x": x})
        y.sum().backward()

    assert "needed for gradient computation has been modified" in both(gradient)


def test_where_keeps_the_condition_alone():
    def gradient(torch):
        x = torch.tensor([1.0, -2.0], requires_grad=True)
        y = torch.where(x > 0, x, x * 2)
        with torch.no_grad():
            x.zero_()
        y.sum().backward()
        return type(y.grad_fn).__name__, x.grad.tolist()

    assert both(gradient) == ("WhereBackward0", [1.0, 2.0])


def test_backward_to_inputs():
    def gradients(torch):
        x = torch.ones(2, requires_grad=True)
        y = x * 2
        y.sum().backward(inputs=[y], retain_graph=True)
        kept = y.retains_grad, y.grad.tolist(), x.grad
        y.sum().backward()
        return kept, y.grad.tolist(), x.grad.tolist()

    assert both(gradients) == ((True, [1.0, 1.0], None), [2.0, 2.0], [2.0, 2.0])

    def refused(torch):
        (torch.ones(2, requires_grad=True) * 2).sum().backward(inputs=[torch.ones(2)])

    assert "retain_grad" in both(refused)


def test_a_leaf_that_no_longer_requires_grad_gets_none():
    def gradient(torch):
        x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        z = (x * y).sum()
        x.requires_grad_(False)
        z.backward()
        return x.grad, y.grad.tolist()

    assert both(gradient) == (None, [1.0, 1.0])


def test_what_was_overwritten_gets_zeros():
    def gradients(torch):
        x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        a, b = x * 2, x * 3
        a.copy_(y)
        b.zero_()
        (a + b).sum().backward()
        return x.grad.tolist(), y.grad.tolist()

    assert both(gradients) == ([0.0, 0.0], [1.0, 1.0])


READS = (
    "x * 2", "x * y", "x / y", "x @ y", "F.linear(y, x)", "F.conv1d(y[None], y[:, :, None], x[0])",
    "torch.addmm(x, y, y)", "torch.addmm(y, x, y)", "torch.addcmul(y, x, y)",
    "torch.lerp(x, y, 0.3)",
    "x.sqrt()", "x.rsqrt()", "x.reciprocal()", "x.tanh()", "x.sigmoid()", "x.tan()", "x.expm1()",
    "x.round()", "x.frac()", "x.remainder(y)", "x.fmod(2)",
    "F.interpolate(x[None, None], scale_factor=2)", "F.dropout(x, 0.5)", "x.log()", "y / x",
    "x * x", "y.remainder(x)", "x.prod()", "F.batch_norm(y, None, None, y[0], x[0], True)",
    "torch.outer(x[0], y[0])",
)  # fmt: skip


@pytest.mark.parametrize("expression", READS)
def test_what_a_gradient_does_not_read_may_be_overwritten(expression):
    def gradient(torch):
        torch.manual_seed(0)
        x = (torch.rand(3, 3) * 0.8 + 0.1).requires_grad_()
        y = torch.rand(3, 3) * 0.8 + 0.1
        z = eval(expression, {"x": x, "y": y, "torch": torch, "F": torch.nn.functional})
        with torch.no_grad():
            x.mul_(0.5)
        z.square().sum().backward()
        return [round(v, 3) + 0.0 for v in x.grad.flatten().tolist()]

    both(gradient)


def test_nansum_sends_nothing_to_nan():
    def gradient(torch):
        x = torch.tensor([float("nan"), 1.0], requires_grad=True)
        x.nansum().backward()
        return x.grad.tolist()

    assert both(gradient) == [0.0, 1.0]
