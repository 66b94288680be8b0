"""MSL of the gated delta rule: step by step, or 32 times at once by matrix products.

A prompt's chunks take three dispatches: keys and queries normalised and laid out in tiles, the
triangular system of each chunk, and the scan of the state through all chunks. What goes from one
to the next is float32 and two to six times the call's own bytes (70 times of one key head: 2.57 in
all, simulator, 2026-12-02): that is the price of systems solved side by side, where a single scan
would solve them one after the other.
"""

from dataclasses import dataclass

import mlx.core as mx

from .spec import FALLBACK, STREAMING, Chip, Launch, Program

# A step needs k S and q S of the decayed state, one exchange between simdgroups: the new state's
# output is q S + (q k) delta. Two buffers in turn need one barrier a step instead of two.
STEPS = """
    // q, k: [B, T, Hk, dk], v, out: [B, T, Hv, dv], g, beta: [B, T, Hv], state: [B, Hv, dk, dv]
    // A threadgroup 32 columns of one state; simdgroup s its rows s, s + 8, s + 16, ...
    threadgroup float shared[2][2][8][32];
    uint lane = thread_index_in_simdgroup;
    uint s = simdgroup_index_in_threadgroup;
    uint tokens = q_shape[1];
    uint key_heads = q_shape[2];
    uint dk = q_shape[3];
    uint heads = v_shape[2];
    uint dv = v_shape[3];
    uint blocks = (dv + 31) / 32;
    uint head = threadgroup_position_in_grid.z / blocks % heads;
    uint batch = threadgroup_position_in_grid.z / blocks / heads;
    uint column = threadgroup_position_in_grid.z % blocks * 32 + lane;
    ulong matrix = (ulong(batch) * heads + head) * dk * dv + column;
    float rows[ROWS];
    for (uint r = 0; r < ROWS; r++) {
        bool inside = column < dv && s + 8 * r < dk;
        rows[r] = inside ? @STATE@ : 0.0f;
    }
    for (uint t = 0; t < tokens; t++) {
        ulong time = ulong(batch) * tokens + t;
        ulong key = (time * key_heads + head / (heads / key_heads)) * dk;
        // Lane l holds elements l, l + 32, ... of k and q: row s + 8 r is in lane (s + 8 r) % 32.
        float keys[(ROWS + 3) / 4], queries[(ROWS + 3) / 4];
        float kk = 0.0f, qq = 0.0f, qk = 0.0f;
        for (uint j = 0; j < (ROWS + 3) / 4; j++) {
            uint e = lane + 32 * j;
            keys[j] = e < dk ? float(k[key + e]) : 0.0f;
            queries[j] = e < dk ? float(q[key + e]) : 0.0f;
            kk += keys[j] * keys[j];
            qq += queries[j] * queries[j];
            qk += queries[j] * keys[j];
        }
        float key_scale = 1.0f;
        float query_scale = scale;
        if (NORMALISE) {
            key_scale = metal::precise::rsqrt(metal::simd_sum(kk) + 1e-6f);
            query_scale *= metal::precise::rsqrt(metal::simd_sum(qq) + 1e-6f);
        }
        qk = metal::simd_sum(qk) * key_scale * query_scale;
        float decay = metal::precise::exp(float(g[time * heads + head]));
        float memory = 0.0f, read = 0.0f;
        for (uint r = 0; r < ROWS; r++) {
            ushort source = s + 8 * (r % 4);
            rows[r] *= decay;
            memory += metal::simd_shuffle(keys[r / 4], source) * key_scale * rows[r];
            read += metal::simd_shuffle(queries[r / 4], source) * query_scale * rows[r];
        }
        shared[t % 2][0][s][lane] = memory;
        shared[t % 2][1][s][lane] = read;
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        memory = 0.0f;
        read = 0.0f;
        for (uint i = 0; i < 8; i++) {
            memory += shared[t % 2][0][i][lane];
            read += shared[t % 2][1][i][lane];
        }
        ulong at = (time * heads + head) * dv + column;
        float value = column < dv ? float(v[at]) : 0.0f;
        float delta = float(beta[time * heads + head]) * (value - memory);
        for (uint r = 0; r < ROWS; r++) {
            ushort source = s + 8 * (r % 4);
            rows[r] += metal::simd_shuffle(keys[r / 4], source) * key_scale * delta;
        }
        if (s == 0 && column < dv) {
            out[at] = T(read + qk * delta);
        }
    }
    for (uint r = 0; r < ROWS; r++) {
        if (column < dv && s + 8 * r < dk) {
            next[matrix + ulong(s + 8 * r) * dv] = rows[r];
        }
    }
"""

