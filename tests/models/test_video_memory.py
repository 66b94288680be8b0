"""The planner of memory: what it predicts is what happens, what it chooses keeps the limit."""

import mlx.core as mx
import numpy as np
import pytest

import torchmlx as torch
from torchmlx import Tensor
from torchmlx.errors import InputError
from torchmlx.models import video_memory
from torchmlx.models.assets import small_autoencoder
from torchmlx.models.autoencoder_kl_qwenimage import QwenImageConfig
from torchmlx.models.autoencoder_kl_qwenimage21 import QwenImage21Config
from torchmlx.models.autoencoder_kl_wan import AutoencoderKLWan, Config
from torchmlx.models.autoencoders import empty_autoencoder, load_autoencoder
from torchmlx.models.video_memory import PROCESS, Job, choose, predict

SMALL = {"base_dim": 8, "num_res_blocks": 1}
RESIDUAL = {
    "decoder_base_dim": 12, "z_dim": 6, "is_residual": True, "in_channels": 12,
    "out_channels": 12, "patch_size": 2, "scale_factor_spatial": 16,
}  # fmt: skip
CONFIGS = {
    "2.1": Config(**SMALL, z_dim=4),
    "2.2": Config(**SMALL, **RESIDUAL),
    "deep": Config(base_dim=8, num_res_blocks=2, z_dim=4),
    "qwen": QwenImageConfig(**SMALL, z_dim=4),
    "qwen 2.1": QwenImage21Config(**SMALL, decoder_base_dim=12, z_dim=6, dim_mult=(1, 2, 4, 8, 8)),
}
WAN22 = Config(**{**RESIDUAL, "base_dim": 160, "decoder_base_dim": 256, "z_dim": 48})
WAN21 = Config()


