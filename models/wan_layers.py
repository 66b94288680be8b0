"""The layers of Wan's video autoencoders, frame by frame, on [B, T, H, W, C].

Convolutions are causal in time: they see frames before, never behind. A video goes through in
chunks of frames, and each convolution keeps the last frames it saw in a `Frames` of the call.
The functions are diffusers 0.42's (autoencoder_kl_wan.py), names of parts and weights too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

import torchmlx as torch
from torchmlx import Tensor, nn, ops
from torchmlx.nn import functional as F

# What one pass over a video remembers, by layer: the last frames of its input, or that it began.
Frames = dict[nn.Module, Any]
KEPT = 2
STARTED = "started"


def last_frames(x: Tensor, count: int) -> Tensor:
    """Its last frames in memory of their own: a slice would keep all of x alive."""
    return x[:, -count:].clone()


def settled(*tensors: Tensor) -> Tensor:
    """The first of some tensors, all computed now.

    Memory stays that of one layer and, on tiles of 64 pixels, half of what one evaluation a frame
    took (58 against 101 MiB beside the weights, Wan2.2 in bfloat16); speed is the same, 2026-12-02.
    """
    mx.eval([tensor.mx for tensor in tensors])
    return tensors[0]


class CausalConv3d(nn.Module):
    """A convolution with zeros in front of the first frame, none behind the last.

    The weight is kept as [O, KT, KH, KW, C].
    """

    def __init__(
        self,
        channels: int,
        out: int,
        kernel: Sequence[int] | int = 3,
        stride: Sequence[int] = (1, 1, 1),
        padding: Sequence[int] | int = 0,
    ) -> None:
        super().__init__()
        sizes = (kernel,) * 3 if isinstance(kernel, int) else tuple(kernel)
        pads = (padding,) * 3 if isinstance(padding, int) else tuple(padding)
        self.weight = nn.Parameter(torch.empty(out, *sizes, channels))
        self.bias = nn.Parameter(torch.zeros(out))
        self.stride = tuple(stride)
        self.padding = ((2 * pads[0], 0), *((p, p) for p in pads[1:]))

    @staticmethod
    def packed(weight: Tensor) -> Tensor:
        """A weight in torch's order [O, C, (KT,) KH, KW] as this layer keeps it."""
        weight = weight.unsqueeze(2) if weight.ndim == 4 else weight
        return weight.permute(0, 2, 3, 4, 1).contiguous()

    def flatten_time(self) -> None:
        """Become a convolution of single images: a kernel, a stride, no padding of one frame."""
        out, _, *rest = self.weight.shape
        self.weight = nn.Parameter(torch.empty(out, 1, *rest))
        self.stride, self.padding = (1, *self.stride[1:]), ((0, 0), *self.padding[1:])

    def forward(self, x: Tensor, before: Tensor | None = None) -> Tensor:
        """x and the frames before it [B, T, H, W, C]."""
        return ops.conv3d(x, self.weight, self.bias, self.stride, self.padding, before)

    def step(self, x: Tensor, frames: Frames) -> Tensor:
        """`forward` after the frames that earlier chunks left, and leave some."""
        before = frames.get(self)
        seen = x if before is None or x.shape[1] >= KEPT else torch.cat([before[:, -1:], x], 1)
        frames[self] = last_frames(seen, KEPT)
        return settled(self(x, before), frames[self])


class Conv2d(nn.Module):
    """A convolution of each frame; the weight is kept as [O, 1, KH, KW, C]."""

    def __init__(self, channels: int, out: int, stride: int, padding, upsample: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, 1, 3, 3, channels))
        self.bias = nn.Parameter(torch.zeros(out))
        self.stride, self.padding, self.upsample = (1, stride, stride), padding, upsample

    @staticmethod
    def packed(weight: Tensor) -> Tensor:
        """A weight in torch's order [O, C, KH, KW] as this layer keeps it."""
        return weight.permute(0, 2, 3, 1).unsqueeze(1).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        return ops.conv3d(x, self.weight, self.bias, self.stride, self.padding, None, self.upsample)


