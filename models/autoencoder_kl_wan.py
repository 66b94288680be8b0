"""Wan's video autoencoders: 2.1 (also for Wan2.2 A14B) and 2.2 (TI2V-5B), as diffusers has them.

Videos are [B, 3, T, H, W] in -1..1, latents [B, z, t, h, w] as the model makes them: pipelines
normalise theirs by (z - latents_mean) / latents_std. Inside, all is channels-last. Weights come
from diffusers' folders, and from the original release's names (.pth, ComfyUI's safetensors).

Source: diffusers 0.42, autoencoder_kl_wan.py; https://github.com/Wan-Video/Wan2.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, Self

import mlx.core as mx

import torchmlx as torch
from torchmlx import Tensor, nn

from ..errors import InputError
from ..serialization.safetensors import SafetensorsFile
from .wan_layers import CausalConv3d, Decoder, Encoder, Frames, patchify, unpatchify

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
    try:
        values = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: no readable config.json ({error})") from None
    if not isinstance(values, dict):
        raise InputError(f"{folder}/config.json: not an object")
    return values


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

    # ---- files

    @classmethod
    def from_pretrained(cls, path: str | Path, torch_dtype: Any = None) -> Self:
        """Of a folder with config.json and safetensors, in `torch_dtype` or the file's.

        Raises InputError for a folder that is none, or whose weights do not fit.
        """
        folder = Path(path)
        values = read_config(folder)
        model = cls(cls.config_class.from_dict(values, f"{folder}/config.json"))
        file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
        if file is None:
            raise InputError(f"{folder}: none of {', '.join(WEIGHTS)} is there")
        return model.load_weights(file, torch_dtype)

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
    ) -> None:
        """Code overlapping tiles one by one and blend them: less memory. Sizes are in pixels.

        Raises InputError for a stride above the tile, and for what is no multiple of the scale.
        """
        sides = ("height", "width")
        tiles = {"height": tile_sample_min_height, "width": tile_sample_min_width}
        strides = {"height": tile_sample_stride_height, "width": tile_sample_stride_width}
        scale = self.config.scale_factor_spatial
        for side in sides:
            tile = tiles[side] or getattr(self, f"tile_sample_min_{side}")
            stride = strides[side] or getattr(self, f"tile_sample_stride_{side}")
            if not 0 < stride <= tile or tile % scale or stride % scale:
                raise InputError(
                    f"tile {side} {tile} and stride {stride}: the stride is at most the tile, both "
                    f"are multiples of {scale} pixels"
                )
            setattr(self, f"tile_sample_min_{side}", tile)
            setattr(self, f"tile_sample_stride_{side}", stride)
        self.use_tiling = True

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

    def encode(self, x: Tensor, return_dict: bool = True) -> Any:
        """Latents [B, z, 1 + (T - 1) // 4, H / s, W / s] of a video [B, C, T, H, W] in -1..1."""
        config = self.config
        channels = config.in_channels // (config.patch_size or 1) ** 2
        self._check(x, channels, "a video", config.scale_factor_spatial)
        parts = x.split(1) if self.use_slicing else (x,)
        posterior = DiagonalGaussianDistribution(torch.cat([self._encode(p) for p in parts]))
        return EncoderOutput(posterior) if return_dict else (posterior,)

    def decode(self, z: Tensor, return_dict: bool = True) -> Any:
        """The video [B, 3, 1 + 4 (t - 1), h s, w s] of latents [B, z, t, h, w]."""
        self._check(z, self.config.z_dim, "latents", 1)
        parts = z.split(1) if self.use_slicing else (z,)
        sample = torch.cat([torch.cat(list(self._decode(part)), 2) for part in parts])
        return DecoderOutput(sample) if return_dict else (sample,)

    def decode_frames(self, z: Tensor) -> Iterator[Tensor]:
        """The frames of `decode`, [B, 3, 1 or 4, H, W] at a time, as soon as they are there.

        With tiling all come at the end, since diffusers' tiles are whole videos.
        """
        self._check(z, self.config.z_dim, "latents", 1)
        yield from self._decode(z)

    def forward(self, sample: Tensor, sample_posterior: bool = False, generator=None) -> Any:
        """There and back. diffusers.AutoencoderKLWan.forward."""
        posterior = self.encode(sample).latent_dist
        return self.decode(posterior.sample(generator) if sample_posterior else posterior.mode())

    def _check(self, x: Tensor, channels: int, what: str, multiple: int) -> None:
        if x.ndim != 5 or x.shape[1] != channels:
            raise InputError(
                f"{what} for this model are [B, {channels}, T, H, W], not {list(x.shape)}"
            )
        if 0 in x.shape or x.shape[3] % multiple or x.shape[4] % multiple:
            raise InputError(
                f"{what} of {x.shape[2]} frames of {x.shape[3]} x {x.shape[4]}: at least one "
                f"frame, height and width multiples of {multiple}"
            )
        if not x.is_floating_point():
            raise InputError(f"{what} are floating-point numbers, not {x.dtype}")

    def _encode(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype).permute(0, 2, 3, 4, 1)
        height, width = x.shape[2:4]
        if self.config.patch_size is not None:
            x = patchify(x, self.config.patch_size)
        tile = (self.tile_sample_min_height, self.tile_sample_min_width)
        if self.use_tiling and (height > tile[0] or width > tile[1]):
            out = self._tiled_encode(x, tile)
        else:
            out = self._encode_tile(x)
        return out.permute(0, 4, 1, 2, 3)

    def _encode_tile(self, x: Tensor) -> Tensor:
        frames: Frames = {}
        parts = []
        for chunk in range(1 + (x.shape[1] - 1) // CHUNK):
            begin = 1 + CHUNK * (chunk - 1)
            part = x[:, :1] if chunk == 0 else x[:, begin : begin + CHUNK]
            parts.append(self._evaluated(self.quant_conv(self.encoder(part, frames)), frames))
        return torch.cat(parts, 1)

    def _tiled_encode(self, x: Tensor, tile: tuple[int, int]) -> Tensor:
        """Tiles are measured on the patchified grid, as diffusers measures them."""
        scale = self.config.scale_factor_spatial // (self.config.patch_size or 1)
        stride = (self.tile_sample_stride_height, self.tile_sample_stride_width)
        plan = _Plan(
            tile, stride, tuple(n // scale for n in tile), tuple(n // scale for n in stride)
        )
        size = (x.shape[2] // scale, x.shape[3] // scale)
        return _blended(x, plan, size, self._encode_tile)

    def _decode(self, z: Tensor) -> Iterator[Tensor]:
        z = z.to(self.dtype).permute(0, 2, 3, 4, 1)
        scale = self.config.scale_factor_spatial
        tile = (self.tile_sample_min_height // scale, self.tile_sample_min_width // scale)
        if self.use_tiling and (z.shape[2] > tile[0] or z.shape[3] > tile[1]):
            yield self._finished(self._tiled_decode(z, tile), self.clamps_tiles)
        else:
            yield from map(self._finished, self._decode_tile(z))

    def _decode_tile(self, z: Tensor) -> Iterator[Tensor]:
        frames: Frames = {}
        for t in range(z.shape[1]):
            x = self.decoder(self.post_quant_conv(z[:, t : t + 1]), frames, t == 0)
            yield self._evaluated(x, frames)

    def _tiled_decode(self, z: Tensor, tile: tuple[int, int]) -> Tensor:
        """Blended before unpatchify, as diffusers does."""
        scale, patch = self.config.scale_factor_spatial, self.config.patch_size or 1
        pixels = (self.tile_sample_stride_height, self.tile_sample_stride_width)
        stride = tuple(n // scale for n in pixels)
        whole = (self.tile_sample_min_height, self.tile_sample_min_width)
        plan = _Plan(
            tile, stride, tuple(n // patch for n in whole), tuple(n // patch for n in pixels)
        )
        size = (z.shape[2] * scale // patch, z.shape[3] * scale // patch)
        return _blended(z, plan, size, lambda part: torch.cat(list(self._decode_tile(part)), 1))

    def _finished(self, x: Tensor, clamp: bool = True) -> Tensor:
        if self.config.patch_size is not None:
            x = unpatchify(x, self.config.patch_size)
        return (x.clamp(-1.0, 1.0) if clamp else x).permute(0, 4, 1, 2, 3)

    @staticmethod
    def _evaluated(x: Tensor, frames: Frames) -> Tensor:
        """`x`, computed now with what the pass keeps, so that nothing else stays in memory."""
        mx.eval(x.mx, [kept.mx for kept in frames.values() if isinstance(kept, Tensor)])
        mx.clear_cache()
        return x


class _Plan(NamedTuple):
    """Tile and stride of the input, and of what the model makes of them: (height, width) each."""

    tile: tuple[int, ...]
    stride: tuple[int, ...]
    made: tuple[int, ...]
    kept: tuple[int, ...]


def _divided(pixels: tuple[int, ...], by: int) -> tuple[int, ...]:
    return tuple(n // by for n in pixels)


def _blended(x: Tensor, plan: _Plan, size: tuple[int, int], code: Any) -> Tensor:
    """`code` of every tile of x [B, T, H, W, C], blended where they overlap, `size` of it.

    As in diffusers each tile is blended with its neighbours as they are after blending, above
    first, and a last tile that is smaller than the overlap blends over its own size.
    """
    overlap = [made - kept for made, kept in zip(plan.made, plan.kept, strict=True)]
    above: list[Tensor] = []
    rows = []
    for i in range(0, x.shape[2], plan.stride[0]):
        row: list[Tensor] = []
        edges: list[Tensor] = []
        left = None
        for n, j in enumerate(range(0, x.shape[3], plan.stride[1])):
            tile = code(x[:, :, i : i + plan.tile[0], j : j + plan.tile[1]])
            if above:
                tile = _ramp(above[n], tile, overlap[0], 2)
            if left is not None:
                tile = _ramp(left, tile, overlap[1], 3)
            edges.append(_edge(tile, overlap[0], 2))
            left = _edge(tile, overlap[1], 3)
            row.append(tile[:, :, : plan.kept[0], : plan.kept[1]])
            mx.eval(row[-1].mx, edges[-1].mx, left.mx)
        above = edges
        rows.append(torch.cat(row, 3))
    return torch.cat(rows, 2)[:, :, : size[0], : size[1]]


def _edge(tile: Tensor, extent: int, dim: int) -> Tensor:
    """Its last rows (dim 2) or columns (dim 3)."""
    count = tile.shape[dim]
    return tile.narrow(dim, max(count - extent, 0), min(extent, count))


def _ramp(before: Tensor, tile: Tensor, extent: int, dim: int) -> Tensor:
    """`tile`, its first rows or columns mixed with the last ones of the tile before."""
    extent = min(before.shape[dim], tile.shape[dim], extent)
    if extent == 0:
        return tile
    shape = [1] * tile.ndim
    shape[dim] = extent
    weight = (torch.arange(extent, dtype=torch.float64) / extent).to(tile.dtype).reshape(shape)
    old = before.narrow(dim, before.shape[dim] - extent, extent)
    mixed = old * (1 - weight) + tile.narrow(dim, 0, extent) * weight
    return torch.cat([mixed, tile.narrow(dim, extent, tile.shape[dim] - extent)], dim)


# ---- names

_COMMON = (
    (r"^conv1\.", "quant_conv."),
    (r"^conv2\.", "post_quant_conv."),
    (r"^(encoder|decoder)\.conv1\.", r"\1.conv_in."),
    (r"\.middle\.0\.", ".mid_block.resnets.0."),
    (r"\.middle\.1\.", ".mid_block.attentions.0."),
    (r"\.middle\.2\.", ".mid_block.resnets.1."),
    (r"\.head\.0\.", ".norm_out."),
    (r"\.head\.2\.", ".conv_out."),
    (r"\.residual\.0\.", ".norm1."),
    (r"\.residual\.2\.", ".conv1."),
    (r"\.residual\.3\.", ".norm2."),
    (r"\.residual\.6\.", ".conv2."),
    (r"\.shortcut\.", ".conv_shortcut."),
)
_PARTS = r"s\.\d+\.(resample|time_conv)\."
_RESIDUAL = (
    (
        r"^encoder\.downsamples\.(\d+)\.downsample" + _PARTS,
        r"encoder.down_blocks.\1.downsampler.\2.",
    ),
    (r"^encoder\.downsamples\.(\d+)\.downsamples\.(\d+)\.", r"encoder.down_blocks.\1.resnets.\2."),
    (r"^decoder\.upsamples\.(\d+)\.upsample" + _PARTS, r"decoder.up_blocks.\1.upsampler.\2."),
    (r"^decoder\.upsamples\.(\d+)\.upsamples\.(\d+)\.", r"decoder.up_blocks.\1.resnets.\2."),
)  # fmt: skip


def diffusers_name(name: str, residual: bool) -> str:
    """A weight's name in diffusers, of that or of its name in the original release."""
    if re.match(r"^(encoder|decoder)\.(conv_in|down_blocks|up_blocks|mid_block|norm_out|conv_out)|"
                r"^(post_)?quant_conv", name):  # fmt: skip
        return name
    for old, new in (*_COMMON, *(_RESIDUAL if residual else ())):
        name = re.sub(old, new, name)
    if residual:
        return name
    name = name.replace("encoder.downsamples.", "encoder.down_blocks.")
    # A flat list of four stages: three residual blocks and, but for the last, an upsampler.
    if found := re.match(r"^decoder\.upsamples\.(\d+)\.(.*)", name):
        stage, place = divmod(int(found[1]), 4)
        part = f"resnets.{place}" if place < 3 else "upsamplers.0"
        name = f"decoder.up_blocks.{stage}.{part}.{found[2]}"
    return name


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
