"""MSL shared by tiled matrix products: 8x8 fragments, tiles in threadgroup memory, float32 sums.

Four simdgroups compute BM x BN outputs in steps of 32 along K. A simdgroup reads a row of 32
neighbours of a matrix at a time, so reads are coalesced at any alignment, and zeros take the
place of what is beyond the edge. Rows of a tile are padded so that the eight rows of a fragment
fall into different banks. A product of half types is exact in float32.

A plain matmul of one dtype needs none of this on an Apple GPU and stays MLX's: the best published
there is 5.36 ms for 4096^3 in bf16, 25.6 TFLOP/s, by Apple's library through PyTorch 2.15
(pytorch#196916, not measured by us). Our tiles earn their place where operands are decoded,
gathered or jagged.
"""

HEADER = """
constant constexpr uint BK = 32;
constant constexpr uint TILE_SIMDGROUPS = 4;

// Elements from a row of a tile to the next.
template <typename T>
constexpr uint padded(uint columns) {
    return columns + 16 / sizeof(T);
}

// ROWS x COLUMNS elements at `start` of a matrix with the given strides; `rows` and `columns` are
// what is left of it from there. The second axis is the one that lanes run along.
template <uint ROWS, uint COLUMNS, typename T, typename Pointer>
inline void load_tile(
    threadgroup T* tile, Pointer source, ulong start, ulong row_stride, ulong column_stride,
    uint rows, uint columns, uint simdgroup, uint lane) {
    for (uint r = simdgroup; r < ROWS; r += TILE_SIMDGROUPS) {
        for (uint c = lane; c < COLUMNS; c += 32) {
            bool inside = r < rows && c < columns;
            tile[r * padded<T>(COLUMNS) + c] =
                inside ? T(widen(source[start + r * row_stride + c * column_stride])) : T(0);
        }
    }
}

// Adds the products of 32 steps along K. Tiles are [rows, K] and [K, columns]; a tile that lies
// the other way round is named as turned: `a` points at the first row or column of this simdgroup.
template <uint TM, uint TN, bool A_TURNED, bool B_TURNED, typename T>
inline void multiply_tiles(
    thread metal::simdgroup_float8x8* sums, const threadgroup T* a, uint a_row,
    const threadgroup T* b, uint b_row) {
    for (uint k = 0; k < BK; k += 8) {
        metal::simdgroup_matrix<T, 8, 8> left[TM];
        metal::simdgroup_matrix<T, 8, 8> right[TN];
        for (uint i = 0; i < TM; i++) {
            uint at = A_TURNED ? k * a_row + 8 * i : 8 * i * a_row + k;
            metal::simdgroup_load(left[i], a + at, a_row, ulong2(0, 0), A_TURNED);
        }
        for (uint j = 0; j < TN; j++) {
            uint at = B_TURNED ? 8 * j * b_row + k : k * b_row + 8 * j;
            metal::simdgroup_load(right[j], b + at, b_row, ulong2(0, 0), B_TURNED);
        }
        for (uint i = 0; i < TM; i++) {
            for (uint j = 0; j < TN; j++) {
                metal::simdgroup_multiply_accumulate(
                    sums[i * TN + j], left[i], right[j], sums[i * TN + j]);
            }
        }
    }
}

template <uint COUNT>
inline void clear_sums(thread metal::simdgroup_float8x8* sums) {
    for (uint i = 0; i < COUNT; i++) {
        sums[i] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
}

// total += scale * sums, then sums = 0.
template <uint COUNT>
inline void fold_sums(
    thread metal::simdgroup_float8x8* total, thread metal::simdgroup_float8x8* sums, float scale) {
    for (uint i = 0; i < COUNT; i++) {
        for (uint e = 0; e < 2; e++) {
            total[i].thread_elements()[e] += scale * sums[i].thread_elements()[e];
        }
    }
    clear_sums<COUNT>(sums);
}
"""

# Eight rows of sums at a time go through threadgroup memory, so that writes are coalesced and no
# knowledge of a fragment's layout is needed. The names that the text expects: sums, TM, TN, strip
# (this simdgroup's 8 x 8 TN floats), lane, row0 and column0 of the simdgroup's part, rows and
# columns of the whole.
STORE = """
    for (uint i = 0; i < TM; i++) {
        metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint j = 0; j < TN; j++) {
            metal::simdgroup_store(sums[i * TN + j], strip + 8 * j, 8 * TN);
        }
        metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint e = lane; e < 64 * TN; e += 32) {
            uint row = row0 + 8 * i + e / (8 * TN);
            uint column = column0 + e % (8 * TN);
            if (row < rows && column < columns) {
                float sum = strip[e];
                @STORE@
            }
        }
    }
"""

BK, SIMDGROUPS = 32, 4


def store(statement: str) -> str:
    """STORE with what becomes of `sum` at `row`, `column`."""
    return STORE.replace("@STORE@", statement)


def split(bm: int, bn: int) -> tuple[int, int]:
    """Simdgroups down and across a bm x bn tile: 2 x 2 where 64 rows are to be shared."""
    down = 2 if bm >= 64 else 1
    return down, SIMDGROUPS // down


def scratch(bm: int, bn: int, itemsize: int, a_turned: bool = False, b_turned: bool = False) -> int:
    """Floats of threadgroup memory for both tiles of elements of `itemsize` bytes.

    The strips of the four simdgroups take no more than the tiles.
    """
    pad = 16 // itemsize
    a = BK * (bm + pad) if a_turned else bm * (BK + pad)
    b = bn * (BK + pad) if b_turned else BK * (bn + pad)
    return max((a + b) * itemsize // 4, 32 * bn // split(bm, bn)[1])