class RMSNorm(nn.Module):
    """Each pixel's channels over their length, times sqrt(C) and gamma [C].

    The reference divides by max(length, 1e-12); the same as an epsilon below every float32.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels))
        self.eps = 1e-24 / channels

    @staticmethod
    def packed(weight: Tensor) -> Tensor:
        """gamma, which files have as [C, 1, 1, 1] or [C, 1, 1]."""
        return weight.reshape(-1)

    def forward(self, x: Tensor, silu: bool = False) -> Tensor:
        """The norm, or SiLU of it without a pass of its own."""
        return ops.rms_norm(x, self.gamma, eps=self.eps, silu=silu)


class ResidualBlock(nn.Module):
    """Norm, SiLU, convolution, twice, beside the identity or a 1x1x1 convolution."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(channels), RMSNorm(out)
        self.conv1, self.conv2 = (
            CausalConv3d(channels, out, padding=1),
            CausalConv3d(out, out, padding=1),
        )
        self.conv_shortcut = CausalConv3d(channels, out, 1) if channels != out else None

    def forward(self, x: Tensor, frames: Frames) -> Tensor:
        beside = x if self.conv_shortcut is None else self.conv_shortcut(x)
        x = self.conv1.step(self.norm1(x, silu=True), frames)
        return self.conv2.step(self.norm2(x, silu=True), frames) + beside


class PointwiseConv(nn.Linear):
    """A 1x1 convolution."""

    @staticmethod
    def packed(weight: Tensor) -> Tensor:
        """[O, C, 1, 1] as [O, C]."""
        return weight.reshape(weight.shape[:2])


class AttentionBlock(nn.Module):
    """One head over the pixels of each frame."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = RMSNorm(channels)
        self.to_qkv = PointwiseConv(channels, 3 * channels)
        self.proj = PointwiseConv(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        b, t, h, w, c = x.shape
        qkv = self.to_qkv(self.norm(x)).reshape(b * t, 1, h * w, 3 * c)
        out = F.scaled_dot_product_attention(*qkv.chunk(3, dim=-1))
        return self.proj(out).reshape(b, t, h, w, c) + x


class MidBlock(nn.Module):
    """Residual, attention, residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.attentions = nn.ModuleList([AttentionBlock(channels)])
        self.resnets = nn.ModuleList([ResidualBlock(channels, channels) for _ in range(2)])

    def forward(self, x: Tensor, frames: Frames) -> Tensor:
        x = self.attentions[0](self.resnets[0](x, frames))
        return self.resnets[1](x, frames)


class Downsample(nn.Module):
    """Half the rows and columns; `temporal` halves the frames too, but for a video's first."""

    def __init__(self, channels: int, temporal: bool) -> None:
        super().__init__()
        conv = Conv2d(channels, channels, 2, ((0, 0), (0, 1), (0, 1)), upsample=False)
        self.resample = nn.Sequential(nn.Identity(), conv)  # files call it resample.1
        self.time_conv = (
            CausalConv3d(channels, channels, (3, 1, 1), (2, 1, 1)) if temporal else None
        )

    def forward(self, x: Tensor, frames: Frames) -> Tensor:
        x = self.resample(x)
        if self.time_conv is None:
            return x
        before = frames.get(self)
        frames[self] = last_frames(x, 1)
        return x if before is None else self.time_conv(torch.cat([before, x], 1))


