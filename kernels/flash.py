"""MSL of attention: all queries of one key head share each key and value that is read.

The queries of the heads that share a key head lie together in memory and are the rows of one
matrix. A threadgroup takes a few of these rows, 8 for a decoded token, up to 64 for a prompt, past
tiles of keys: scores by 8x8 fragments, softmax as it goes, float32 sums. Few rows with many keys
are split over threadgroups, which leave unfinished sums to a second program.
"""

from dataclasses import dataclass
from itertools import product

import mlx.core as mx

from . import tiles
from .spec import FALLBACK, THREADGROUP_BYTES, Chip, Launch, Program

HEADER = (
    tiles.HEADER
    + """
// Below 8 scores may all be -inf so far; only those weigh nothing.
inline float weight(float x, float maximum) {
    return x == -INFINITY ? 0.0f : metal::precise::exp(x - maximum);
}

// `rows` rows of D neighbours at `start`, and zeros up to ROWS; 16 bytes at a time where they are
// aligned (a view may start at any element).
template <uint ROWS, uint D, typename T>
inline void load_rows(
    threadgroup T* tile, const device T* source, ulong start, uint rows, uint thread_index) {
    constexpr uint RUN = 16 / sizeof(T);
    constexpr uint THREADS = 32 * TILE_SIMDGROUPS;
    if ((reinterpret_cast<ulong>(source) & 15) == 0) {
        threadgroup uint4* to = reinterpret_cast<threadgroup uint4*>(tile);
        const device uint4* from = reinterpret_cast<const device uint4*>(source + start);
        // Lane 0 begins where a line of 128 bytes does, which a head of 67 x 72 halves does not.
        uint past_line = uint(reinterpret_cast<ulong>(from) / 16) % 8;
        for (int e = int(thread_index) - int(past_line); e < int(ROWS * D / RUN); e += THREADS) {
            uint row = metal::max(e, 0) / (D / RUN);
            if (e >= 0) {
                to[row * (padded<T>(D) / RUN) + e % (D / RUN)] = row < rows ? from[e] : uint4(0);
            }
        }
        return;
    }
    for (uint e = thread_index; e < ROWS * D; e += THREADS) {
        uint row = e / D;
        tile[row * padded<T>(D) + e % D] = row < rows ? source[start + e] : T(0);
    }
}
"""
)

