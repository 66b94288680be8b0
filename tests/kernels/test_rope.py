"""rope: transformers' values, gradients, each form, errors, the variant policy."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from transformers.models.gptj import modeling_gptj
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as qwen

from torchmlx.kernels.accuracy import judge, to_numpy
from torchmlx.kernels.rope import choose, launch, problem, rope
from torchmlx.kernels.spec import OLDEST

CONFIG = qwen.Qwen3_5MoeTextConfig(
    head_dim=256,
    rope_parameters={
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
    },
)
QWEN = {"sections": (11, 11, 10), "sections_interleaved": True}


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def frequencies(d, theta=1e4):
    return (1.0 / theta ** (np.arange(0, d, 2, dtype=np.float32) / d)).astype(np.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_qwen_as_in_transformers(dtype):
    """Partial, three streams of positions in turn; transformers rounds each product to bfloat16."""
    q, k = (torch.tensor(normal(i, 2, h, 5, 256)).to(dtype) for i, h in ((0, 4), (1, 2)))
    positions = torch.tensor(np.random.default_rng(2).integers(0, 9000, (3, 2, 5)))
    embedding = qwen.Qwen3_5MoeTextRotaryEmbedding(CONFIG)
    wants = qwen.apply_rotary_pos_emb(q, k, *embedding(q, positions))
    for x, want in zip((q, k), wants, strict=True):
        got = rope(
            mx.array(x.float().numpy()).astype(getattr(mx, str(dtype).removeprefix("torch."))),
            mx.array(positions.numpy()),
            mx.array(embedding.inv_freq.numpy()),
            **QWEN,
        )
        limit = 1e-12 if dtype == torch.float32 else 1e-5
        assert judge(got, want.double().numpy(), limit).fault == ""


@pytest.mark.parametrize("positions", [np.arange(6), np.array([[3, 4, 5, 6, 7, 8], [0] * 6])])
def test_all_sources_agree(positions):
    """Tables of the tokens, rows of one table and frequencies give the same bits."""
    x = mx.array(normal(3, 2, 3, 6, 20)).astype(mx.bfloat16)
    angles = np.arange(10, dtype=np.float32)[:, None] * frequencies(16)
    angles = mx.array(np.concatenate([angles, angles], axis=1))
    cos, sin = mx.cos(angles), mx.sin(angles)
    want = rope(x, mx.array(positions), mx.array(frequencies(16)))
    lookup = rope(x, mx.array(positions), None, cos, sin)
    own = [table[mx.array(positions)] for table in (cos, sin)]
    own = own if positions.ndim == 1 else [table[:, None] for table in own]
    for got in (lookup, rope(x, None, None, *own)):
        np.testing.assert_array_equal(to_numpy(got), to_numpy(want))
    np.testing.assert_array_equal(to_numpy(want[..., 16:]), to_numpy(x[..., 16:]))


def test_interleaved_as_in_gptj():
    x, table = normal(4, 2, 5, 3, 16), modeling_gptj.create_sinusoidal_positions(9, 16)
    sin, cos = (half[None, 2:7] for half in torch.split(table, 8, dim=-1))
    want = modeling_gptj.apply_rotary_pos_emb(torch.tensor(x), sin, cos).numpy()
    got = rope(
        mx.array(x),
        mx.arange(2, 7),
        mx.array(frequencies(16)),
        interleaved=True,
        heads_last=True,
    )
    np.testing.assert_allclose(np.array(got), want, atol=1e-6)


def test_sections_one_after_another():
    """Each stream's positions reach exactly its own frequencies."""
    x, f = mx.array(normal(5, 1, 2, 3, 12)), mx.array(frequencies(12))
    positions = np.array([[1, 2, 3], [10, 20, 30], [100, 200, 300]])
    got = np.array(rope(x, mx.array(positions), f, sections=(1, 3, 2)))
    for stream, dims in enumerate(([0], [1, 2, 3], [4, 5])):
        whole = np.array(rope(x, mx.array(positions[stream]), f))
        columns = [*dims, *(i + 6 for i in dims)]
        np.testing.assert_array_equal(got[..., columns], whole[..., columns])


def test_heads_last_is_a_transposition():
    x, f, positions = mx.array(normal(6, 2, 7, 3, 16)), mx.array(frequencies(8)), mx.arange(7)
    want = rope(x.swapaxes(1, 2), positions, f).swapaxes(1, 2)
    np.testing.assert_array_equal(rope(x, positions, f, heads_last=True), want)


def test_inverse_turns_back_and_scale_scales():
    x, f, positions = mx.array(normal(7, 2, 3, 5, 16)), mx.array(frequencies(12)), mx.arange(5)
    turned = rope(x, positions, f)
    back = rope(turned, positions, f, inverse=True)
    np.testing.assert_allclose(back, x, atol=1e-6)
    scaled = rope(x, positions, f, scale=1.5)
    np.testing.assert_allclose(scaled[..., :12], 1.5 * turned[..., :12], atol=1e-6)
    np.testing.assert_array_equal(scaled[..., 12:], x[..., 12:])


