"""cached_attention: torch's values, what it writes to, errors."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from torchmlx.kernels import native
from torchmlx.kernels.accuracy import judge
from torchmlx.kernels.cached_attention import cached_attention
from torchmlx.kernels.kernel import bare

B, H, KH, S, D = 2, 4, 2, 12, 16


def arrays(batch: int = B) -> dict[str, mx.array]:
    rng = np.random.default_rng(3)
    shapes = {"q": (batch, 1, H * D), "k": (batch, 1, KH * D), "v": (batch, 1, KH * D)}
    shapes |= {"cos": (batch, 1, 1, D), "sin": (batch, 1, 1, D)}
    shapes |= {"keys": (batch, KH, S, D), "values": (batch, KH, S, D)}
    made = {name: mx.array(rng.standard_normal(s, np.float32)) for name, s in shapes.items()}
    made["rows"] = mx.array([7, 3][:batch], mx.int32)
    mx.eval(list(made.values()))
    return made


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def test_values_are_torchs():
    given = arrays()
    got = cached_attention(**given)
    t = {name: torch.tensor(np.array(x)).double() for name, x in given.items()}
    q, k, v = (t[name].view(B, -1, 1, D) for name in "qkv")
    q, k = (turned(x, t["cos"], t["sin"]) for x in (q, k))
    keys, values = t["keys"], t["values"]
    for b, row in enumerate((7, 3)):
        keys[b, :, row], values[b, :, row] = k[b, :, 0], v[b, :, 0]
    seen = (torch.arange(S) <= torch.tensor([[7], [3]]))[:, None, None]
    out = scaled_dot_product_attention(q, keys, values, seen, enable_gqa=True)
    for mine, theirs in zip(got, (out.reshape(B, 1, -1), keys, values), strict=True):
        assert judge(mine, theirs.numpy(), 1e-12).fault == ""


def address(x: mx.array) -> int:
    return np.asarray(memoryview(x)).__array_interface__["data"][0]


@pytest.mark.skipif(bool(native.obstacle()), reason="needs the C++ extension")
def test_a_buffer_that_nothing_else_holds_is_written_to():
    given = arrays(1)
    before = address(given["keys"]), address(given["values"])
    with bare():  # as in a compiled step; outside of one, MLX's nodes for gradients hold it
        _, keys, values = cached_attention(**given)
    given.clear()
    mx.eval(keys, values)
    assert (address(keys), address(values)) == before


def test_a_buffer_that_is_held_stays_as_it_is():
    given = arrays()
    kept, before = given["keys"], np.array(given["keys"])
    out, keys, _ = cached_attention(**given)
    mx.eval(out, keys)
    assert np.array_equal(np.array(kept), before)
    assert not np.array_equal(np.array(keys), before)


def test_what_does_not_fit_is_refused():
    given = arrays()
    with pytest.raises(ValueError, match=r"q \(2, 1, 63\), k .* do not fit keys \(2, 2, 12, 16\)"):
        cached_attention(**{**given, "q": mx.zeros((B, 1, 63))})
    with pytest.raises(ValueError, match=r"keys \(2, 2, 12, 16\), values \(2, 2, 12, 8\)"):
        cached_attention(**{**given, "values": mx.zeros((B, KH, S, 8))})
    with pytest.raises(ValueError, match=r"cos \(3, 16\), sin \(3, 16\), 2 sequences"):
        cached_attention(**{**given, "cos": mx.zeros((3, D)), "sin": mx.zeros((3, D))})
    with pytest.raises(ValueError, match="3 dimensions cannot turn in heads of 16"):
        cached_attention(**{**given, "cos": mx.zeros((1, 3)), "sin": mx.zeros((1, 3))})
    with pytest.raises(ValueError, match=r"rows \(1,\), not \(2,\)"):
        cached_attention(**{**given, "rows": mx.array([1])})
    with pytest.raises(TypeError, match="integer rows, not .*float32"):
        cached_attention(**{**given, "rows": mx.zeros((B,))})
    with pytest.raises(TypeError, match="one floating dtype, not .*float16.*float32"):
        cached_attention(**{**given, "q": given["q"].astype(mx.float16)})