class Upsample(nn.Module):
    """Twice the rows and columns; `temporal` doubles the frames too, but for a video's first."""

    def __init__(self, channels: int, out: int, temporal: bool) -> None:
        super().__init__()
        conv = Conv2d(channels, out, 1, ((0, 0), (1, 1), (1, 1)), upsample=True)
        self.resample = nn.Sequential(nn.Identity(), conv)
        self.time_conv = (
            CausalConv3d(channels, 2 * channels, (3, 1, 1), padding=(1, 0, 0)) if temporal else None
        )

    def forward(self, x: Tensor, frames: Frames) -> Tensor:
        if self.time_conv is None:
            return self.resample(x)
        before = frames.get(self)
        if before is None:
            frames[self] = STARTED
            return self.resample(x)
        if before is STARTED:  # the first frame is not seen: zeros stand in its place
            frames[self] = last_frames(torch.cat([torch.zeros_like(x), x], 1), KEPT)
            before = None
        else:
            frames[self] = last_frames(torch.cat([before, x], 1), KEPT)
        b, t, h, w, c = x.shape
        pair = self.time_conv(x, before).reshape(b, t, h, w, 2, c)
        return self.resample(pair.permute(0, 1, 4, 2, 3, 5).reshape(b, 2 * t, h, w, c))


