"""Wan's video autoencoders: 2.1 (also for Wan2.2 A14B) and 2.2 (TI2V-5B), as diffusers has them.

Videos are [B, 3, T, H, W] in -1..1, latents [B, z, t, h, w] as the model makes them: pipelines
normalise theirs by (z - latents_mean) / latents_std. Inside, all is channels-last. Weights come
from diffusers' folders, and from the original release's names (.pth, ComfyUI's safetensors).

Source: diffusers 0.42, autoencoder_kl_wan.py; https://github.com/Wan-Video/Wan2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, Self

import mlx.core as mx

import torchmlx as torch
from torchmlx import Tensor, nn

from ..errors import InputError
from ..serialization.safetensors import SafetensorsFile
from .config import read_json
from .frame_buffer import FILE_ABOVE, FrameBuffer, as_bytes, of_bytes
from .tiling import BLENDS, Grid, Side, check_tile
from .wan_layers import CausalConv3d, Decoder, Encoder, Frames, patchify, unpatchify
from .wan_names import diffusers_name

# Called with the number of chunks done, and of all.
Progress = Callable[[int, int], object]

WEIGHTS = ("diffusion_pytorch_model.safetensors", "model.safetensors")
CHUNK = 4  # frames that become one latent frame, after the first


@dataclass(frozen=True)
class Config:
    """config.json of an AutoencoderKLWan; defaults are Wan2.1's."""

    base_dim: int = 96
    decoder_base_dim: int | None = None
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    temperal_downsample: tuple[bool, ...] = (False, True, True)
    is_residual: bool = False
    in_channels: int = 3
    out_channels: int = 3
    patch_size: int | None = None
    scale_factor_temporal: int = 4
    scale_factor_spatial: int = 8
    latents_mean: tuple[float, ...] = field(default=(), repr=False)
    latents_std: tuple[float, ...] = field(default=(), repr=False)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "config") -> Config:
        """Of config.json's content; InputError for what cannot be one."""
        if values.get("attn_scales"):
            raise InputError(f"{where}: attention inside of stages (attn_scales) is not supported")
        given = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        known: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in given.items()
        }
        try:
            config = cls(**known)
            config._check()
        except (TypeError, ValueError) as error:
            raise InputError(f"{where}: not this autoencoder's configuration: {error}") from None
        return config

    def _check(self) -> None:
        counts = (
            *(self.base_dim, self.z_dim, self.num_res_blocks, self.in_channels, self.out_channels),
            *(self.scale_factor_spatial, self.scale_factor_temporal, *self.dim_mult),
        )
        if not all(type(n) is int and 0 < n < 2**16 for n in counts):
            raise ValueError("sizes are whole numbers above 0")
        if len(self.temperal_downsample) != len(self.dim_mult) - 1:
            raise ValueError("temperal_downsample has an entry between any two of dim_mult")
        if self.patch_size is not None and self.scale_factor_spatial % self.patch_size:
            raise ValueError("scale_factor_spatial is a multiple of patch_size")


def read_config(folder: Path) -> dict[str, Any]:
    """A model folder's config.json; InputError if there is none."""
    return read_json(folder / "config.json")


def weights_file(folder: Path) -> Path:
    """Where a folder's weights are; InputError where there are none."""
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise InputError(f"{folder}: none of {', '.join(WEIGHTS)} is there")
    return file