# FIRST..LAST are the keys that any row of the tile sees: the causal triangle and the window cut
# both ends before a key is read. `shift` is the position of the first query among the keys.
TILE = """
    // q, out: [KH, rows, D], k, v: [KH, keys, D] where KH counts all key heads of all batches
    constexpr uint ROW = padded<T>(D);
    constexpr uint SCORES = KEYS + 4;
    constexpr uint KEY_BLOCKS = KEYS / 8;
    constexpr uint ROW_BLOCKS = BM / 8;
    constexpr uint STEP = TILE_SIMDGROUPS / KEY_BLOCKS;
    constexpr uint SHARE = (ROW_BLOCKS + STEP - 1) / STEP;
    constexpr uint COLUMNS = (D / 8 + TILE_SIMDGROUPS - 1) / TILE_SIMDGROUPS;
    threadgroup float4 memory[SCRATCH];
    threadgroup float maxima[BM];
    threadgroup float norms[BM];
    threadgroup float fixes[BM];
    threadgroup T* tile = reinterpret_cast<threadgroup T*>(memory);
    threadgroup T* queries = tile + KEYS * ROW;
    threadgroup float* scores = reinterpret_cast<threadgroup float*>(queries + BM * ROW);
    uint rows = q_shape[1];
    uint keys = k_shape[1];
    uint length = query_count;
    int reach = window;
    float factor = scale;
    uint thread_index = thread_index_in_threadgroup;
    uint lane = thread_index_in_simdgroup;
    uint simdgroup = simdgroup_index_in_threadgroup;
    uint row0 = threadgroup_position_in_grid.x * BM;
    uint head = threadgroup_position_in_grid.y;
    uint batch = head / kv_heads;
    uint split = threadgroup_position_in_grid.z;
    int valid = keys;
    @VALID@
    int shift = ALIGNED ? valid - length : 0;
    uint last_row = metal::min(row0 + BM, rows) - 1;
    bool one_head = row0 / length == last_row / length;
    int first_query = one_head ? row0 % length : 0;
    int last_query = one_head ? last_row % length : length - 1;
    int first = int(split) * chunk;
    int last = metal::min(first + chunk, valid);
    if (CAUSAL) {
        last = metal::min(last, last_query + shift + 1);
    }
    if (reach > 0) {
        first = metal::max(first, first_query + shift - reach + 1);
    }
    load_rows<BM, D>(
        queries, q, (ulong(head) * rows + row0) * D, rows - row0, thread_index);
    for (uint r = thread_index; r < metal::max(uint(BM), 64u); r += 32 * TILE_SIMDGROUPS) {
        if (r < BM) {
            maxima[r] = -INFINITY;
            norms[r] = 0.0f;
        }
        if (r < 64) {
            scores[r] = float(r / 8);
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    // Which rows of a fragment this lane holds: asked of the hardware, not assumed.
    metal::simdgroup_float8x8 index;
    metal::simdgroup_load(index, scores, 8);
    uint2 own = uint2(index.thread_elements()[0], index.thread_elements()[1]);
    metal::simdgroup_float8x8 sums[ROW_BLOCKS * COLUMNS];
    clear_sums<ROW_BLOCKS * COLUMNS>(sums);
    for (int begin = first; begin < last; begin += KEYS) {
        ulong start = (ulong(head) * keys + begin) * D;
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        load_rows<KEYS, D>(tile, k, start, last - begin, thread_index);
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        metal::simdgroup_float8x8 products[SHARE];
        clear_sums<SHARE>(products);
        uint key_block = simdgroup % KEY_BLOCKS;
        for (uint d = 0; d < D; d += 8) {
            metal::simdgroup_matrix<T, 8, 8> right;
            metal::simdgroup_load(right, tile + key_block * 8 * ROW + d, ROW, ulong2(0, 0), true);
            for (uint i = 0; i < SHARE; i++) {
                uint block = simdgroup / KEY_BLOCKS + STEP * i;
                if (block < ROW_BLOCKS) {
                    metal::simdgroup_matrix<T, 8, 8> left;
                    metal::simdgroup_load(left, queries + block * 8 * ROW + d, ROW);
                    metal::simdgroup_multiply_accumulate(products[i], left, right, products[i]);
                }
            }
        }
        for (uint i = 0; i < SHARE; i++) {
            uint block = simdgroup / KEY_BLOCKS + STEP * i;
            if (block < ROW_BLOCKS) {
                metal::simdgroup_store(
                    products[i], scores + block * 8 * SCORES + key_block * 8, SCORES);
            }
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        load_rows<KEYS, D>(tile, v, start, last - begin, thread_index);
        for (uint r = simdgroup; r < BM; r += TILE_SIMDGROUPS) {
            uint row = row0 + r;
            int query = row % length;
            int key = begin + int(lane);
            bool seen = lane < KEYS && key < last && row < rows;
            if (CAUSAL) {
                seen = seen && key <= query + shift;
            }
            if (reach > 0) {
                seen = seen && key > query + shift - reach;
            }
            float score = -INFINITY;
            if (seen) {
                score = scores[r * SCORES + lane] * factor;
                @MASK@
            }
            float before = maxima[r];
            float maximum = metal::fmax(before, metal::simd_max(metal::fmax(-INFINITY, score)));
            float share = weight(score, maximum);
            float sum = metal::simd_sum(share);
            metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
            if (lane < KEYS) {
                scores[r * SCORES + lane] = share;
            }
            if (lane == 0) {
                float fix = weight(before, maximum);
                fixes[r] = fix;
                maxima[r] = maximum;
                norms[r] = norms[r] * fix + sum;
            }
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint i = 0; i < ROW_BLOCKS; i++) {
            float2 fix = float2(fixes[8 * i + own.x], fixes[8 * i + own.y]);
            for (uint c = 0; c < COLUMNS; c++) {
                sums[i * COLUMNS + c].thread_elements()[0] *= fix.x;
                sums[i * COLUMNS + c].thread_elements()[1] *= fix.y;
            }
        }
        for (uint j = 0; j < KEY_BLOCKS; j++) {
            metal::simdgroup_matrix<T, 8, 8> right[COLUMNS];
            for (uint c = 0; c < COLUMNS; c++) {
                uint column = 8 * (simdgroup + TILE_SIMDGROUPS * c);
                if (column < D) {
                    metal::simdgroup_load(right[c], tile + j * 8 * ROW + column, ROW);
                }
            }
            for (uint i = 0; i < ROW_BLOCKS; i++) {
                metal::simdgroup_float8x8 left;
                metal::simdgroup_load(left, scores + i * 8 * SCORES + j * 8, SCORES);
                for (uint c = 0; c < COLUMNS; c++) {
                    if (8 * (simdgroup + TILE_SIMDGROUPS * c) < D) {
                        metal::simdgroup_multiply_accumulate(
                            sums[i * COLUMNS + c], left, right[c], sums[i * COLUMNS + c]);
                    }
                }
            }
        }
    }
    threadgroup float* strip = reinterpret_cast<threadgroup float*>(memory);
    for (uint i = 0; i < ROW_BLOCKS; i++) {
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint c = 0; c < COLUMNS; c++) {
            uint column = 8 * (simdgroup + TILE_SIMDGROUPS * c);
            if (column < D) {
                metal::simdgroup_store(sums[i * COLUMNS + c], strip + column, D);
            }
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint e = thread_index; e < 8 * D; e += 32 * TILE_SIMDGROUPS) {
            uint r = 8 * i + e / D;
            if (row0 + r < rows) {
                float sum = strip[e];
                @STORE@
            }
        }
    }
    @FINISH@
"""