# Tiles of 8 times and 8 elements lie together, so that a simdgroup matrix is two whole lines.
PREPARE = """
    // q, k: [B, T, Hk, dk], queries, keys: [B, Hk, padded / 8, DK / 8, 8, 8] float32, zero beyond
    uint lane = thread_index_in_simdgroup;
    uint row = thread_position_in_grid.y;
    uint tokens = q_shape[1];
    uint heads = q_shape[2];
    uint dk = q_shape[3];
    uint t = row % uint(padded);
    uint head = row / uint(padded) % heads;
    ulong batch = row / uint(padded) / heads;
    ulong from = ((batch * tokens + t) * heads + head) * dk;
    ulong to = ulong(row / 8) * 8 * DK + row % 8 * 8;
    float key[(DK + 31) / 32], query[(DK + 31) / 32];
    float kk = 0.0f, qq = 0.0f;
    for (uint j = 0; j < (DK + 31) / 32; j++) {
        uint e = lane + 32 * j;
        key[j] = t < tokens && e < dk ? float(k[from + e]) : 0.0f;
        query[j] = t < tokens && e < dk ? float(q[from + e]) : 0.0f;
        kk += key[j] * key[j];
        qq += query[j] * query[j];
    }
    float key_scale = 1.0f;
    float query_scale = scale;
    if (NORMALISE) {
        key_scale = metal::precise::rsqrt(metal::simd_sum(kk) + 1e-6f);
        query_scale *= metal::precise::rsqrt(metal::simd_sum(qq) + 1e-6f);
    }
    for (uint j = 0; j < (DK + 31) / 32; j++) {
        uint e = lane + 32 * j;
        if (e < DK) {
            keys[to + e / 8 * 64 + e % 8] = key[j] * key_scale;
            queries[to + e / 8 * 64 + e % 8] = query[j] * query_scale;
        }
    }
"""

