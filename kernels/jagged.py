"""Rows sorted by group, whose ends are read on the device: what products of such rows share."""

import mlx.core as mx
import numpy as np

from .spec import Spec

# The group after the last one is the rest of the rows, which is zero. Every simdgroup finds the
# same answer; `tile` counts tiles of BM rows, group after group.
HEADER = """
template <typename Pointer>
inline uint group_end(Pointer offs, uint groups, uint limit, uint g) {
    return g < groups ? uint(metal::clamp(int(offs[g]), 0, int(limit))) : limit;
}

// (group, its first row in this tile, its last row + 1); an empty range where there is no tile.
template <uint BM, typename Pointer>
inline uint3 find_tile(Pointer offs, uint groups, uint rows, uint tile, uint lane) {
    uint before = 0;
    uint carried = 0;
    uint3 found = uint3(0, 0, 0);
    for (uint base = 0; base <= groups; base += 32) {
        uint last = group_end(offs, groups, rows, base + lane);
        uint first = metal::simd_shuffle_up(last, ushort(1));
        first = lane == 0 ? carried : first;
        uint count = last > first ? (last - first + BM - 1) / BM : 0;
        uint start = before + metal::simd_prefix_exclusive_sum(count);
        if (tile >= start && tile - start < count) {
            found = uint3(base + lane, first + (tile - start) * BM, last);
        }
        before += metal::simd_sum(count);
        carried = metal::simd_broadcast(last, ushort(31));
    }
    return uint3(
        metal::simd_sum(found.x), metal::simd_sum(found.y), metal::simd_sum(found.z));
}

// The group of a row: how many groups end at or before it.
template <typename Pointer>
inline uint find_group(Pointer offs, uint groups, uint rows, uint row, uint lane) {
    uint count = 0;
    for (uint g = lane; g < groups; g += 32) {
        count += group_end(offs, groups, rows, g) <= row ? 1 : 0;
    }
    return metal::simd_sum(count);
}
"""

TILE_ROWS = {"tile16": 16, "tile32": 32, "tile64": 64}

TILES = {
    "tile16": "tiles of 16 rows; up to 24 rows a group",
    "tile32": "tiles of 32 rows; up to 48 rows a group",
    "tile64": "tiles of 64 rows; large groups",
}

# By rows up to this many, and no more rows than groups: then hardly two rows share weights.
# Published for PyTorch 2.15's few_rows, not measured by us.
FEW_ROWS = 32

# Rows a group from which larger tiles lose little to empty rows. Published for PyTorch 2.15, not
# measured by us.
LARGE_GROUP, MEDIUM_GROUP = 48, 24


def choose(rows: int, groups: int) -> str:
    """Name of the variant for `rows` rows of `groups` groups."""
    if rows <= min(FEW_ROWS, groups):
        return "few"
    mean = rows / groups
    return "tile64" if mean > LARGE_GROUP else "tile32" if mean > MEDIUM_GROUP else "tile16"


def groups(ends: mx.array, rows: int) -> mx.array:
    """The group of each row, their count beyond the last: how many end at or before it."""
    return (ends[None, :] <= mx.arange(rows)[:, None]).sum(axis=1)


# Eight of sixteen groups have a row.
ONE_EACH = (1, 1, 2, 3, 3, 4, 5, 5, 6, 6, 7, 7, 7, 8, 8, 8)


def sorted_ends(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Ends of groups of 0 to 2 rows each."""
    return np.cumsum(rng.integers(0, 3, shape)).astype(np.int32)


def these(*values: int):
    """A fill of these ends."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.array(values, np.int32)

    fill.__name__ = "-".join(map(str, values))
    return fill


def ends(offs: int | tuple[int, ...]) -> Spec:
    """An operand of these offsets, or of so many groups of 0 to 2 rows."""
    if isinstance(offs, int):
        return Spec((offs,), "int32", sorted_ends)
    return Spec((len(offs),), "int32", these(*offs))