# A row that sees no key, or whose scores are all NaN, gives 0, as in torch.
VALUE = "T((@MAXIMUM@ == -INFINITY ? 0.0f : sum / @NORM@)@GATE@)"

GATE = " / (1.0f + metal::precise::exp(-float(gate[at])))"


def _value(maximum: str, norm: str, gated: bool) -> str:
    value = VALUE.replace("@MAXIMUM@", maximum).replace("@NORM@", norm)
    return value.replace("@GATE@", GATE * gated)


STORE = """ulong at = (ulong(head) * rows + row0 + r) * D + e % D;
                out[at] = @VALUE@;"""

STORE_PART = """part[((ulong(head) * splits + split) * rows + row0 + r) * D + e % D] = sum;"""

FINISH_PART = """if (thread_index < BM && row0 + thread_index < rows) {
        ulong at = (ulong(head) * splits + split) * rows + row0 + thread_index;
        ends[2 * at] = maxima[thread_index];
        ends[2 * at + 1] = norms[thread_index];
    }"""

MASK = """uint query_head = head % kv_heads * (rows / length) + row / length;
                ulong at = mask_shape[0] > 1 ? batch : 0;
                at = at * mask_shape[1] + (mask_shape[1] > 1 ? query_head : 0);
                at = at * mask_shape[2] + (mask_shape[2] > 1 ? query : 0);
                at = at * mask_shape[3] + (mask_shape[3] > 1 ? key : 0);
                if (BOOL) {
                    score = mask[at] ? score : -INFINITY;
                } else {
                    score += float(mask[at]);
                }"""

MERGE = """
    // part: [KH, splits, rows, D], ends: [KH, splits, rows, 2], out: [KH, rows, D]; a thread each
    uint head = thread_position_in_grid.z;
    uint row = thread_position_in_grid.y;
    uint splits = part_shape[1];
    uint rows = part_shape[2];
    uint d = part_shape[3];
    float maximum = -INFINITY;
    for (uint s = 0; s < splits; s++) {
        maximum = metal::fmax(maximum, ends[2 * ((ulong(head) * splits + s) * rows + row)]);
    }
    float sum = 0.0f;
    float norm = 0.0f;
    for (uint s = 0; s < splits; s++) {
        ulong from = (ulong(head) * splits + s) * rows + row;
        float counted = ends[2 * from + 1];
        if (counted != 0.0f) {
            float share = weight(ends[2 * from], maximum);
            norm += share * counted;
            sum += share * part[from * d + thread_position_in_grid.x];
        }
    }
    ulong at = (ulong(head) * rows + row) * d + thread_position_in_grid.x;
    out[at] = @VALUE@;
"""