# With G the running sum of g in the chunk and L[i, j] = exp(G_i - G_j) for j <= i:
# A = beta_i (k_i k_j) L strictly below the diagonal; inverse = (I + A)^-1; intra = (q_i k_j) L.
SYSTEMS = """
    // inverse, intra: [B, Hv, chunks, 4, 4, 8, 8], in tiles too; a threadgroup a chunk
    threadgroup float system[32][PITCH];
    threadgroup float scores[32][PITCH];
    uint lane = thread_index_in_simdgroup;
    uint s = simdgroup_index_in_threadgroup;
    uint tokens = g_shape[1];
    uint heads = g_shape[2];
    uint key_heads = keys_shape[1];
    uint chunks = keys_shape[2] / 4;
    uint chunk = threadgroup_position_in_grid.z % chunks;
    uint head = threadgroup_position_in_grid.z / chunks % heads;
    uint batch = threadgroup_position_in_grid.z / chunks / heads;
    ulong first = ulong(batch) * key_heads + head / (heads / key_heads);
    first = (first * chunks + chunk) * 32 * DK;
    metal::simdgroup_float8x8 kk[4], qk[4];
    for (uint n = 0; n < 4; n++) {
        kk[n] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        qk[n] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    // The other keys come from threadgroup memory: a transposed load of a buffer is two scattered.
    for (uint base = 0; base < DK; base += 32) {
        metal::simdgroup_float8x8 own_k, own_q[4], other;
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint d = base; d < metal::min(base + 32, uint(DK)); d += 8) {
            metal::simdgroup_load(own_k, keys + first + 8 * (s * DK + d), 8);
            metal::simdgroup_store(own_k, &system[8 * s][d - base], PITCH);
            metal::simdgroup_load(own_q[(d - base) / 8], queries + first + 8 * (s * DK + d), 8);
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint d = 0; d < metal::min(32u, DK - base); d += 8) {
            metal::simdgroup_load(own_k, &system[8 * s][d], PITCH);
            for (uint n = 0; n < 4; n++) {
                metal::simdgroup_load(other, &system[8 * n][d], PITCH, ulong2(0, 0), true);
                metal::simdgroup_multiply_accumulate(kk[n], own_k, other, kk[n]);
                metal::simdgroup_multiply_accumulate(qk[n], own_q[d / 8], other, qk[n]);
            }
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    for (uint n = 0; n < 4; n++) {
        metal::simdgroup_store(kk[n], &system[8 * s][8 * n], PITCH);
        metal::simdgroup_store(qk[n], &scores[8 * s][8 * n], PITCH);
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint t = 32 * chunk + lane;
    ulong at = (ulong(batch) * tokens + t) * heads + head;
    float sum = metal::simd_prefix_inclusive_sum(t < tokens ? float(g[at]) : 0.0f);
    float rate = t < tokens ? float(beta[at]) : 0.0f;
    // Row i, column lane of tile (s, lane / 8); the columns of all rows are those of this lane.
    ulong matrix = ulong(threadgroup_position_in_grid.z) * 1024 + lane / 8 * 64 + lane % 8;
    for (uint i = 8 * s; i < 8 * s + 8; i++) {
        float own_sum = metal::simd_shuffle(sum, ushort(i));
        float own_rate = metal::simd_shuffle(rate, ushort(i));
        float decay = lane <= i ? metal::precise::exp(own_sum - sum) : 0.0f;
        intra[matrix + 256 * s + 8 * (i % 8)] = scores[i][lane] * decay;
        system[i][lane] = lane < i ? own_rate * system[i][lane] * decay : 0.0f;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    // Lane j solves for column j, from the top; it reads back only what it wrote itself.
    if (s == 0) {
        for (uint i = 0; i < 32; i++) {
            float x = i == lane ? 1.0f : 0.0f;
            for (uint m = 0; m < i; m++) {
                x -= system[i][m] * scores[m][lane];
            }
            scores[i][lane] = x;
            inverse[matrix + 256 * (i / 8) + 8 * (i % 8)] = x;
        }
    }
"""