def test_gradients_as_in_torch():
    """Also for tables whose halves differ, which torch allows."""
    x, cos, sin = normal(8, 2, 3, 5, 10), normal(9, 5, 8), normal(10, 5, 8)
    primals = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (x, cos, sin)]
    turned, opposite = primals[0][..., :8], torch.cat
    rotated = opposite((-turned[..., 4:], turned[..., :4]), -1)
    out = opposite((turned * primals[1] + rotated * primals[2], primals[0][..., 8:]), -1)
    weights = normal(11, 2, 3, 5, 10)
    (out * torch.tensor(weights)).sum().backward()
    function = lambda x, cos, sin: rope(x, None, None, cos, sin)  # noqa: E731
    arrays = [mx.array(a) for a in (x, cos, sin)]
    gradients = mx.vjp(function, arrays, [mx.array(weights)])[1]
    for gradient, primal in zip(gradients, primals, strict=True):
        assert judge(gradient, primal.grad.numpy(), 1e-12).fault == ""


def test_long_contexts_keep_their_angles():
    """Position 262,143 at frequency 1: its angle in float32 is exact, cos and sin must be too."""
    x = mx.array([[[1.0, 0.0]]])
    got = rope(x, mx.array([262_143]), mx.array([1.0]))
    want = [[[np.cos(262_143.0), np.sin(262_143.0)]]]
    np.testing.assert_allclose(got, want, atol=1e-7)


@pytest.mark.parametrize("shape", [(0, 2, 3, 8), (1, 0, 3, 8), (1, 2, 0, 8)])
def test_empty(shape):
    got = rope(mx.zeros(shape), mx.zeros(shape[2], mx.int32), mx.array(frequencies(8)))
    assert got.shape == shape
    mx.eval(got)


F8, P5 = mx.zeros(8), mx.zeros(5, mx.int32)
TABLE = mx.zeros((5, 16))


@pytest.mark.parametrize(
    "shape, arrays, form, message",
    [
        ((5, 16), (None, F8), {}, "frequencies go with positions"),
        ((5, 16), (P5, F8, TABLE, TABLE), {}, "without tables"),
        ((5, 16), (), {}, "give frequencies, or cos and sin"),
        ((5, 16), (None, None, TABLE, TABLE[:, :2]), {}, "cos and sin of one shape"),
        ((5, 14), (P5, F8), {}, "16 dimensions cannot turn in x"),
        ((5, 16), (None, None, TABLE[:, :3], TABLE[:, :3]), {}, "3 dimensions cannot turn"),
        ((5, 16), (None, None, TABLE[:, :0], TABLE[:, :0]), {}, "0 dimensions cannot turn"),
        ((5, 16), (P5, F8[:0]), {}, "0 dimensions cannot turn"),
        ((6, 16), (P5, F8), {}, "5 positions do not fit the tokens"),
        ((16,), (P5, F8), {}, "no axes of tokens"),
        ((5, 16), (P5, F8), {"heads_last": True}, "no axes of tokens"),
        ((5, 16), (P5, F8), {"sections": (4, 2, 2)}, "three sections want positions"),
        ((5, 16), (None, None, TABLE, TABLE), {"scale": 2.0}, "scale go with frequencies"),
    ],
)
def test_arguments_that_do_not_fit(shape, arrays, form, message):
    with pytest.raises(ValueError, match=message):
        rope(mx.zeros(shape), *arrays, **form)


def test_dtypes_that_do_not_fit():
    with pytest.raises(TypeError, match="floating dtype, not .*int32"):
        rope(mx.zeros((5, 16), mx.int32), P5, F8)
    with pytest.raises(TypeError, match="frequencies are float32"):
        rope(mx.zeros((5, 16)), P5, F8.astype(mx.float16))
    with pytest.raises(TypeError, match="unexpected keyword argument 'partial'"):
        rope(mx.zeros((5, 16)), P5, F8, partial=0.5)


@pytest.mark.parametrize(
    "shape, variant",
    [
        ((1, 16, 63, 64), "head"),
        ((1, 16, 64, 64), "heads"),
        ((1, 1, 64, 64), "head"),
        ((0, 1, 64, 64), "fallback"),
    ],
)
def test_choose(shape, variant):
    positions, f = mx.zeros(shape[2], mx.int32), mx.zeros(32)
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        assert choose(problem(mx.zeros(shape, dtype), positions, f), OLDEST) == variant
    assert choose(problem(mx.zeros(shape, mx.float64), positions, f), OLDEST) == "fallback"


def test_launch():
    x = mx.zeros((2, 70, 20, 256), mx.bfloat16)
    turn = problem(x, mx.zeros((3, 2, 70), mx.int32), mx.zeros(32), heads_last=True, **QWEN)
    (got,) = launch(turn, "heads")
    assert (got.grid, got.threadgroup) == ((32, 70, 6), (32, 8, 1))
    assert got.inputs["positions"] == (3, 140)
    assert dict(got.template)["SECTIONS"] == 2
    assert got.scalars["batch_step"] == 70
    assert (got.scalars["stream_step"], got.scalars["each"]) == (140, 8)
    with pytest.raises(ValueError, match="nothing to turn"):
        launch(problem(mx.zeros((0, 5, 16)), P5, F8), "head")