def _tile(masked: bool, cut: bool, gated: bool, part: bool) -> Program:
    """The program with a mask, lengths, a gate, or unfinished sums as its result."""
    store = STORE_PART if part else STORE.replace("@VALUE@", _value("maxima[r]", "norms[r]", gated))
    valid = "valid = metal::clamp(int(lengths[batch]), 0, valid);" * cut
    source = TILE.replace("@STORE@", store).replace("@FINISH@", FINISH_PART * part)
    source = source.replace("@MASK@", MASK * masked).replace("@VALID@", valid)
    arrays = ("q", "k", "v", *("mask",) * masked, *("lengths",) * cut, *("gate",) * gated)
    numbers = ("kv_heads", "query_count", "chunk", "window", "scale", *("splits",) * part)
    name = "attention" + "_mask" * masked + "_lengths" * cut + "_gate" * gated + "_part" * part
    outputs = ("part", "ends") if part else ("out",)
    return Program(name, (*arrays, *numbers), outputs, source, HEADER)


def _merge(gated: bool) -> Program:
    source = MERGE.replace("@VALUE@", _value("maximum", "norm", gated))
    inputs = ("part", "ends", *("gate",) * gated)
    return Program("attention_merge" + "_gate" * gated, inputs, ("out",), source, HEADER)


BOTH = (False, True)
TILES = {
    (masked, cut, gated, part): _tile(masked, cut, gated, part)
    for masked in BOTH
    for cut in BOTH
    for gated in BOTH
    for part in BOTH
    if not (gated and part)
}
MERGES = {gated: _merge(gated) for gated in BOTH}

VARIANTS = {
    "tile": "a threadgroup up to 64 rows of one key head past all their keys",
    "split": "keys split over threadgroups, in two dispatches; few rows, many keys",
}

# Head dimensions whose tiles fit into threadgroup memory.
MAX_D = 256

# With two threadgroups a core one computes while the other waits for memory. MLX's own attention
# has tiles of about this size. Not measured.
HALF = THREADGROUP_BYTES // 2

# Maximum, norm and fix of a row.
ROW_BYTES = 12

# Threadgroups wanted, and keys that one is worth: 128 keys of two bytes make 12 % more traffic for
# eight rows, by the parts written and read again, but 4096 keys fill 32 cores. Not measured.
THREADGROUPS, CHUNK = 256, 128


