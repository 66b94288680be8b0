"""Products of jagged groups, F.grouped_mm on arrays: the offsets are read on the GPU.

Rows jagged (tokens sorted by expert): a threadgroup finds its group and tile by counting tiles of
all groups before it, so that the launch needs only the number of rows. Few rows, one token's
experts, go by rows instead. K jagged (gradients of expert weights): a product for each group.
Columns jagged is rows jagged, transposed. Operands may lie in memory either way: expert weights
arrive as transposed views and must not be copied at every call.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from . import dots, jagged, tiles
from .kernel import Kernel
from .matmul import matmul
from .spec import FALLBACK, STREAMING, Case, Chip, Cost, Launch, Metal, Program, Spec, Tiled

# A whole product along K. Strides are in elements; a turned operand is the one whose rows (of a)
# or whose K (of b) are neighbours in memory. `a` and `b` start at this tile's first element.
PRODUCT = """
template <uint BM, uint DOWN, bool A_TURNED, bool B_TURNED, typename T, typename A, typename B>
inline void multiply_matrices(
    thread metal::simdgroup_float8x8* sums, threadgroup T* memory,
    A a, ulong a_start, ulong a_m, ulong a_k, uint rows,
    B b, ulong b_start, ulong b_k, ulong b_n, uint columns,
    uint k, uint simdgroup, uint lane) {
    constexpr uint TM = BM / DOWN / 8;
    constexpr uint TN = 2 * DOWN;
    constexpr uint A_ROW = padded<T>(A_TURNED ? BM : BK);
    constexpr uint B_ROW = padded<T>(B_TURNED ? BK : 64);
    threadgroup T* b_tile = memory + (A_TURNED ? BK : BM) * A_ROW;
    uint row = simdgroup % DOWN * 8 * TM;
    uint column = simdgroup / DOWN * 8 * TN;
    const threadgroup T* my_a = memory + (A_TURNED ? row : row * A_ROW);
    const threadgroup T* my_b = b_tile + (B_TURNED ? column * B_ROW : column);
    for (uint begin = 0; begin < k; begin += BK) {
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        ulong a_at = a_start + begin * a_k;
        ulong b_at = b_start + begin * b_k;
        if (A_TURNED) {
            load_tile<BK, BM>(memory, a, a_at, a_k, a_m, k - begin, rows, simdgroup, lane);
        } else {
            load_tile<BM, BK>(memory, a, a_at, a_m, a_k, rows, k - begin, simdgroup, lane);
        }
        if (B_TURNED) {
            load_tile<64, BK>(b_tile, b, b_at, b_n, b_k, columns, k - begin, simdgroup, lane);
        } else {
            load_tile<BK, 64>(b_tile, b, b_at, b_k, b_n, k - begin, columns, simdgroup, lane);
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        multiply_tiles<TM, TN, A_TURNED, B_TURNED>(sums, my_a, A_ROW, my_b, B_ROW);
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}
"""

TILE = """
    threadgroup float memory[SCRATCH];
    threadgroup T* tile = reinterpret_cast<threadgroup T*>(memory);
    constexpr uint TM = BM / DOWN / 8;
    constexpr uint TN = 2 * DOWN;
    uint lane = thread_index_in_simdgroup;
    uint simdgroup = simdgroup_index_in_threadgroup;
    uint column0 = threadgroup_position_in_grid.x * 64;
    metal::simdgroup_float8x8 sums[TM * TN];
    clear_sums<TM * TN>(sums);
"""

PLACE = """
    threadgroup float* strip = memory + simdgroup * 64 * TN;
    row0 += simdgroup % DOWN * 8 * TM;
    column0 += simdgroup / DOWN * 8 * TN;
"""

ROWS = (
    """
    // a: [M, K], b: [G, K, N], offs: [G], out: [M, N]; a threadgroup BM x 64 of one group
    uint groups = b_shape[0];
    uint k = b_shape[1];
    uint columns = b_shape[2];
"""
    + TILE
    + """
    uint3 part = find_tile<BM>(offs, groups, a_shape[0], threadgroup_position_in_grid.y, lane);
    uint row0 = part.y;
    uint rows = part.z;
    if (row0 >= rows) {
        return;
    }
    k = part.x < groups ? k : 0;
    ulong a_m = a_strides[0];
    ulong a_k = a_strides[1];
    ulong b_k = b_strides[1];
    ulong b_n = b_strides[2];
    ulong a_at = row0 * a_m;
    ulong b_at = part.x * ulong(b_strides[0]) + column0 * b_n;
    if (b_n == 1) {
        multiply_matrices<BM, DOWN, false, false>(
            sums, tile, a, a_at, a_m, a_k, rows - row0, b, b_at, b_k, b_n, columns - column0, k,
            simdgroup, lane);
    } else {
        multiply_matrices<BM, DOWN, false, true>(
            sums, tile, a, a_at, a_m, a_k, rows - row0, b, b_at, b_k, b_n, columns - column0, k,
            simdgroup, lane);
    }
"""
    + PLACE
    + tiles.store("out[ulong(row) * columns + column] = T(sum);")
)

INNER = (
    """
    // a: [M, K], b: [K, N], offs: [G], out: [G, M, N]; a threadgroup BM x 64 of one group
    uint group = threadgroup_position_in_grid.z;
    uint rows = a_shape[0];
    uint columns = b_shape[1];
    uint groups = offs_shape[0];
    uint k = a_shape[1];
    uint first = group == 0 ? 0 : group_end(offs, groups, k, group - 1);
    uint last = group_end(offs, groups, k, group);
    k = last > first ? last - first : 0;
"""
    + TILE
    + """
    uint row0 = threadgroup_position_in_grid.y * BM;
    ulong a_m = a_strides[0];
    ulong a_k = a_strides[1];
    ulong b_k = b_strides[0];
    ulong b_n = b_strides[1];
    ulong a_at = row0 * a_m + first * a_k;
    ulong b_at = first * b_k + column0 * b_n;
    if (a_k == 1) {
        multiply_matrices<BM, DOWN, false, false>(
            sums, tile, a, a_at, a_m, a_k, rows - row0, b, b_at, b_k, b_n, columns - column0, k,
            simdgroup, lane);
    } else {
        multiply_matrices<BM, DOWN, true, false>(
            sums, tile, a, a_at, a_m, a_k, rows - row0, b, b_at, b_k, b_n, columns - column0, k,
            simdgroup, lane);
    }
"""
    + PLACE
    + tiles.store("out[(ulong(group) * rows + row) * columns + column] = T(sum);")
)

# Where K is along memory, a simdgroup takes COLUMNS outputs and reads their weights 16 bytes a
# lane; where N is, a lane takes one output and the simdgroups share K.
FEW = """
    // a: [M, K], b: [G, K, N], offs: [G], out: [M, N]; a threadgroup 32 outputs of one row
    threadgroup float4 staged[CHUNK / 4];
    threadgroup float partial[32 * SIMDGROUPS];
    constexpr uint RUN = 16 / sizeof(T);
    constexpr uint STEP = 32 * RUN;
    uint rows = a_shape[0];
    uint k = b_shape[1];
    uint n = b_shape[2];
    uint groups = b_shape[0];
    uint lane = thread_index_in_simdgroup;
    uint simdgroup = simdgroup_index_in_threadgroup;
    uint row = threadgroup_position_in_grid.z;
    uint column0 = threadgroup_position_in_grid.y * 32;
    ulong a_k = a_strides[1];
    ulong b_k = b_strides[1];
    ulong b_n = b_strides[2];
    uint group = find_group(offs, groups, rows, row, lane);
    k = group < groups ? k : 0;
    ulong a_at = row * ulong(a_strides[0]);
    ulong b_at = group < groups ? group * ulong(b_strides[0]) : 0;
    if (b_k == 1) {
        bool wide = wide_rows(b, k) && b_n % RUN == 0 && b_strides[0] % RUN == 0;
        uint first = column0 + simdgroup * COLUMNS;
        float sums[COLUMNS] = {};
        for (uint begin = 0; begin < k; begin += CHUNK) {
            uint staging = metal::min(uint(CHUNK), (k - begin + STEP - 1) / STEP * STEP);
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            for (uint e = thread_index_in_simdgroup + 32 * simdgroup; e < staging;
                 e += 32 * SIMDGROUPS) {
                uint i = begin + e;
                reinterpret_cast<threadgroup float*>(staged)[slot<RUN>(e)] =
                    i < k ? float(a[a_at + i * a_k]) : 0.0f;
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            for (uint at = begin + RUN * lane; at < metal::min(begin + staging, k); at += STEP) {
                uint step = (at - begin) / STEP * STEP / 4;
                for (uint c = 0; c < COLUMNS; c++) {
                    ulong column = metal::min(first + c, n - 1);
                    float values[RUN];
                    read_run(b, b_at + column * b_n + at, k - at, wide, values);
                    sums[c] += dot_run<RUN>(values, staged + step, lane);
                }
            }
        }
        for (uint c = 0; c < COLUMNS; c++) {
            float sum = metal::simd_sum(sums[c]);
            if (lane == 0 && first + c < n) {
                out[ulong(row) * n + first + c] = T(sum);
            }
        }
    } else {
        uint column = column0 + lane;
        float sum = 0.0f;
        #pragma unroll(4)
        for (uint i = simdgroup; i < k; i += SIMDGROUPS) {
            if (column < n) {
                sum += float(a[a_at + i * a_k]) * float(b[b_at + i * b_k + column * b_n]);
            }
        }
        partial[32 * simdgroup + lane] = sum;
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        if (simdgroup == 0 && column < n) {
            for (uint i = 1; i < SIMDGROUPS; i++) {
                sum += partial[32 * i + lane];
            }
            out[ulong(row) * n + column] = T(sum);
        }
    }
"""

HEADER = dots.HEADER + tiles.HEADER + jagged.HEADER + PRODUCT

ROWS_PROGRAM = Program("grouped_rows", ("a", "b", "offs"), ("out",), ROWS, HEADER, False)
INNER_PROGRAM = Program("grouped_inner", ("a", "b", "offs"), ("out",), INNER, HEADER, False)
FEW_PROGRAM = Program("grouped_few", ("a", "b", "offs"), ("out",), FEW, HEADER, False)

TILE_ROWS = {**jagged.TILE_ROWS, "inner32": 32, "inner64": 64}

VARIANTS = {
    "few": "a threadgroup 32 outputs of a row; a token's experts",
    **jagged.TILES,
    "inner32": "K jagged, up to 32 rows",
    "inner64": "K jagged, more rows",
}

COLUMNS, SIMDGROUPS = 4, 8


@dataclass(frozen=True)
class Groups:
    """a [m, k] times b [groups, k, n] with rows jagged, or b [k, n] with K jagged (inner)."""

    m: int
    n: int
    k: int
    groups: int
    inner: bool
    dtype: mx.Dtype


def problem(a: mx.array, b: mx.array, offs: mx.array) -> Groups:
    """Describe the product; the shapes fit."""
    return Groups(a.shape[0], b.shape[-1], a.shape[1], offs.shape[0], b.ndim == 2, a.dtype)


def choose(groups: Groups, chip: Chip) -> str:
    """Name of the variant; needs no device, so tests can pin it."""
    if groups.dtype not in (mx.float32, mx.float16, mx.bfloat16) or _obstacle(groups):
        return FALLBACK
    if groups.inner:
        return "inner32" if groups.m <= 32 else "inner64"
    return jagged.choose(groups.m, groups.groups)


def _obstacle(groups: Groups) -> str:
    """What the programs cannot take, or ""."""
    if 0 in (groups.m, groups.n, groups.k, groups.groups):
        return "no empty arrays"
    if groups.n * groups.k * (1 if groups.inner else groups.groups) < 8:
        return "no b in constant memory (fewer than 8 elements)"
    return ""


def bar(groups: Groups, variant: str) -> float | Tiled:
    """Few rows read their group's b once; tiles, the rows of a again for 64 columns."""
    if variant == "few":
        return STREAMING
    m, n, size = groups.m, groups.n, groups.dtype.size
    results, parts = (groups.groups, 1) if groups.inner else (1, groups.groups)
    written = results * m * n * size
    return Tiled(m, n, groups.k, TILE_ROWS[variant], 64, size, size, written, parts)


def launch(groups: Groups, variant: str) -> list[Launch]:
    """The one dispatch of a variant; ValueError where it cannot serve the problem."""
    obstacle = _obstacle(groups)
    if obstacle or groups.inner != variant.startswith("inner"):
        raise ValueError(f"{variant}: {obstacle or 'the other operand is jagged'}")
    m, n, k, count, dtype = groups.m, groups.n, groups.k, groups.groups, groups.dtype
    inputs = {"a": (m, k), "b": (k, n) if groups.inner else (count, k, n), "offs": (count,)}
    outputs = {"out": ((count, m, n) if groups.inner else (m, n), dtype)}
    if variant == "few":
        return [_few(groups, inputs, outputs)]
    bm = TILE_ROWS[variant]
    turned = (False, True) if not groups.inner else (True, False)
    layouts = ((False, False), turned)
    scratch = max(tiles.scratch(bm, 64, dtype.size, *layout) for layout in layouts)
    across, down = -(-n // 64), -(-m // bm) + (0 if groups.inner else count)
    shape = {"T": dtype, "BM": bm, "DOWN": tiles.split(bm, 64)[0], "SCRATCH": scratch}
    return [
        Launch(
            INNER_PROGRAM if groups.inner else ROWS_PROGRAM,
            inputs,
            outputs,
            grid=(32 * across, tiles.SIMDGROUPS * down, count if groups.inner else 1),
            threadgroup=(32, tiles.SIMDGROUPS, 1),
            template=tuple(shape.items()),
            threadgroup_bytes=4 * scratch,
        )
    ]


def _few(groups: Groups, inputs, outputs) -> Launch:
    chunk = dots.chunk(1, groups.dtype.size)
    shape = {"T": groups.dtype, "CHUNK": chunk, "COLUMNS": COLUMNS, "SIMDGROUPS": SIMDGROUPS}
    return Launch(
        FEW_PROGRAM,
        inputs,
        outputs,
        grid=(32, SIMDGROUPS * -(-groups.n // 32), groups.m),
        threadgroup=(32, SIMDGROUPS, 1),
        template=tuple(shape.items()),
        threadgroup_bytes=4 * (chunk + 32 * SIMDGROUPS),
    )


def reference(a: np.ndarray, b: np.ndarray, offs: np.ndarray) -> np.ndarray:
    """Group by group in float64."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    limit = a.shape[0] if b.ndim == 3 else a.shape[1]
    ends = np.clip(offs, 0, limit)
    spans = [slice(first, last) for first, last in zip([0, *ends], ends, strict=False)]
    with np.errstate(invalid="ignore"):
        if b.ndim == 2:
            return np.stack([a[:, span] @ b[span] for span in spans])
        out = np.zeros((a.shape[0], b.shape[2]))
        for group, span in enumerate(spans):
            out[span] = a[span] @ b[group]
    return out


def fallback(a: mx.array, b: mx.array, offs: mx.array) -> mx.array:
    """MLX's gathered products, in float32 on the CPU: half types raise there.

    Nothing is read on the host: the group of each row is a count of the offsets at or before it.
    """
    shape = (a.shape[0], b.shape[-1])
    if 0 in (*a.shape, *b.shape, *offs.shape):
        return mx.zeros(shape if b.ndim == 3 else (offs.shape[0], *shape), a.dtype)
    half = a.dtype in (mx.float16, mx.bfloat16)
    wide = mx.float32 if half and mx.default_device().type == mx.cpu else a.dtype
    product = _by_rows if b.ndim == 3 else _inner
    return product(a, b, mx.stop_gradient(offs), wide).astype(a.dtype)


def _by_rows(a: mx.array, b: mx.array, offs: mx.array, wide: mx.Dtype) -> mx.array:
    rows, count = a.shape[0], b.shape[0]
    group = jagged.groups(offs, rows)
    known = mx.minimum(group, count - 1)
    left = a[:, None, :].astype(wide)
    if rows <= count or wide == mx.float64:
        out = matmul(left, mx.take(b, known, axis=0).astype(wide))
    else:
        out = mx.gather_mm(left, b.astype(wide), rhs_indices=known, sorted_indices=True)
    return mx.where((group < count)[:, None], out[:, 0, :], 0)


def _inner(a: mx.array, b: mx.array, offs: mx.array, wide: mx.Dtype) -> mx.array:
    """K cut into stretches of equal length that each lie in one group, padded with zeros.

    There are at most twice as many as groups. MLX's segmented_mm would do, but can be neither
    differentiated nor exported (0.32.4).
    """
    k, count = a.shape[1], offs.shape[0]
    length = -(-k // count)
    lasts = mx.clip(offs, 0, k)
    firsts = mx.concatenate([mx.zeros((1,), offs.dtype), lasts[:-1]])
    stops = mx.cumsum(mx.maximum(lasts - firsts + length - 1, 0) // length)
    stretch = mx.arange(2 * count)
    group = jagged.groups(stops, 2 * count)
    known = mx.minimum(group, count - 1)
    before = mx.take(mx.concatenate([mx.zeros((1,), stops.dtype), stops[:-1]]), known)
    start = mx.take(firsts, known) + (stretch - before) * length
    index = start[:, None] + mx.arange(length)[None, :]
    inside = (index < mx.take(lasts, known)[:, None]) & (group < count)[:, None]
    index = mx.where(inside, index, 0)
    left, right = (
        mx.where(inside[:, :, None], mx.take(x.astype(wide), index, axis=0), 0) for x in (a.T, b)
    )
    products = matmul(left.swapaxes(1, 2), right)
    return mx.zeros((count, a.shape[0], b.shape[1]), wide).at[known].add(products)


def vjp(primals, cotangent: mx.array, output: mx.array):
    """Grouped products again: each mode's gradients are of the other modes."""
    a, b, offs = primals
    turned = b.swapaxes(-1, -2)
    ga = grouped_matmul(cotangent, turned, offs)
    gb = grouped_matmul(a.T, cotangent, offs)
    return ga, gb, mx.zeros_like(offs)


def grouped_matmul(a: mx.array, b: mx.array, offs: mx.array | None = None) -> mx.array:
    """Products of groups, accumulated in float32; torch.nn.functional.grouped_mm on arrays.

    offs [G], int32, are the groups' ends, not decreasing; read on the device. Group g runs from
    offs[g - 1] (0 for the first) to offs[g], clamped to the length.
    a [M, K], b [G, K, N]: rows of a are jagged; gives [M, N]. Rows from offs[-1] on are zero.
    a [G, M, K], b [K, N]: columns of b are jagged; gives [M, N]. Columns from offs[-1] on are zero.
    a [M, K], b [K, N]: K is jagged; gives [G, M, N]. An empty group is zero.
    a [G, M, K], b [G, K, N], no offs: a product for each group.
    Operands of one floating dtype in any memory layout: transposed views are not copied. Raises
    ValueError for shapes or offsets that do not fit, TypeError for mixed dtypes or other offsets.
    """
    _check(a, b, offs)
    if offs is None:
        return matmul(a, b)
    if a.ndim == 3:
        return grouped_matmul(b.T, a.swapaxes(1, 2), offs).T
    return KERNEL(a, b, offs)


def _check(a: mx.array, b: mx.array, offs: mx.array | None) -> None:
    if a.ndim not in (2, 3) or b.ndim not in (2, 3) or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"grouped_matmul: a {a.shape} does not fit b {b.shape}")
    if a.dtype != b.dtype or not mx.issubdtype(a.dtype, mx.floating):
        raise TypeError(f"grouped_matmul takes one floating dtype, not {a.dtype}, {b.dtype}")
    jagged = 2 in (a.ndim, b.ndim)
    if jagged == (offs is None):
        word = "needs offs with" if jagged else "takes no offs without"
        raise ValueError(f"grouped_matmul {word} a matrix: a {a.shape}, b {b.shape}")
    groups = [array.shape[0] for array in (a, b) if array.ndim == 3]
    if offs is not None:
        if offs.ndim != 1 or offs.dtype != mx.int32:
            raise TypeError(
                f"grouped_matmul takes offs [G] of int32, not {offs.shape} {offs.dtype}"
            )
        groups.append(offs.shape[0])
    if len(set(groups)) > 1:
        raise ValueError(f"grouped_matmul: {groups} are different numbers of groups")


def cost(a: mx.array, b: mx.array, offs: mx.array) -> Cost:
    """Reads each array once (of the experts no more than rows), writes the result."""
    m, n = a.shape[0], b.shape[-1]
    if b.ndim == 2:
        out, read = offs.shape[0] * m * n, b.nbytes
    else:
        out, read = m * n, b.nbytes * min(m, b.shape[0]) // max(b.shape[0], 1)
    size = a.nbytes + read + offs.nbytes + out * a.itemsize
    return Cost(bytes=size, flops=2 * m * n * a.shape[1])


def _case(m, k, n, offs, why, turned=False, inner=False, **spec) -> Case:
    ends = jagged.ends(offs)
    groups = ends.shape[0]
    layout = "transposed" if turned else "contiguous"
    b = Spec((k, n), scale=0.1) if inner else Spec((groups, k, n), layout=layout, scale=k**-0.5)
    a = Spec((m, k), layout=layout if inner else "contiguous", **spec)
    return Case({"a": a, "b": b, "offs": ends}, why)


CASES = [
    _case(3, 20, 9, 5, "a few rows, N along memory, as torch lays weights out"),
    _case(
        8,
        2048,
        64,
        jagged.ONE_EACH,
        "Qwen3.6-35B-A3B, one token's experts, weights transposed",
        True,
    ),
    _case(7, 301, 45, 9, "K no multiple of a run, two chunks for float32", True),
    _case(5, 40, 70, (2, 2, 3, 3, 3, 3), "rows beyond the last group are zero, few"),
    _case(1, 3, 3, 1, "fewer than 8 rows in constant memory, one group"),
    _case(70, 96, 70, (70,), "one group: plain matmul, edges", True),
    _case(128, 512, 128, (64, 128), "Qwen3.6-35B-A3B's down, whole tiles only", True),
    _case(131, 40, 66, (65, 130), "two large groups, a row beyond", scale=0.3),
    _case(100, 2048, 65, (0, 31, 31, 90), "Qwen3.6-35B-A3B's K, empty groups, rows beyond", True),
    _case(45, 33, 64, 40, "more groups than a simdgroup has lanes", True),
    _case(90, 64, 128, (40, 80), "tiles of 32 rows, as many as 32 and 8"),
    _case(40, 100, 48, (9, 9, 40, 77, 100), "K jagged, an empty group", inner=True),
    _case(70, 50, 66, (50, 50), "K jagged, a transposed as gradients have it", True, True),
    _case(20, 45, 33, (7, 40), "K jagged, few rows, K beyond the last group", True, True),
    _case(
        6, 200, 40, (2, 4, 6, 6, 6, 6), "NaN and infinity stay in their rows, few", fill="specials"
    ),
    _case(40, 64, 70, (20, 40), "NaN and infinity stay in their rows", True, fill="specials"),
]

# Beyond rounding, K up to 2048. Half types sum in float32, then round once.
NMSE = {"float32": 2e-12, "float16": 1e-9, "bfloat16": 1e-8}

KERNEL = Kernel(
    "grouped_matmul",
    function=grouped_matmul,
    reference=reference,
    fallback=fallback,
    vjp=vjp,
    metal=Metal(VARIANTS, problem, choose, launch, bar=bar),
    cpu="grouped_matmul",
    cases=CASES,
    nmse=NMSE,
    cost=cost,
)
