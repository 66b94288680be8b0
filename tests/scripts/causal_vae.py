"""A video decoder of causal convolutions that keeps features between chunks, and rotary
embeddings written through views.
"""

import json

import torch
import torch.nn as nn
import torch.nn.functional as F

CACHE_T = 2


class CausalConv3d(nn.Conv3d):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        p = self.padding
        self._padding = (p[2], p[2], p[1], p[1], 2 * p[0], 0)
        self.padding = (0, 0, 0)

    def forward(self, x, cache_x=None):
        padding = list(self._padding)
        if cache_x is not None and self._padding[4] > 0:
            x = torch.cat([cache_x, x], dim=2)
            padding[4] -= cache_x.shape[2]
        return super().forward(F.pad(x, padding))


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = dim**0.5
        self.gamma = nn.Parameter(torch.ones(dim, 1, 1, 1))

    def forward(self, x):
        return F.normalize(x, dim=1) * self.scale * self.gamma


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.residual = nn.Sequential(RMSNorm(dim), nn.SiLU(), CausalConv3d(dim, dim, 3, padding=1))

    def forward(self, x, feat_cache, feat_idx):
        h = x
        for layer in self.residual:
            if isinstance(layer, CausalConv3d):
                idx = feat_idx[0]
                cache_x = x[:, :, -CACHE_T:, :, :].clone()
                if cache_x.shape[2] < 2 and feat_cache[idx] is not None:
                    last = feat_cache[idx][:, :, -1, :, :].unsqueeze(2)
                    cache_x = torch.cat([last, cache_x], dim=2)
                x = layer(x, feat_cache[idx])
                feat_cache[idx] = cache_x
                feat_idx[0] += 1
            else:
                x = layer(x)
        return x + h


class Decoder(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.blocks = nn.ModuleList([Block(dim) for _ in range(2)])
        self.head = nn.Conv3d(dim, 3, 1)

    @torch.no_grad()
    def decode(self, z):
        cache = [None] * len(self.blocks)
        frames = []
        for i in range(z.shape[2]):
            x, idx = z[:, :, i : i + 1], [0]
            for block in self.blocks:
                x = block(x, cache, idx)
            frames.append(self.head(F.interpolate(x, scale_factor=(1, 2, 2), mode="nearest-exact")))
        return torch.cat(frames, 2).clamp_(-1, 1)


def multimodal_rope(positions, dim, sections):
    inverse = 1.0 / (10000 ** (torch.arange(0, dim, 2).float() / dim))
    freqs = positions[..., None].float() * inverse
    merged = freqs[0]
    for part, offset in enumerate((1, 2), start=1):
        index = slice(offset, sections[part] * 3, 3)
        merged[..., index] = freqs[part, ..., index]
    emb = torch.cat((merged, merged), dim=-1)
    return emb.cos(), emb.sin()


def main():
    torch.manual_seed(5)
    decoder = Decoder()
    for name, p in list(decoder.state_dict().items()):
        p.copy_(torch.randn(p.shape) * 0.2 if "gamma" not in name else torch.rand(p.shape) + 0.5)
    z = torch.randn(1, 8, 4, 5, 6)
    video = decoder.decode(z)
    cos, sin = multimodal_rope(torch.arange(3 * 5).view(3, 1, 5), 24, [4, 4, 4])
    print(
        json.dumps(
            {
                "video": video[0, :, :, ::3, ::4].flatten().tolist(),
                "shape": list(video.shape),
                "cos": cos.flatten().tolist(),
                "sin": sin.flatten().tolist(),
            }
        )
    )


if __name__ == "__main__":
    main()
