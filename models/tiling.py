"""Tiles of a picture or video that a model codes one by one, blended where they overlap.

As in diffusers 0.42 each tile is blended with its neighbours as they are after blending, above
first, and a last tile that is smaller than the overlap blends over its own size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import mlx.core as mx

import torchmlx as torch
from torchmlx import Tensor

from ..errors import InputError

ROWS, COLUMNS = 2, 3  # of [B, T, H, W, C]
BLENDS = ("linear", "cosine")


@dataclass(frozen=True)
class Side:
    """How rows or columns are cut: tile and stride of what goes in, made and kept of what comes."""

    size: int
    tile: int
    stride: int
    made: int
    kept: int

    @property
    def overlap(self) -> int:
        """Rows or columns that two neighbours have in common, of what comes out."""
        return self.made - self.kept

    def starts(self, blend: str) -> range:
        """Where tiles begin.

        diffusers' (linear) last tile may lie wholly inside of the one before, and then sees less
        around it than that one did: cosine leaves it out.
        """
        inside = self.tile - self.stride if blend == "cosine" else 0
        return range(0, max(self.size - inside, 1), self.stride)


@dataclass(frozen=True)
class Grid:
    """Tiles over rows and columns, and the weights of their blending."""

    rows: Side
    columns: Side
    blend: str = "linear"

    @property
    def count(self) -> int:
        """Number of tiles."""
        return len(self.rows.starts(self.blend)) * len(self.columns.starts(self.blend))

    def code(
        self,
        coder: Callable[[slice, slice], Iterable[Tensor]],
        put: Callable[[Tensor, int, int, int], None],
    ) -> None:
        """Give `put` the finished parts [B, T, H, W, C] with their chunk's number, row and column.

        `coder(rows, columns)` makes chunk after chunk of frames of one tile. Beside a chunk only
        strips as wide as the overlap stay, of one row of tiles and of the tile before; each goes
        when it has been mixed in.
        """
        above: list[list[Tensor]] = []
        rows, columns = self.rows.starts(self.blend), self.columns.starts(self.blend)
        for n, top in enumerate(rows):
            below, edges = n + 1 < len(rows), []
            before: list[Tensor] = []
            for m, left in enumerate(columns):
                beside = m + 1 < len(columns)
                bottom: list[Tensor] = []
                right: list[Tensor] = []
                inside = _part(top, self.rows), _part(left, self.columns)
                for t, part in enumerate(coder(*inside)):
                    if above:
                        part = self._ramp(above[m].pop(0), part, self.rows.overlap, ROWS)
                    if before:
                        part = self._ramp(before.pop(0), part, self.columns.overlap, COLUMNS)
                    if below:
                        bottom.append(_edge(part, self.rows.overlap, ROWS))
                    if beside:
                        right.append(_edge(part, self.columns.overlap, COLUMNS))
                    part = part[:, :, : self.rows.kept] if below else part
                    part = part[:, :, :, : self.columns.kept] if beside else part
                    mx.eval(part.mx, *(edge[-1].mx for edge in (bottom, right) if edge))
                    put(part, t, n * self.rows.kept, m * self.columns.kept)
                edges.append(bottom)
                before = right
            above = edges

    def _ramp(self, before: Tensor, tile: Tensor, extent: int, dim: int) -> Tensor:
        """`tile`, its first rows or columns mixed with the last ones of the tile before."""
        extent = min(before.shape[dim], tile.shape[dim], extent)
        if extent == 0:
            return tile
        shape = [1] * tile.ndim
        shape[dim] = extent
        weight = torch.tensor(self._weights(extent), dtype=torch.float64)
        weight = weight.to(tile.dtype).to(tile.device).reshape(shape)
        old = before.narrow(dim, before.shape[dim] - extent, extent)
        mixed = old * (1 - weight) + tile.narrow(dim, 0, extent) * weight
        return torch.cat([mixed, tile.narrow(dim, extent, tile.shape[dim] - extent)], dim)

    def _weights(self, extent: int) -> list[float]:
        if self.blend == "cosine":
            return [(1 - math.cos(math.pi * (n + 0.5) / extent)) / 2 for n in range(extent)]
        return [n / extent for n in range(extent)]


def check_tile(tile: int, stride: int, scale: int) -> None:
    """InputError for pixels that leave gaps between tiles, or are no multiple of the scale."""
    if not 0 < stride <= tile or tile % scale or stride % scale:
        raise InputError(
            f"tile {tile} and stride {stride}: the stride is at most the tile, both are multiples "
            f"of {scale} pixels"
        )


def _part(start: int, side: Side) -> slice:
    return slice(start, min(start + side.tile, side.size))


def _edge(tile: Tensor, extent: int, dim: int) -> Tensor:
    """Its last rows or columns in memory of their own: a slice would keep all of it alive."""
    extent = min(extent, tile.shape[dim])
    return tile.narrow(dim, tile.shape[dim] - extent, extent).clone()