class DiagonalGaussianDistribution:
    """What an encoder says of the latents: mean and log variance, [B, 2 z, ...] in one tensor."""

    def __init__(self, parameters: Tensor) -> None:
        self.parameters = parameters
        self.mean, logvar = parameters.chunk(2, dim=1)
        self.logvar = logvar.clamp(-30.0, 20.0)
        self.std, self.var = (0.5 * self.logvar).exp(), self.logvar.exp()

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Drawn latents."""
        noise = torch.randn(self.mean.shape, generator=generator, dtype=self.mean.dtype)
        return self.mean + self.std * noise.to(self.mean.device)

    def mode(self) -> Tensor:
        """The likeliest latents: the mean."""
        return self.mean


class EncoderOutput(NamedTuple):
    """What `encode` returns."""

    latent_dist: DiagonalGaussianDistribution


class DecoderOutput(NamedTuple):
    """What `decode` returns."""

    sample: Tensor


class AutoencoderKLWan(nn.Module):
    """Videos to latents and back. diffusers.AutoencoderKLWan."""

    config_class = Config
    clamps_tiles = True  # as whole frames are: what a tiled decode gives lies in -1..1 too

    def __init__(self, config: Config | None = None, **values: Any) -> None:
        super().__init__()
        self.config = config = config or self.config_class.from_dict(values)
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.quant_conv = CausalConv3d(2 * config.z_dim, 2 * config.z_dim, 1)
        self.post_quant_conv = CausalConv3d(config.z_dim, config.z_dim, 1)
        self.requires_grad_(False)  # the tape would keep every frame
        self.use_slicing = self.use_tiling = False
        self.tile_sample_min_height = self.tile_sample_min_width = 256
        self.tile_sample_stride_height = self.tile_sample_stride_width = 192
        self.tile_blend = "linear"

    # ---- files

    @classmethod
    def from_pretrained(cls, path: str | Path, torch_dtype: Any = None) -> Self:
        """Of a folder with config.json and safetensors, in `torch_dtype` or the file's.

        Raises InputError for a folder that is none, or whose weights do not fit.
        """
        folder = Path(path)
        values = read_config(folder)
        model = cls(cls.config_class.from_dict(values, f"{folder}/config.json"))
        return model.load_weights(weights_file(folder), torch_dtype)

    @classmethod
    def from_single_file(cls, path: str | Path, config: Config, torch_dtype: Any = None) -> Self:
        """Of one .safetensors or .pth, with diffusers' or the original names."""
        return cls(config).load_weights(path, torch_dtype)

    def load_weights(self, path: str | Path, torch_dtype: Any = None) -> Self:
        """Take the weights of a file; InputError if one is missing, unknown or of another size."""
        wanted = dict(self.named_parameters())
        owners = {name: module for name, module in self.named_modules()}
        residual = self.config.is_residual
        for stored, tensor in _tensors(Path(path)):
            name = diffusers_name(stored, residual)
            if (parameter := wanted.pop(name, None)) is None:
                raise InputError(f"{path}: {stored} is no weight of this model, or is there twice")
            owner, _, leaf = name.rpartition(".")
            pack = getattr(owners[owner], "packed", None) if leaf != "bias" else None
            tensor = pack(tensor) if pack is not None and tensor.ndim > 1 else tensor
            if tensor.shape != parameter.shape:
                raise InputError(
                    f"{path}: {stored} has shape {list(tensor.shape)}, the model wants "
                    f"{list(parameter.shape)} (channels last)"
                )
            parameter.data = tensor.to(torch_dtype or tensor.dtype)
            mx.eval(parameter.mx)
        if wanted:
            raise InputError(f"{path}: {len(wanted)} weights are missing, as {min(wanted)}")
        return self

    @property
    def dtype(self) -> Any:
        """The weights' dtype."""
        return self.post_quant_conv.weight.dtype

    # ---- settings

    def enable_tiling(
        self,
        tile_sample_min_height: int | None = None,
        tile_sample_min_width: int | None = None,
        tile_sample_stride_height: int | None = None,
        tile_sample_stride_width: int | None = None,
        blend: str = "linear",
    ) -> None:
        """Code overlapping tiles one by one and blend them: less memory. Sizes are in pixels.

        `blend` is linear, as in diffusers, or cosine: no edge where a blend begins or ends, and no
        last tile that has less around it than the one before. Raises InputError for a stride
        above the tile, and for what is no multiple of the scale.
        """
        if blend not in BLENDS:
            raise InputError(f"blend {blend!r} is not one of {', '.join(BLENDS)}")
        sides = ("height", "width")
        tiles = {"height": tile_sample_min_height, "width": tile_sample_min_width}
        strides = {"height": tile_sample_stride_height, "width": tile_sample_stride_width}
        scale = self.config.scale_factor_spatial
        for side in sides:
            tile = tiles[side] or getattr(self, f"tile_sample_min_{side}")
            stride = strides[side] or getattr(self, f"tile_sample_stride_{side}")
            check_tile(tile, stride, scale)
            setattr(self, f"tile_sample_min_{side}", tile)
            setattr(self, f"tile_sample_stride_{side}", stride)
        self.use_tiling, self.tile_blend = True, blend

    def disable_tiling(self) -> None:
        """Code whole frames."""
        self.use_tiling = False

    def enable_slicing(self) -> None:
        """Code one video of a batch at a time."""
        self.use_slicing = True

    def disable_slicing(self) -> None:
        """Code all videos of a batch at once."""
        self.use_slicing = False

    # ---- coding

    def encode(
        self, x: Tensor | FrameBuffer, return_dict: bool = True, progress: Progress | None = None
    ) -> Any:
        """Latents [B, z, 1 + (T - 1) // 4, H / s, W / s] of a video [B, C, T, H, W] in -1..1.

        `progress` is called with the number of chunks of frames coded, and of all, tiles included.
        """
        config = self.config
        channels = config.in_channels // (config.patch_size or 1) ** 2
        self._check(x, channels, "a video", config.scale_factor_spatial)
        parts = x.split(1) if self.use_slicing and isinstance(x, Tensor) else (x,)
        moments = torch.cat([self._encode(part, Counter(progress)) for part in parts])
        posterior = DiagonalGaussianDistribution(moments)
        return EncoderOutput(posterior) if return_dict else (posterior,)

    def decode(self, z: Tensor, return_dict: bool = True) -> Any:
        """The video [B, 3, 1 + 4 (t - 1), h s, w s] of latents [B, z, t, h, w]."""
        self._check(z, self.config.z_dim, "latents", 1)
        parts = z.split(1) if self.use_slicing else (z,)
        sample = torch.cat([self._decode(part) for part in parts])
        return DecoderOutput(sample) if return_dict else (sample,)

    def decode_frames(
        self,
        z: Tensor,
        dtype: Any = None,
        memory: int = FILE_ABOVE,
        progress: Progress | None = None,
    ) -> Iterator[Tensor]:
        """The frames of `decode`, [B, 3, 1 or 4, H, W] at a time, as soon as they are there.

        With tiling they come at the end, since diffusers' tiles are whole videos: finished pixels
        wait in `dtype`, in a temporary file if they take more than `memory` bytes. `dtype` is the
        model's or torch.uint8, in which 0..255 are -1..1. `progress` is as in `encode`.
        """
        self._check(z, self.config.z_dim, "latents", 1)
        dtype, count = dtype or self.dtype, Counter(progress)
        if (grid := self.decoding_grid(*z.shape[3:])) is None:
            count.total = z.shape[2]
            for x in count(self._decode_tile(z)):
                x = self._finished(x)
                yield (as_bytes(x) if dtype is torch.uint8 else x.to(dtype)).permute(0, 4, 1, 2, 3)
            return
        buffer = self._tiled_decode(z, grid, dtype, memory, count)
        for t in range(z.shape[2]):
            yield buffer.read(frames_of(t)).permute(0, 4, 1, 2, 3)

    def forward(self, sample: Tensor, sample_posterior: bool = False, generator=None) -> Any:
        """There and back. diffusers.AutoencoderKLWan.forward."""
        posterior = self.encode(sample).latent_dist
        return self.decode(posterior.sample(generator) if sample_posterior else posterior.mode())

    def _check(self, x: Tensor | FrameBuffer, channels: int, what: str, multiple: int) -> None:
        if x.ndim != 5 or x.shape[1] != channels:
            raise InputError(
                f"{what} for this model are [B, {channels}, T, H, W], not {list(x.shape)}"
            )
        if 0 in x.shape or x.shape[3] % multiple or x.shape[4] % multiple:
            raise InputError(
                f"{what} of {x.shape[2]} frames of {x.shape[3]} x {x.shape[4]}: at least one "
                f"frame, height and width multiples of {multiple}"
            )
        if isinstance(x, Tensor) and not x.is_floating_point():
            raise InputError(f"{what} are floating-point numbers, not {x.dtype}")

    def _encode(self, x: Tensor | FrameBuffer, count: Counter) -> Tensor:
        chunks = 1 + (x.shape[2] - 1) // CHUNK
        grid = self.encoding_grid(*x.shape[3:])
        if grid is None:
            count.total = chunks
            whole = slice(0, x.shape[3]), slice(0, x.shape[4])
            return torch.cat(list(count(self._encode_tile(x, *whole))), 1).permute(0, 4, 1, 2, 3)
        count.total = chunks * grid.count
        size, patch = self.config.scale_factor_spatial, self.config.patch_size or 1
        out = torch.empty(
            *(x.shape[0], chunks, x.shape[3] // size, x.shape[4] // size, 2 * self.config.z_dim),
            dtype=self.dtype,
        )

        def code(rows: slice, columns: slice) -> Iterator[Tensor]:
            return count(self._encode_tile(x, _times(rows, patch), _times(columns, patch)))

        def put(part: Tensor, chunk: int, row: int, column: int) -> None:
            height, width = part.shape[2:4]
            out[:, chunk : chunk + 1, row : row + height, column : column + width] = part
            mx.eval(out.mx)

        grid.code(code, put)
        return out.permute(0, 4, 1, 2, 3)

    def _encode_tile(
        self, x: Tensor | FrameBuffer, rows: slice, columns: slice
    ) -> Iterator[Tensor]:
        """Means and log variances of a part of the picture, a latent frame at a time."""
        frames: Frames = {}
        for chunk in range(1 + (x.shape[2] - 1) // CHUNK):
            if isinstance(x, FrameBuffer):
                part = x.read(frames_of(chunk), rows, columns)
                part = part if x.is_floating_point() else of_bytes(part)
            else:
                part = x[:, :, frames_of(chunk), rows, columns].permute(0, 2, 3, 4, 1)
            part = part.to(self.dtype)
            if self.config.patch_size is not None:
                part = patchify(part, self.config.patch_size)
            yield self._evaluated(self.quant_conv(self.encoder(part, frames)), frames)

    def _decode(self, z: Tensor) -> Tensor:
        if (grid := self.decoding_grid(*z.shape[3:])) is None:
            out = torch.cat([self._finished(x) for x in self._decode_tile(z)], 1)
        else:
            out = self._tiled_decode(z, grid, self.dtype).read(slice(None))
        return out.permute(0, 4, 1, 2, 3)

    def _decode_tile(
        self, z: Tensor, rows: slice = slice(None), columns: slice = slice(None)
    ) -> Iterator[Tensor]:
        """Pixels of a part of the latents before `_finished`, 1 or 4 frames at a time."""
        frames: Frames = {}
        for t in range(z.shape[2]):
            part = z[:, :, t : t + 1, rows, columns].to(self.dtype).permute(0, 2, 3, 4, 1)
            x = self.decoder(self.post_quant_conv(part), frames, t == 0)
            yield self._evaluated(x, frames)

    def _tiled_decode(
        self, z: Tensor, grid: Grid, dtype: Any, memory: int = FILE_ABOVE, count: Any = None
    ) -> FrameBuffer:
        """All frames; tiles are blended before unpatchify, as diffusers does."""
        config, count = self.config, count or Counter(None)
        scale, patch = config.scale_factor_spatial, config.patch_size or 1
        batch, _, t, height, width = z.shape
        channels = config.out_channels // patch**2
        shape = (batch, channels, frames_of(t - 1).stop, height * scale, width * scale)
        buffer = FrameBuffer.allocate(shape, dtype, memory)
        count.total = t * grid.count

        def put(part: Tensor, chunk: int, row: int, column: int) -> None:
            pixels = self._finished(part, self.clamps_tiles)
            buffer.write(pixels, frames_of(chunk).start, row * patch, column * patch)

        grid.code(lambda rows, columns: count(self._decode_tile(z, rows, columns)), put)
        return buffer

    def _finished(self, x: Tensor, clamp: bool = True) -> Tensor:
        if self.config.patch_size is not None:
            x = unpatchify(x, self.config.patch_size)
        return x.clamp(-1.0, 1.0) if clamp else x

    # ---- tiles

    def decoding_grid(self, height: int, width: int) -> Grid | None:
        """The tiles of so many rows and columns of latents; None where they are coded whole."""
        scale = self.config.scale_factor_spatial
        if not self._needs_tiles(height * scale, width * scale):
            return None
        return self._grid((height, width), scale, self.config.patch_size or 1)

    def encoding_grid(self, height: int, width: int) -> Grid | None:
        """The same of pixels. Tiles are measured on the patchified grid, as diffusers does."""
        if not self._needs_tiles(height, width):
            return None
        patch = self.config.patch_size or 1
        sizes = (height // patch, width // patch)
        return self._grid(sizes, 1, self.config.scale_factor_spatial // patch)

    def _needs_tiles(self, height: int, width: int) -> bool:
        larger = height > self.tile_sample_min_height or width > self.tile_sample_min_width
        return self.use_tiling and larger

    def _grid(self, sizes: tuple[int, int], scale: int, made: int) -> Grid:
        """Tiles of the set size / scale; what comes of one has the set size / made."""
        tiles = (self.tile_sample_min_height, self.tile_sample_min_width)
        strides = (self.tile_sample_stride_height, self.tile_sample_stride_width)
        rows, columns = (
            Side(size, tile // scale, stride // scale, tile // made, stride // made)
            for size, tile, stride in zip(sizes, tiles, strides, strict=True)
        )
        return Grid(rows, columns, self.tile_blend)

    @staticmethod
    def _evaluated(x: Tensor, frames: Frames) -> Tensor:
        """`x`, computed now with what the pass keeps, so that nothing else stays in memory."""
        mx.eval(x.mx, [kept.mx for kept in frames.values() if isinstance(kept, Tensor)])
        mx.clear_cache()
        return x


class Counter:
    """Tells a progress function of each chunk that passes, out of `total`."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress, self.total, self.done = progress, 0, 0

    def __call__(self, chunks: Iterable[Tensor]) -> Iterator[Tensor]:
        for chunk in chunks:
            self.done += 1
            if self.progress is not None:
                self.progress(self.done, self.total)
            yield chunk


def frames_of(chunk: int) -> slice:
    """The frames that belong to a latent frame: one to the first, then four each."""
    return slice(0, 1) if chunk == 0 else slice(1 + CHUNK * (chunk - 1), 1 + CHUNK * chunk)


def _times(part: slice, by: int) -> slice:
    return slice(part.start * by, part.stop * by)


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a .safetensors file or of torch.save's."""
    if path.suffix == ".safetensors":
        with SafetensorsFile(path) as file:
            for info, array in file.items():
                yield info.name, torch.from_mx(array)
        return
    state = torch.load(path, map_location="cpu")
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        raise InputError(f"{path}: not a dictionary of tensors")
    yield from state.items()