class AverageDown(nn.Module):
    """The shortcut of Wan2.2's encoder: pixels to channels, then means of groups of channels."""

    def __init__(self, channels: int, out: int, time: int, space: int) -> None:
        super().__init__()
        self.out, self.time, self.space = out, time, space

    def forward(self, x: Tensor) -> Tensor:
        b, t, h, w, c = x.shape
        if pad := -t % self.time:
            x = torch.cat([torch.zeros(b, pad, h, w, c, dtype=x.dtype, device=x.device), x], 1)
        n, s = self.time, self.space
        x = x.reshape(b, (t + pad) // n, n, h // s, s, w // s, s, c)
        x = x.permute(0, 1, 3, 5, 7, 2, 4, 6)
        return x.reshape(*x.shape[:4], self.out, -1).mean(-1)


class DuplicateUp(nn.Module):
    """The shortcut of Wan2.2's decoder: channels, repeated, to pixels."""

    def __init__(self, channels: int, out: int, time: int, space: int) -> None:
        super().__init__()
        self.out, self.time, self.space = out, time, space
        self.repeats = out * time * space * space // channels

    def forward(self, x: Tensor, first: bool) -> Tensor:
        b, t, h, w, c = x.shape
        n, s = self.time, self.space
        x = x.repeat_interleave(self.repeats, dim=-1).reshape(b, t, h, w, self.out, n, s, s)
        x = x.permute(0, 1, 5, 2, 6, 3, 7, 4).reshape(b, t * n, h * s, w * s, self.out)
        return x[:, n - 1 :] if first else x


class DownBlock(nn.Module):
    """A stage of Wan2.2's encoder."""

    def __init__(self, channels: int, out: int, depth: int, temporal: bool, down: bool) -> None:
        super().__init__()
        time, space = 1 + (temporal and down), 1 + down
        self.avg_shortcut = AverageDown(channels, out, time, space)
        self.resnets = nn.ModuleList(
            [ResidualBlock(channels if n == 0 else out, out) for n in range(depth)]
        )
        self.downsampler = Downsample(out, temporal) if down else None

    def forward(self, x: Tensor, frames: Frames) -> Tensor:
        beside = self.avg_shortcut(x)
        for resnet in self.resnets:
            x = resnet(x, frames)
        if self.downsampler is not None:
            x = self.downsampler(x, frames)
        return x + beside


class UpBlock(nn.Module):
    """A stage of the decoder: Wan2.1's, or Wan2.2's with its shortcut."""

    def __init__(
        self, channels: int, out: int, depth: int, temporal: bool, up: bool, residual: bool
    ) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(
            [ResidualBlock(channels if n == 0 else out, out) for n in range(depth + 1)]
        )
        self.avg_shortcut = DuplicateUp(channels, out, 1 + temporal, 2) if residual and up else None
        wide = out if residual else out // 2
        # Files of the two kinds name it differently.
        self.upsampler = Upsample(out, wide, temporal) if up and residual else None
        self.upsamplers = (
            nn.ModuleList([Upsample(out, wide, temporal)]) if up and not residual else None
        )

    def forward(self, x: Tensor, frames: Frames, first: bool) -> Tensor:
        start = x
        for resnet in self.resnets:
            x = resnet(x, frames)
        upsample = self.upsamplers[0] if self.upsamplers is not None else self.upsampler
        if upsample is not None:
            x = settled(upsample(x, frames))
        return x if self.avg_shortcut is None else settled(x + self.avg_shortcut(start, first))


class Encoder(nn.Module):
    """Pixels [B, T, H, W, C] to 2 z channels."""

    def __init__(self, config) -> None:
        super().__init__()
        sizes = [config.base_dim * n for n in (1, *config.dim_mult)]
        last = len(sizes) - 2
        self.conv_in = CausalConv3d(config.in_channels, sizes[0], padding=1)
        blocks: list[nn.Module] = []
        for stage in range(last + 1):
            channels, out = sizes[stage : stage + 2]
            down = stage != last
            temporal = down and config.temperal_downsample[stage]
            if config.is_residual:
                blocks.append(DownBlock(channels, out, config.num_res_blocks, temporal, down))
                continue
            for n in range(config.num_res_blocks):
                blocks.append(ResidualBlock(channels if n == 0 else out, out))
            if down:
                blocks.append(Downsample(out, temporal))
        self.down_blocks = nn.ModuleList(blocks)
        self.mid_block = MidBlock(sizes[-1])
        self.norm_out = RMSNorm(sizes[-1])
        self.conv_out = CausalConv3d(sizes[-1], 2 * config.z_dim, padding=1)

    def forward(self, x: Tensor, frames: Frames) -> Tensor:
        x = self.conv_in.step(x, frames)
        for block in self.down_blocks:
            x = block(x, frames)
        x = self.mid_block(x, frames)
        return self.conv_out.step(self.norm_out(x, silu=True), frames)


class Decoder(nn.Module):
    """Latents [B, T, h, w, z] to pixels."""

    def __init__(self, config) -> None:
        super().__init__()
        base = config.decoder_base_dim or config.base_dim
        sizes = [base * n for n in (config.dim_mult[-1], *reversed(config.dim_mult))]
        last = len(sizes) - 2
        self.conv_in = CausalConv3d(config.z_dim, sizes[0], padding=1)
        self.mid_block = MidBlock(sizes[0])
        blocks = []
        for stage in range(last + 1):
            channels, out = sizes[stage : stage + 2]
            if stage > 0 and not config.is_residual:
                channels //= 2  # the upsampling before has halved them
            up = stage != last
            temporal = up and config.temperal_downsample[::-1][stage]
            blocks.append(
                UpBlock(channels, out, config.num_res_blocks, temporal, up, config.is_residual)
            )
        self.up_blocks = nn.ModuleList(blocks)
        self.norm_out = RMSNorm(sizes[-1])
        self.conv_out = CausalConv3d(sizes[-1], config.out_channels, padding=1)

    def forward(self, x: Tensor, frames: Frames, first: bool) -> Tensor:
        x = self.mid_block(self.conv_in.step(x, frames), frames)
        for block in self.up_blocks:
            x = block(x, frames, first)
        return self.conv_out.step(self.norm_out(x, silu=True), frames)


def patchify(x: Tensor, size: int) -> Tensor:
    """Squares of size x size pixels as channels: [B, T, H, W, C] to [B, T, H/n, W/n, C n n].

    A new channel's number is (c, column, row), the row running fastest.
    """
    b, t, h, w, c = x.shape
    x = x.reshape(b, t, h // size, size, w // size, size, c).permute(0, 1, 2, 4, 6, 5, 3)
    return x.reshape(b, t, h // size, w // size, c * size * size)


def unpatchify(x: Tensor, size: int) -> Tensor:
    """What `patchify` undoes."""
    b, t, h, w, c = x.shape
    x = x.reshape(b, t, h, w, c // (size * size), size, size).permute(0, 1, 2, 6, 3, 5, 4)
    return x.reshape(b, t, h * size, w * size, c // (size * size))