# The state is held transposed, columns first, so that k is read as it lies in both products.
# For the state S before a chunk: D = inverse (beta (v - exp(G) k S)); o = exp(G) q S + intra D;
# S <- exp(G_last) S + k^T (exp(G_last - G) D).
SCAN = """
    // v, out: [B, T, Hv, dv], state, next: [B, Hv, dk, dv]; a threadgroup 32 columns of one state
    threadgroup float held[32][DK + 4];
    threadgroup float deltas[32][PITCH];
    threadgroup float reads[32][PITCH];
    uint lane = thread_index_in_simdgroup;
    uint s = simdgroup_index_in_threadgroup;
    uint tokens = v_shape[1];
    uint heads = v_shape[2];
    uint dv = v_shape[3];
    uint key_heads = keys_shape[1];
    uint chunks = keys_shape[2] / 4;
    uint blocks = (dv + 31) / 32;
    uint head = threadgroup_position_in_grid.z / blocks % heads;
    uint batch = threadgroup_position_in_grid.z / blocks / heads;
    uint column = threadgroup_position_in_grid.z % blocks * 32 + lane;
    ulong matrix = (ulong(batch) * heads + head) * uint(dk) * dv + column;
    for (uint i = s; i < DK; i += 8) {
        bool inside = column < dv && i < uint(dk);
        held[lane][i] = inside ? @STATE@ : 0.0f;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    for (uint chunk = 0; chunk < chunks; chunk++) {
        ulong first = ulong(batch) * key_heads + head / (heads / key_heads);
        first = (first * chunks + chunk) * 32 * DK;
        ulong square = ((ulong(batch) * heads + head) * chunks + chunk) * 1024;
        metal::simdgroup_float8x8 a, b, sums[4];
        // k S by the first four simdgroups, q S by the others, 8 times each.
        for (uint n = 0; n < 4; n++) {
            sums[n] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
        for (uint d = 0; d < DK; d += 8) {
            ulong at = first + 8 * (s % 4 * DK + d);
            metal::simdgroup_load(a, (s < 4 ? keys : queries) + at, 8);
            for (uint n = 0; n < 4; n++) {
                metal::simdgroup_load(b, &held[8 * n][d], DK + 4, ulong2(0, 0), true);
                metal::simdgroup_multiply_accumulate(sums[n], a, b, sums[n]);
            }
        }
        for (uint n = 0; n < 4; n++) {
            uint row = 8 * (s % 4);
            threadgroup float* target = s < 4 ? &deltas[row][8 * n] : &reads[row][8 * n];
            metal::simdgroup_store(sums[n], target, PITCH);
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        uint t = 32 * chunk + lane;
        ulong time = (ulong(batch) * tokens + t) * heads + head;
        float sum = metal::simd_prefix_inclusive_sum(t < tokens ? float(g[time]) : 0.0f);
        float rate = t < tokens ? float(beta[time]) : 0.0f;
        float last = metal::simd_shuffle(sum, 31);
        for (uint i = s; i < 32; i += 8) {
            float grown = metal::precise::exp(metal::simd_shuffle(sum, ushort(i)));
            float own_rate = metal::simd_shuffle(rate, ushort(i));
            uint own = 32 * chunk + i;
            ulong at = ((ulong(batch) * tokens + own) * heads + head) * dv + column;
            float value = own < tokens && column < dv ? float(v[at]) : 0.0f;
            deltas[i][lane] = own_rate * (value - grown * deltas[i][lane]);
            reads[i][lane] *= grown;
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        // Two tiles a simdgroup from here on; the matrices are zero above the diagonal.
        uint row = 8 * (s / 2);
        uint tile = 16 * (s % 2);
        for (uint n = 0; n < 2; n++) {
            sums[n] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
        for (uint m = 0; m <= row; m += 8) {
            metal::simdgroup_load(a, inverse + square + row * 32 + 8 * m, 8);
            for (uint n = 0; n < 2; n++) {
                metal::simdgroup_load(b, &deltas[m][tile + 8 * n], PITCH);
                metal::simdgroup_multiply_accumulate(sums[n], a, b, sums[n]);
            }
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint n = 0; n < 2; n++) {
            metal::simdgroup_store(sums[n], &deltas[row][tile + 8 * n], PITCH);
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint n = 0; n < 2; n++) {
            metal::simdgroup_load(sums[n], &reads[row][tile + 8 * n], PITCH);
        }
        for (uint m = 0; m <= row; m += 8) {
            metal::simdgroup_load(a, intra + square + row * 32 + 8 * m, 8);
            for (uint n = 0; n < 2; n++) {
                metal::simdgroup_load(b, &deltas[m][tile + 8 * n], PITCH);
                metal::simdgroup_multiply_accumulate(sums[n], a, b, sums[n]);
            }
        }
        for (uint n = 0; n < 2; n++) {
            metal::simdgroup_store(sums[n], &reads[row][tile + 8 * n], PITCH);
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint i = s; i < 32; i += 8) {
            uint own = 32 * chunk + i;
            ulong at = ((ulong(batch) * tokens + own) * heads + head) * dv + column;
            if (own < tokens && column < dv) {
                out[at] = T(reads[i][lane]);
            }
            deltas[i][lane] *= metal::precise::exp(last - metal::simd_shuffle(sum, ushort(i)));
        }
        float decay = metal::precise::exp(last);
        for (uint i = s; i < 32; i += 8) {
            for (uint j = lane; j < DK; j += 32) {
                held[i][j] *= decay;
            }
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        for (uint d = 8 * s; d < DK; d += 64) {
            for (uint n = 0; n < 4; n++) {
                metal::simdgroup_load(sums[n], &held[8 * n][d], DK + 4);
            }
            for (uint m = 0; m < 32; m += 8) {
                metal::simdgroup_load(b, keys + first + m * DK + 8 * d, 8);
                for (uint n = 0; n < 4; n++) {
                    metal::simdgroup_load(a, &deltas[m][8 * n], PITCH, ulong2(0, 0), true);
                    metal::simdgroup_multiply_accumulate(sums[n], a, b, sums[n]);
                }
            }
            for (uint n = 0; n < 4; n++) {
                metal::simdgroup_store(sums[n], &held[8 * n][d], DK + 4);
            }
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
    for (uint i = s; i < uint(dk); i += 8) {
        if (column < dv) {
            next[matrix + ulong(i) * dv] = held[lane][i];
        }
    }
"""