@dataclass(frozen=True)
class Problem:
    """q [batch, heads, queries, d], k and v [batch, kv_heads, keys, d]; mask of shape `mask`.

    With `lengths` the last query is at the last valid key; else the first at the first. `window`:
    keys that a query sees, itself included, 0 for all. `values`: d of v.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    d: int
    values: int
    mask: tuple[int, ...] | None
    boolean: bool
    lengths: bool
    gate: bool
    causal: bool
    window: int
    scale: float
    dtype: mx.Dtype

    @property
    def rows(self) -> int:
        """Queries that share a key head."""
        return self.heads // self.kv_heads * self.queries


def tile_shape(problem: Problem) -> tuple[int, int, int]:
    """Rows and keys of a tile and the 16-byte words that it takes: the largest within HALF.

    Beyond HALF where that would leave fewer than 32 rows of many, or 16 keys.
    """
    size = problem.dtype.size
    row = problem.d * size + 16
    needed = next((bm for bm in (8, 16, 32) if bm >= problem.rows), 64)
    for limit, least_rows, least_keys in ((HALF, min(needed, 32), 16), (THREADGROUP_BYTES, 8, 8)):
        for bm, keys in product((64, 32, 16, 8), (32, 16, 8)):
            words = max((bm + keys) * row + 4 * bm * (keys + 4), 32 * problem.d) // 16
            fits = 16 * words + ROW_BYTES * bm <= limit
            if fits and least_rows <= bm <= needed and keys >= least_keys:
                return bm, keys, words
    raise ValueError(f"attention tiles of {problem.d} values do not fit")


def splits(problem: Problem) -> tuple[int, int]:
    """Into how many parts of how many keys "split" cuts: enough threadgroups, whole tiles."""
    bm, keys, _ = tile_shape(problem)
    others = problem.batch * problem.kv_heads * -(-problem.rows // bm)
    wanted = min(-(-problem.keys // CHUNK), -(-THREADGROUPS // others))
    chunk = -(-problem.keys // (wanted * keys)) * keys
    return -(-problem.keys // chunk), chunk


def choose(problem: Problem, chip: Chip) -> str:
    """Name of the variant; needs no device, so tests can pin it."""
    if problem.dtype not in (mx.float32, mx.float16, mx.bfloat16) or _obstacle(problem):
        return FALLBACK
    return "split" if splits(problem)[0] > 1 else "tile"


def _obstacle(problem: Problem) -> str:
    """What the programs cannot take, or ""."""
    sizes = (problem.batch, problem.heads, problem.queries, problem.keys, problem.d)
    if 0 in sizes:
        return "no empty arrays"
    if problem.d != problem.values:
        return "keys and values of one head dimension"
    if problem.d % 8 or problem.d > MAX_D:
        return f"head dimensions in steps of 8 up to {MAX_D}, not {problem.d}"
    if max(problem.rows, problem.keys) > 2**30:
        return "fewer rows and keys"
    return ""


def bar(problem: Problem, variant: str) -> None:
    """None: masks and lengths leave keys out, and split keys write parts that are read again."""


def launch(problem: Problem, variant: str) -> list[Launch]:
    """The dispatches of a variant; ValueError where it cannot serve the problem."""
    obstacle = _obstacle(problem)
    if obstacle:
        raise ValueError(f"attention takes {obstacle}")
    if variant == "tile":
        return [_tiles(problem, 1, problem.keys)]
    return [_tiles(problem, *splits(problem), part=True), _merging(problem, splits(problem)[0])]


def _tiles(problem: Problem, count: int, chunk: int, part: bool = False) -> Launch:
    bm, keys, words = tile_shape(problem)
    kv, rows, d = problem.batch * problem.kv_heads, problem.rows, problem.d
    program = TILES[problem.mask is not None, problem.lengths, problem.gate and not part, part]
    shapes = {"q": (kv, rows, d), "k": (kv, problem.keys, d), "v": (kv, problem.keys, d)}
    shapes |= {"mask": problem.mask or (), "lengths": (problem.batch,), "gate": (kv, rows, d)}
    outputs = {"out": (_shape(problem), problem.dtype)}
    if part:
        outputs = {"part": ((kv, count, rows, d), mx.float32)}
        outputs["ends"] = ((kv, count, rows, 2), mx.float32)
    template = {
        **{"T": problem.dtype, "D": d, "BM": bm, "KEYS": keys, "SCRATCH": words},
        **{"CAUSAL": problem.causal, "ALIGNED": problem.lengths, "BOOL": problem.boolean},
    }
    numbers = {
        **{"kv_heads": problem.kv_heads, "query_count": problem.queries, "chunk": chunk},
        **{"window": problem.window, "scale": problem.scale, "splits": count},
    }
    return Launch(
        program,
        inputs={name: shapes[name] for name in program.inputs if name in shapes},
        outputs=outputs,
        grid=(32 * -(-rows // bm), tiles.SIMDGROUPS * kv, count),
        threadgroup=(32, tiles.SIMDGROUPS, 1),
        template=tuple(template.items()),
        threadgroup_bytes=16 * words + ROW_BYTES * bm,
        scalars={name: numbers[name] for name in program.inputs if name in numbers},
    )


def _shape(problem: Problem) -> tuple[int, ...]:
    return (problem.batch, problem.heads, problem.queries, problem.d)


def _merging(problem: Problem, count: int) -> Launch:
    kv, rows, d = problem.batch * problem.kv_heads, problem.rows, problem.d
    inputs = {"part": (kv, count, rows, d), "ends": (kv, count, rows, 2)}
    return Launch(
        MERGES[problem.gate],
        {**inputs, "gate": (kv, rows, d)} if problem.gate else inputs,
        {"out": (_shape(problem), problem.dtype)},
        grid=(d, rows, kv),
        threadgroup=(d, 1, 1),
        template=(("T", problem.dtype),),
    )
