"""Operators that libraries define in Python, and trees with paths: as torch has them."""

from collections import OrderedDict, defaultdict, namedtuple

import pytest
import torch as real

import torchmlx as ours
from torchmlx.utils import _pytree as own_tree


@pytest.fixture(params=[real, ours], ids=["torch", "torchmlx"])
def torch(request):
    return request.param


def test_an_operator_with_a_gradient(torch):
    @torch.library.custom_op("ours::scaled", mutates_args=())
    def scaled(x: torch.Tensor, *, factor: float = 2.0) -> torch.Tensor:
        return x * factor

    def setup_context(ctx, inputs, keyword_only_inputs, output):
        ctx.factor = keyword_only_inputs["factor"]
        ctx.save_for_backward(inputs[0])

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.factor + 0 * x

    scaled.register_fake(lambda x, factor=2.0: x)
    scaled.register_autograd(backward, setup_context=setup_context)
    x = torch.ones(3, requires_grad=True)
    (scaled(x, factor=3.0) + torch.ops.ours.scaled(x)).sum().backward()
    assert x.grad.tolist() == [5.0] * 3
    assert torch.ops.ours.scaled.default(x).tolist() == [2.0] * 3


def test_an_operator_by_definition(torch):
    library = torch.library.Library("theirs", "FRAGMENT")
    library.define("doubled(Tensor x) -> Tensor")
    library.impl("doubled", lambda x: x + x, "CPU")
    assert torch.ops.theirs.doubled(torch.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises(AttributeError):
        torch.ops.theirs.no_such()
    torch.library.define("theirs::later", "(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError):
        torch.ops.theirs.later(torch.ones(2))
    with pytest.raises(OSError):
        torch.ops.load_library("/no/such.so")


Point = namedtuple("Point", "x y")
TREE = {
    "a": [1, (2, 3)],
    "b": OrderedDict(c=4),
    "d": defaultdict(list, e=5),
    "p": Point(6, [7]),
}


def test_trees_with_paths():
    tree = pytest.importorskip("torch.utils._pytree")
    paths = [(own_tree.keystr(p), leaf) for p, leaf in own_tree.tree_flatten_with_path(TREE)[0]]
    assert paths == [(tree.keystr(p), leaf) for p, leaf in tree.tree_flatten_with_path(TREE)[0]]
    assert paths[-1] == ("['p'].y[0]", 7)
    tripled = own_tree.tree_map_with_path(lambda path, x: x * len(path), TREE)
    assert tripled == tree.tree_map_with_path(lambda path, x: x * len(path), TREE)
    path = own_tree.tree_leaves_with_path(TREE)[-1][0]
    assert own_tree.key_get(TREE, path) == 7


def test_a_container_of_ones_own():
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

    def flatten(pair):
        return [pair.a, pair.b], None

    own_tree.register_pytree_node(Pair, flatten, lambda children, _: Pair(*children))
    assert own_tree.tree_leaves([Pair(1, [2])]) == [1, 2]
    with pytest.raises(ValueError, match="flatten_with_keys_fn"):
        own_tree.tree_leaves_with_path(Pair(1, 2))


def test_what_torchvision_asks_for_at_import():
    """torchvision 0.28: keys of dispatch, symbols of ONNX, stubs of quantised models."""
    keys = ours._C.DispatchKeySet(ours._C.DispatchKey.AutocastCPU)
    both = keys | ours._C.DispatchKeySet(ours._C.DispatchKey.AutocastCUDA)
    assert both == {"AutocastCPU", "AutocastCUDA"}
    x = ours.ones(2)
    with ours._C._ExcludeDispatchKeyGuard(both):
        assert ours.ao.quantization.QuantStub()(x) is x

    from torchmlx.onnx.symbolic_helper import parse_args

    assert parse_args("v", "f")(max) is max
    ours.onnx.register_custom_op_symbolic("torchvision::nms", max, 11)
