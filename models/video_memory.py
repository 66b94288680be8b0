"""How much memory an autoencoder will take, and the tile and dtype with which it keeps a limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import InputError
from .autoencoder_kl_wan import CHUNK, Config, frames_of
from .autoencoders import empty_autoencoder
from .wan_layers import KEPT

# Tiles to choose from, and the share of a tile that the stride is, as in diffusers' 256/192.
TILES = (512, 384, 256, 192, 128)
STRIDE = 0.75
# Bytes alive at the peak for each value of a chunk's widest frames, by bytes of a value. Encoders
# compute in float32 in places. Measured on Linux's CPU for Wan2.1's and 2.2's and the small one, by
# MLX's peak: at most 4.02 values decoding, 22.8 bytes and in half types 16.2 encoding (2026-12-03).
DECODING, ENCODING = {4: 17.0, 2: 8.5}, {4: 24.0, 2: 17.0}
# Python, MLX and the libraries for files, before a weight is there.
PROCESS = 300 << 20


class Layer(NamedTuple):
    """Values per input of a chunk: that stay for the next chunk, and of the widest frames."""

    kept: int
    widest: int


@dataclass(frozen=True)
class Plan:
    """How a video is coded: `tile` and `stride` in pixels (None: whole), `peak` in bytes.

    `memory` is what is left for finished pixels: more of them go to a file.
    """

    dtype: Any
    tile: int | None
    stride: int | None
    peak: int
    memory: int


class Job(NamedTuple):
    """What is to be done: a direction, and the size of the video in frames and pixels.

    `held` is bytes that are in memory already, as an encoder's input.
    """

    config: Config
    encode: bool
    frames: int
    height: int
    width: int
    held: int = 0


def decoder_layers(config: Config, height: int, width: int, long: bool) -> Iterator[Layer]:
    """Of so many rows and columns of latents; `long` says that a second chunk comes."""
    base = config.decoder_base_dim or config.base_dim
    sizes = [base * n for n in (config.dim_mult[-1], *reversed(config.dim_mult))]
    frames, area, stay = 1, height * width, KEPT if long else 1
    yield Layer(stay * config.z_dim * area, sizes[0] * area)
    yield Layer(4 * stay * sizes[0] * area, 4 * sizes[0] * area)
    for stage, (channels, out) in enumerate(zip(sizes, sizes[1:], strict=False)):
        if stage > 0 and not config.is_residual:
            channels //= 2
        kept = stay * (channels + (2 * config.num_res_blocks + 1) * out) * area
        widest = frames * area * max(channels, out)
        if stage < len(config.dim_mult) - 1:
            temporal = long and config.temperal_downsample[::-1][stage]
            kept += stay * out * area * temporal
            frames, area = frames * (1 + temporal), 4 * area
            widest = frames * area * out
        yield Layer(kept, widest)
    yield Layer(stay * sizes[-1] * area, frames * area * sizes[-1])


def encoder_layers(config: Config, height: int, width: int, long: bool) -> Iterator[Layer]:
    """Of so many rows and columns of pixels, of squares of them where there is a patch size."""
    sizes = [config.base_dim * n for n in (1, *config.dim_mult)]
    frames, stay = (CHUNK, KEPT) if long else (1, 1)
    area = height * width
    yield Layer(stay * config.in_channels * area, frames * area * sizes[0])
    for stage, (channels, out) in enumerate(zip(sizes, sizes[1:], strict=False)):
        kept = stay * (channels + (2 * config.num_res_blocks - 1) * out) * area
        yield Layer(kept, frames * area * max(channels, out))
        if stage < len(config.dim_mult) - 1:
            area //= 4
            if config.temperal_downsample[stage]:
                yield Layer(out * area, frames * area * out)
                frames = max(frames // 2, 1)
    yield Layer(4 * stay * sizes[-1] * area, 4 * sizes[-1] * area)
    yield Layer(stay * sizes[-1] * area, 2 * config.z_dim * area)


def predict(job: Job, dtype: Any, tile: int | None, stride: int | None) -> int:
    """The process's peak in bytes, without finished pixels that wait for the last tile."""
    config, width = job.config, dtype.itemsize
    patch, scale = config.patch_size or 1, config.scale_factor_spatial
    sizes = [job.height, job.width]
    if tile is not None:
        # diffusers measures an encoder's tiles on the patchified grid.
        sizes = [min(n, tile * (patch if job.encode else 1)) for n in sizes]
    long = job.frames > 1
    if job.encode:
        rows, columns = (n // patch for n in sizes)
        layers = list(encoder_layers(config, rows, columns, long))
    else:
        rows, columns = (n // scale for n in sizes)
        layers = list(decoder_layers(config, rows, columns, long))
    kept = sum(layer.kept for layer in layers)
    each = (ENCODING if job.encode else DECODING)[width]
    work = math.ceil(each * max(layer.widest for layer in layers))
    both, half = weights(config, job.encode)
    working = (half + kept) * width + work + _strips(job, tile, stride, width)
    return PROCESS + job.held + max(both * width, working)


def _strips(job: Job, tile: int | None, stride: int | None, width: int) -> int:
    """Bytes of what overlaps: below a row of tiles, right of one tile. Latents are too few.

    They are kept before unpatchify, which makes one channel of patch_size**2.
    """
    if tile is None or stride is None or job.encode or max(job.height, job.width) <= tile:
        return 0
    rows, columns = (math.ceil(size / stride) for size in (job.height, job.width))
    below = columns * min(tile, job.width) * (rows > 1)
    beside = min(tile, job.height) * (columns > 1)
    channels = job.config.out_channels // (job.config.patch_size or 1) ** 2
    return (tile - stride) * (below + beside) * job.frames * channels * width


def weights(config: Config, encode: bool) -> tuple[int, int]:
    """How many weights a model has, all of which are read, and that half of it, which stays."""
    model = empty_autoencoder(config)
    half = (model.encoder, model.quant_conv) if encode else (model.decoder, model.post_quant_conv)
    both, one = (
        sum(parameter.numel() for part in parts for parameter in part.parameters())
        for parts in ((model,), half)
    )
    return both, one


def whole_video(job: Job) -> int:
    """Bytes of all pixels in uint8."""
    chunks = 1 + (job.frames - 1) // CHUNK
    channels = job.config.out_channels // (job.config.patch_size or 1) ** 2
    return channels * frames_of(chunks - 1).stop * job.height * job.width


def choose(job: Job, limit: int, dtypes: Sequence[Any], tiles: Sequence[Any] | None = None) -> Plan:
    """The first of `dtypes` and the largest tile whose peak stays within `limit` bytes.

    `tiles` holds pairs of tile and stride in pixels, or None for whole frames; left out, whole
    frames come first, then tiles from 512 to 128 pixels. Raises InputError with the least limit
    that would do.
    """
    least = None
    for dtype in dtypes:
        for pair in candidates(job) if tiles is None else tiles:
            tile, stride = pair or (None, None)
            peak = predict(job, dtype, tile, stride)
            least = peak if least is None else min(least, peak)
            if peak <= limit:
                # Whole frames stream; those of tiles wait for one another.
                waiting = whole_video(job) if tile is not None and not job.encode else 0
                left = limit - peak
                return Plan(dtype, tile, stride, peak + waiting * (waiting <= left), left)
    what = f"{job.frames} frames of {job.width} x {job.height}"
    raise InputError(
        f"{what} do not fit in {limit / 2**30:.2f} GiB; the least that would do is "
        f"--memory-limit {gibibytes(least or 0)}"
    )


def candidates(job: Job) -> list[tuple[int, int] | None]:
    """Whole frames, and what of TILES cuts them."""
    scale = job.config.scale_factor_spatial
    side = max(job.height, job.width)
    pairs = [(tile, int(tile * STRIDE) // scale * scale) for tile in TILES if tile < side]
    return [None, *pairs]


def gibibytes(size: int) -> str:
    """`1.25GiB`, as the flag takes it: rounded up."""
    return f"{math.ceil(size / 2**30 * 100) / 100:.2f}GiB"