CHUNK = 32

# Floats from row to row of a 32x32 buffer: four more, or a matrix's rows share their banks.
PITCH = CHUNK + 4
HEADER = f"constant constexpr uint PITCH = {PITCH};"

ARRAYS = ("q", "k", "v", "g", "beta")


def _program(name: str, inputs: tuple[str, ...], source: str, row: str, state: bool) -> Program:
    text = f"state[matrix + ulong({row}) * dv]" if state else "0.0f"
    names = (*inputs, "state") if state else inputs
    suffix = "_state" if state else ""
    source = source.replace("@STATE@", text)
    return Program(name + suffix, names, ("out", "next"), source, HEADER)


STEPS_PROGRAMS = {
    state: _program("gated_delta_steps", (*ARRAYS, "scale"), STEPS, "s + 8 * r", state)
    for state in (False, True)
}
PREPARE_PROGRAM = Program(
    "gated_delta_prepare", ("q", "k", "scale", "padded"), ("queries", "keys"), PREPARE
)
SYSTEMS_PROGRAM = Program(
    "gated_delta_systems", ("queries", "keys", "g", "beta"), ("inverse", "intra"), SYSTEMS, HEADER
)
SCAN_INPUTS = ("queries", "keys", "v", "g", "beta", "inverse", "intra", "dk")
SCAN_PROGRAMS = {
    state: _program("gated_delta_scan", SCAN_INPUTS, SCAN, "i", state) for state in (False, True)
}

VARIANTS = {
    "steps": "time by time, the state in registers; decoding",
    "chunks": "32 times at once by matrix products, in three dispatches; prompts",
}

# Chunks pay once a step's barrier and its vector work cost more than the systems. Not measured.
MANY_TOKENS = 64

# What fits 32 KB beside two 32x32 buffers; 32 rows in a thread's registers.
MOST_CHUNKED_ROWS, MOST_ROWS = 176, 256


@dataclass(frozen=True)
class Rule:
    """The call by its axes; `state` says whether one is given."""

    batch: int
    tokens: int
    key_heads: int
    heads: int
    dk: int
    dv: int
    state: bool
    normalise: bool
    scale: float
    dtype: mx.Dtype


def choose(rule: Rule, chip: Chip) -> str:
    """Name of the variant; needs no device, so tests can pin it."""
    if rule.dtype not in (mx.float32, mx.float16, mx.bfloat16) or rule.dk > MOST_ROWS:
        return FALLBACK
    if 0 in (rule.batch, rule.tokens, rule.heads, rule.dk, rule.dv):
        return FALLBACK
    if rule.tokens >= MANY_TOKENS and rule.dk <= MOST_CHUNKED_ROWS:
        return "chunks"
    return "steps"