def random_model(config):
    model = type(empty_autoencoder(config))(config)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape) * 0.05
    return model


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("encode", [False, True], ids=["decode", "encode"])
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_frames_that_stay(kind, encode, chunks, monkeypatch):
    """To the value what every convolution keeps for the next chunk."""
    chunks = 1 if kind == "qwen 2.1" else chunks
    config, kept = CONFIGS[kind], []
    evaluated = AutoencoderKLWan._evaluated

    def noted(x, frames):
        kept.append(sum(t.numel() for t in frames.values() if isinstance(t, Tensor)))
        return evaluated(x, frames)

    monkeypatch.setattr(AutoencoderKLWan, "_evaluated", staticmethod(noted))
    model, scale = random_model(config), config.scale_factor_spatial
    patch = config.patch_size or 1
    if encode:
        channels = config.in_channels // patch**2
        model.encode(torch.randn(1, channels, 4 * chunks - 3, 2 * scale, 3 * scale))
        sizes = (2 * scale // patch, 3 * scale // patch)
        layers = video_memory.encoder_layers(config, *sizes, chunks > 1)
    else:
        list(model.decode_frames(torch.randn(1, config.z_dim, chunks, 2, 3)))
        layers = video_memory.decoder_layers(config, 2, 3, chunks > 1)
    assert kept[-1] == sum(layer.kept for layer in layers)


@pytest.mark.parametrize("kind", CONFIGS)
def test_weights(kind):
    model = random_model(CONFIGS[kind])
    both = sum(p.numel() for p in model.parameters())
    half = sum(p.numel() for p in model.decoder.parameters()) + sum(
        p.numel() for p in model.post_quant_conv.parameters()
    )
    assert video_memory.weights(CONFIGS[kind], encode=False) == (both, half)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tile", [None, 96])
@pytest.mark.parametrize("encode", [False, True], ids=["decode", "encode"])
def test_the_peak(dtype, tile, encode):
    """MLX's peak is below what was predicted, and no less than four fifths of it."""
    height, width, chunks = 128, 192, 3
    before = mx.get_active_memory()
    model = load_autoencoder(small_autoencoder(), dtype)
    delattr(model, "decoder" if encode else "encoder")
    stride = None
    if tile is not None:
        stride = tile // 2
        model.enable_tiling(tile, tile, stride, stride)
    shape = (1, 3, 9, height, width) if encode else (1, 48, chunks, height // 16, width // 16)
    x = torch.from_mx(mx.random.normal(shape, key=mx.random.key(0)) * 0.3)
    mx.eval(x.mx)
    mx.reset_peak_memory()
    if encode:
        mx.eval(model.encode(x).latent_dist.mode().mx)
    else:
        for part in model.decode_frames(x, torch.uint8):
            assert np.asarray(part.mx).any()
    taken = mx.get_peak_memory() - before
    job = Job(model.config, encode, 9, height, width, held=x.mx.nbytes)
    predicted = predict(job, dtype, tile, stride) - PROCESS
    assert 0.8 * predicted <= taken <= predicted


def test_choice():
    """Whole frames where they fit, then the largest tile, then the next dtype."""
    job = Job(WAN22, False, 33, 704, 1280)
    dtypes = [torch.float32, torch.bfloat16]
    plan = choose(job, 1 << 50, dtypes)
    assert (plan.dtype, plan.tile, plan.stride) == (torch.float32, None, None)
    sizes = []
    for gib in (32, 16, 8, 6, 5, 4, 3):
        plan = choose(job, gib << 30, dtypes)
        assert plan.peak <= gib << 30
        assert plan.stride is None or 0 < plan.stride < plan.tile and plan.stride % 16 == 0
        sizes.append((plan.dtype is torch.float32, plan.tile or 9999))
        # What does not fit into the rest goes to a file.
        assert plan.memory == (gib << 30) - predict(job, plan.dtype, plan.tile, plan.stride)
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) > 3
    assert choose(job, 64 << 30, [torch.bfloat16], [(256, 192)]).tile == 256


@pytest.mark.parametrize("encode", [False, True], ids=["decode", "encode"])
@pytest.mark.parametrize("config", [WAN21, WAN22], ids=["2.1", "2.2"])
def test_the_least_that_would_do_does(config, encode):
    job = Job(config, encode, 33, 720 // 16 * 16, 1280)
    with pytest.raises(InputError, match="33 frames of 1280 x 720 do not fit in 0.50 GiB") as error:
        choose(job, 1 << 29, [torch.float32, torch.bfloat16])
    least = float(str(error.value).split("--memory-limit ")[1].removesuffix("GiB"))
    plan = choose(job, int(least * 2**30), [torch.float32, torch.bfloat16])
    assert plan.dtype is torch.bfloat16 and plan.tile <= 256
    with pytest.raises(InputError):
        choose(job, int((least - 0.02) * 2**30), [torch.float32, torch.bfloat16])


def test_tiles_do_not_grow_with_the_video():
    """But for what overlaps, and for an encoder's input."""
    short, long = (Job(WAN22, False, frames, 704, 1280) for frames in (9, 81))
    few, many = (predict(job, torch.bfloat16, 256, 192) for job in (short, long))
    strips = 64 * 256 * 8 * 3 * 2  # a frame's, of 7 tiles in a row and one beside
    assert many - few == 72 * strips
    whole = [predict(job, torch.bfloat16, None, None) for job in (short, long)]
    assert whole[0] == whole[1]


@pytest.mark.parametrize("config", [WAN21, WAN22], ids=["2.1", "2.2"])
def test_what_overlaps(config):
    """What stays of tiles is what was predicted, but for the tile at work and what it becomes."""
    job, scale = Job(config, False, 33, 384, 480), config.scale_factor_spatial
    model = empty_autoencoder(config)
    model.enable_tiling(128, 128, 96, 96)
    grid = model.decoding_grid(job.height // scale, job.width // scale)
    made, stays = scale // (config.patch_size or 1), []

    def code(rows, columns):
        for t in range(9):
            sides = ((part.stop - part.start) * made for part in (rows, columns))
            yield torch.ones(1, 4 if t else 1, *sides, config.out_channels)

    def put(*_):
        stays.append(mx.get_active_memory() - before)

    before = mx.get_active_memory()
    grid.code(code, put)
    predicted = video_memory._strips(job, 128, 96, 4)
    tile = 4 * 128 * 128 * 3 * 4
    assert 0.9 * predicted <= max(stays) <= predicted + 2 * tile


def test_a_tile_larger_than_the_picture():
    """Costs what the picture does."""
    job = Job(WAN21, False, 5, 128, 128)
    whole = predict(job, torch.bfloat16, None, None)
    assert predict(job, torch.bfloat16, 512, 384) == whole
    assert video_memory.candidates(job) == [None]