def bar(problem, variant: str) -> float | None:
    """Chunks hand their systems from dispatch to dispatch, which has no bar."""
    return STREAMING if variant == "steps" else None


def launch(rule: Rule, variant: str) -> list[Launch]:
    """The dispatches of a variant; ValueError where it cannot serve the problem."""
    if 0 in (rule.batch, rule.tokens, rule.heads, rule.dk, rule.dv):
        raise ValueError("gated_delta has no times, heads or rows to work on")
    most = MOST_CHUNKED_ROWS if variant == "chunks" else MOST_ROWS
    if rule.dk > most:
        raise ValueError(f"{variant} holds {most} rows of state, not {rule.dk}")
    return _chunks(rule) if variant == "chunks" else [_steps(rule)]


def _shapes(rule: Rule) -> dict[str, tuple[int, ...]]:
    times = (rule.batch, rule.tokens)
    keys, values = (*times, rule.key_heads, rule.dk), (*times, rule.heads, rule.dv)
    state = (rule.batch, rule.heads, rule.dk, rule.dv)
    gates = (*times, rule.heads)
    return {"q": keys, "k": keys, "v": values, "g": gates, "beta": gates, "state": state}


def _steps(rule: Rule) -> Launch:
    shapes, program = _shapes(rule), STEPS_PROGRAMS[rule.state]
    rows = -(-rule.dk // 8)
    return Launch(
        program,
        inputs={name: shapes[name] for name in program.inputs if name in shapes},
        outputs={"out": (shapes["v"], rule.dtype), "next": (shapes["state"], mx.float32)},
        grid=(32, 8, rule.batch * rule.heads * -(-rule.dv // 32)),
        threadgroup=(32, 8, 1),
        template=(("T", rule.dtype), ("ROWS", rows), ("NORMALISE", rule.normalise)),
        threadgroup_bytes=2 * 2 * 8 * 32 * 4,
        scalars={"scale": rule.scale},
    )


def _chunks(rule: Rule) -> list[Launch]:
    shapes = _shapes(rule)
    chunks, width = -(-rule.tokens // CHUNK), 8 * -(-rule.dk // 8)
    padded = CHUNK * chunks
    keys = (rule.batch, rule.key_heads, padded // 8, width // 8, 64)
    square = (rule.batch, rule.heads, chunks, CHUNK, CHUNK)
    shapes |= {"queries": keys, "keys": keys, "inverse": square, "intra": square}
    scan = SCAN_PROGRAMS[rule.state]
    return [
        Launch(
            PREPARE_PROGRAM,
            inputs={name: shapes[name] for name in ("q", "k")},
            outputs={name: (keys, mx.float32) for name in ("queries", "keys")},
            grid=(32, rule.batch * padded * rule.key_heads, 1),
            threadgroup=(32, 8, 1),
            template=(("DK", width), ("NORMALISE", rule.normalise)),
            scalars={"scale": rule.scale, "padded": padded},
        ),
        Launch(
            SYSTEMS_PROGRAM,
            inputs={name: shapes[name] for name in SYSTEMS_PROGRAM.inputs},
            outputs={name: (square, mx.float32) for name in ("inverse", "intra")},
            grid=(32, 4, rule.batch * rule.heads * chunks),
            threadgroup=(32, 4, 1),
            template=(("DK", width),),
            threadgroup_bytes=2 * CHUNK * PITCH * 4,
        ),
        Launch(
            scan,
            inputs={name: shapes[name] for name in scan.inputs if name in shapes},
            outputs={"out": (shapes["v"], rule.dtype), "next": (shapes["state"], mx.float32)},
            grid=(32, 8, rule.batch * rule.heads * -(-rule.dv // 32)),
            threadgroup=(32, 8, 1),
            template=(("T", rule.dtype), ("DK", width)),
            threadgroup_bytes=(width + 4 + 2 * PITCH) * CHUNK * 4,
            scalars={"dk": rule.dk},
        ),
    ]
